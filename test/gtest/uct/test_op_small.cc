/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <cstring>

/*
 * Small gets. Normally such a get is one READ whose data is scanned. The tests
 * cover the repair of gets that met an absent page.
 */
class test_op_small : public test_op {
};

/* At whatever byte the absent part begins, and also where the page is back
 * before its states could be read */
TEST_F(test_op_small, no_absent_line_is_accepted)
{
    make(1 << 16);
    for (size_t length : {1, 5, 8, 15, 64, 65, 72, 127, 129, 500, 4096}) {
        for (size_t remote : {8192, 8192 + 8, 8192 + 56, 8192 + 60}) {
            for (size_t tear = 0; tear < length; tear += 64) {
                page_table_fault_clear(m_remote->table());
                m_a->wait([&]() {
                    return m_remote->has(8192, 8192, PAGE_R);
                });
                uint64_t small = counter("assist_small");
                int index      = m_remote->fault(8192, PAGE_R, 1, tear, 1,
                                                 true);
                run(GET_BCOPY, 77, remote, length);
                EXPECT_EQ(1, page_table_fault_hits(m_remote->table(), index));
                /* An unaligned head is an access of its own, which consumes the
                 * fault */
                size_t head = -remote % 64;
                if ((head == 0) || (tear < head)) {
                    EXPECT_EQ(small + 1, counter("assist_small"))
                            << length << " bytes at " << remote << " from "
                            << tear;
                }
            }
        }
    }
}

TEST_F(test_op_small, data_like_the_signature)
{
    make(1 << 16);
    uint64_t signature = page_table_signature(m_remote->table());
    uint64_t suspects  = 0;

    for (size_t i = 0; i + 8 <= m_remote->length(); i += 8) {
        memcpy(m_remote->ptr(i), &signature, 8);
    }
    for (op_t op : {GET_BCOPY, GET_COPIED}) {
        for (size_t length : {1, 3, 8, 20, 64, 100, 4096}) {
            for (size_t remote : {4096, 4096 + 16, 4096 + 61}) {
                completion comp;
                memset(m_local->ptr(), 0, m_local->length());
                start(op, 0, remote, length, &comp);
                m_a->wait([&]() { return comp.done; });
                EXPECT_EQ(UCS_OK, comp.status);
                expect_data(op, 0, remote, length);
                EXPECT_EQ(++suspects, counter("false_suspects"));
            }
        }
    }
}
