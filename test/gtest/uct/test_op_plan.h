/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_TEST_OP_PLAN_H_
#define NPRDMA_TEST_TEST_OP_PLAN_H_

#include "test_op.h"

#include <algorithm>
#include <set>

/* Pages that vanish during an access of the NIC: which page, on which side, at
 * which byte, and whether it is back when its state is read */
class test_op_plan : public test_op {
protected:
    struct transfer {
        op_t   op;
        size_t local, remote, length;
    };

    /* Gets up to this size are scanned, larger ones are verified by states */
    virtual size_t scan_max() const { return 8192; }

    virtual size_t slice() const { return 65536; }

    /* Slices that did not complete with their first try */
    uint64_t redone()
    {
        return counter("redone_slices") + counter("assist_small") +
               counter("assist_fetch") + counter("assist_store");
    }

    bool is_optimistic(const transfer &t)
    {
        return (t.op != PUT_ZCOPY) || (t.length > max_bcopy());
    }

    /* All pages are present before, so that only this fault is met */
    void prepare(const transfer &t)
    {
        page_table_fault_clear(m_local->table());
        page_table_fault_clear(m_remote->table());
        for (int i = 0; i < 10; ++i) {
            if (m_local->has(t.local, t.length, PAGE_R | PAGE_W) &&
                m_remote->has(t.remote, t.length, PAGE_R | PAGE_W)) {
                return;
            }
            run(PUT_ZCOPY, 0, 0, m_local->length());
            run(GET_ZCOPY, 0, 0, m_local->length());
        }
        FAIL() << "pages are not populated";
    }

    void try_fault(const transfer &t, bool is_local, size_t page, uint32_t tear,
                   uint32_t restore)
    {
        size_t offset = is_local ? t.local : t.remote;
        size_t begin  = std::max(offset, page);
        size_t end    = std::min(offset + t.length, page + page_size);

        ASSERT_LT(begin, end);
        prepare(t);
        uint64_t before = suspects();
        uint64_t again  = redone();
        int index       = side(is_local).fault(page, view(t.op, is_local), 1,
                                               tear, restore);
        uint64_t copied = counter("assist_fetch") + counter("assist_store");
        run(t.op, t.local, t.remote, t.length);
        EXPECT_EQ(1, page_table_fault_hits(side(is_local).table(), index));
        /* The fault is met once: the next try is complete and passes
         * verification */
        EXPECT_EQ(copied, counter("assist_fetch") + counter("assist_store"));

        /* The unaligned head of a scanned slice is a separate access */
        size_t head = (begin + 63) & ~size_t(63);
        if (!is_local && (t.op != PUT_ZCOPY) && (t.length <= scan_max()) &&
            (restore == 1) && (begin < head)) {
            end = std::min(end, head);
        }

        /* A slice with an absent page must not have passed verification */
        if (page + tear < end) {
            EXPECT_GT(suspects(), before)
                    << "op " << t.op << (is_local ? " local" : " remote")
                    << " length " << t.length << " page " << page << " tear "
                    << tear << " restore " << restore;
            EXPECT_GT(redone(), again);
        }
    }

    /* First, middle and last page, and those on both sides of the first border
     * between slices. It lies at a page border of the peer's memory, and the
     * first slice includes the rest of its page. */
    std::set<size_t> pages(const transfer &t, bool is_local) const
    {
        size_t offset = is_local ? t.local : t.remote;
        size_t border = (-t.remote % page_size) + slice();
        std::set<size_t> found;

        for (size_t at : {size_t(0), t.length / 2, t.length - 1, border - 1,
                          border}) {
            if (at < t.length) {
                found.insert((offset + at) & ~(page_size - 1));
            }
        }
        return found;
    }

    /* Pages that are absent entirely, from a line on, in the last line only,
     * and after the access */
    void try_pages(const transfer &t, bool is_local)
    {
        if (!has_pages(t.op, is_local) || !is_optimistic(t)) {
            return;
        }
        for (size_t page : pages(t, is_local)) {
            for (uint32_t tear : some<uint32_t>({0, 64, 2048, 4032, 4096})) {
                for (uint32_t restore : some<uint32_t>({0, 1, 2})) {
                    ASSERT_NO_FATAL_FAILURE(try_fault(t, is_local, page, tear,
                                                      restore));
                }
            }
        }
    }

    void try_lengths(op_t op, const std::vector<size_t> &lengths)
    {
        for (size_t length : some(lengths)) {
            if ((op == GET_BCOPY) && (length > max_bcopy())) {
                continue;
            }
            for (size_t skew : some<size_t>({0, 1, 63, 4000})) {
                transfer t = {op, 4096 + (skew * 7) % 4096, 8192 + skew,
                              length};
                ASSERT_NO_FATAL_FAILURE(try_pages(t, false));
                ASSERT_NO_FATAL_FAILURE(try_pages(t, true));
            }
        }
    }

    const std::vector<size_t> small = {1, 7, 8, 65, 4096, 8000};
    const std::vector<size_t> large = {8193, 16384, 65536, 100001};
};

/* Each way in which an operation is verified */
struct op_way {
    const char *name;
    op_t        op;
    bool        is_large;
};

inline std::string op_way_name(const ::testing::TestParamInfo<op_way> &info)
{
    return info.param.name;
}

inline const op_way op_ways[] = {{"get_bcopy", GET_BCOPY, false},
                                   {"get_zcopy_copied", GET_COPIED, false},
                                   {"get_zcopy_scanned", GET_ZCOPY, false},
                                   {"get_zcopy_by_states", GET_ZCOPY, true},
                                   {"put_zcopy", PUT_ZCOPY, true}};

#endif
