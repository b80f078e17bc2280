/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <cstring>

/*
 * Small gets. Normally such a get is one READ whose data is scanned.
 */
class test_op_small : public test_op {
};

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
