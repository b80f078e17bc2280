/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

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
    static constexpr size_t scan_max = 8192;

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
        if (!is_local && (t.op != PUT_ZCOPY) && (t.length <= scan_max) &&
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

static std::string op_way_name(const ::testing::TestParamInfo<op_way> &info)
{
    return info.param.name;
}

static const op_way op_ways[] = {{"get_bcopy", GET_BCOPY, false},
                                 {"get_zcopy_copied", GET_COPIED, false},
                                 {"get_zcopy_scanned", GET_ZCOPY, false},
                                 {"get_zcopy_by_states", GET_ZCOPY, true},
                                 {"put_zcopy", PUT_ZCOPY, true}};

class test_op_plan_ways : public test_op_plan,
                          public ::testing::WithParamInterface<op_way> {
};

TEST_P(test_op_plan_ways, every_fault_is_repaired)
{
    make(1 << 18);
    try_lengths(GetParam().op, GetParam().is_large ? large : small);
}

INSTANTIATE_TEST_SUITE_P(all, test_op_plan_ways,
                         ::testing::ValuesIn(op_ways), op_way_name);

/* The state cache is empty: each operation reads the states first, and waits
 * for them */
class test_op_plan_uncached : public test_op_plan_ways {
protected:
    test_op_plan_uncached() { m_config["STATE_CACHE"] = "0"; }
};

TEST_P(test_op_plan_uncached, every_fault_is_repaired)
{
    make(1 << 18);
    try_lengths(GetParam().op, large);
}

INSTANTIATE_TEST_SUITE_P(all, test_op_plan_uncached,
                         ::testing::ValuesIn(op_ways + 3, op_ways + 5),
                         op_way_name);

/* Slices of the default size. Only those that met an absent page are
 * repeated. */
class test_op_plan_slices : public test_op_plan_ways {
protected:
    static constexpr size_t default_slice = 512 << 10;

    size_t slice() const override { return default_slice; }

    test_op_plan_slices() { m_config.erase("SLICE"); }
};

TEST_P(test_op_plan_slices, every_fault_is_repaired)
{
    make(2 * default_slice + 16 * page_size);
    uint64_t slices = counter("nic_slices");
    run(GetParam().op, 0, 0, 2 * default_slice);
    EXPECT_EQ(slices + 2, counter("nic_slices"));
    try_lengths(GetParam().op, {(256 << 10) + 1, 2 * default_slice - 3});
}

INSTANTIATE_TEST_SUITE_P(all, test_op_plan_slices,
                         ::testing::ValuesIn(op_ways + 3, op_ways + 5),
                         op_way_name);

/* Packets end at multiples of their size from the start of a READ. A READ that
 * does not begin at a line is torn in the middle of lines. */
TEST_F(test_op_plan, torn_where_packets_end)
{
    make(1 << 18);
    for (op_t op : {GET_BCOPY, GET_ZCOPY}) {
        for (size_t skew : {8, 36, 56}) {
            for (uint32_t tear : {64, 256, 1024}) {
                /* To the end of the line that would be torn */
                transfer t = {op, 0, 8192 + skew, tear + 64 - skew};
                for (int access = 1; access <= 2; ++access) {
                    prepare(t);
                    m_remote->fault(8192, PAGE_R, access, tear, 1, true);
                    run(op, t.local, t.remote, t.length);
                }
            }
        }
    }
}

/* A page that is valid for reading need not be valid for writing */
TEST_F(test_op_plan, readable_is_not_writable)
{
    make(1 << 18);
    for (size_t length : {size_t(9000), size_t(100000)}) {
        for (bool warm : {false, true}) {
            m_remote->evict(4096, 3 * page_size, PAGE_W);
            if (warm) {
                run(GET_ZCOPY, 0, 0, 1 << 18); /* Now the states are cached */
            }
            run(PUT_ZCOPY, 5, 1000, length);
            m_local->evict(4096, 3 * page_size, PAGE_W);
            run(GET_ZCOPY, 1000, 5, length);
        }
    }
}

/* Pages that vanished before the operation, not during it */
TEST_F(test_op_plan, absent_before)
{
    make(1 << 20);
    for (op_t op : {GET_BCOPY, GET_ZCOPY, PUT_ZCOPY}) {
        for (size_t length : {size_t(1), size_t(8000), size_t(8193),
                              size_t(300000)}) {
            if ((op == GET_BCOPY) && (length > max_bcopy())) {
                continue;
            }
            for (bool is_local : {false, true}) {
                m_remote->evict(0, m_remote->length());
                if (is_local) {
                    m_local->evict(0, m_local->length());
                }
                run(op, 3, 4093, length);
            }
        }
    }
    EXPECT_GT(counter("assist_populate"), 0u);
}

/* A slice that never finds its pages is copied by software, after exactly three
 * tries */
TEST_F(test_op_plan, copies_by_software_after_three_tries)
{
    make(1 << 18);
    for (op_t op : {GET_ZCOPY, PUT_ZCOPY}) {
        for (bool is_local : {false, true}) {
            transfer t = {op, 0, 0, 20000};
            prepare(t);
            uint64_t copied = counter("assist_fetch") + counter("assist_store");
            uint64_t redone = counter("redone_slices");
            /* Each access consumes the first entry that is left, so each one
             * meets a fault */
            for (int i = 0; i < 20; ++i) {
                side(is_local).fault(4096, view(op, is_local), 1, 0, 1);
            }
            run(op, t.local, t.remote, t.length);
            EXPECT_EQ(copied + 1,
                      counter("assist_fetch") + counter("assist_store"));
            EXPECT_EQ(redone + 2, counter("redone_slices"));
        }
    }
}
