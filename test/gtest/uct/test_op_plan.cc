/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op_plan.h"

#include <cstring>

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

/* Scans up to the default size */
class test_op_plan_large_scan : public test_op_plan {
protected:
    size_t scan_max() const override { return 32768; }

    config_t config() override
    {
        config_t config = test_op_plan::config();
        config.erase("SCAN_MAX");
        return config;
    }
};

TEST_F(test_op_plan_large_scan, get_zcopy)
{
    make(1 << 18);
    for (size_t length : {scan_max(), scan_max() + 1}) {
        uint64_t reads = counter("state_reads");
        run(GET_ZCOPY, 4096, 8192, length);
        EXPECT_EQ(length <= scan_max(), counter("state_reads") == reads);
    }
    try_lengths(GET_ZCOPY, {8193, 20000, 32767, 32768});
}

/* The state cache is empty: each operation reads the states first, and waits
 * for them */
class test_op_plan_uncached : public test_op_plan_ways {
protected:
    config_t config() override
    {
        config_t config = test_op_plan::config();
        config["STATE_CACHE"] = "0";
        return config;
    }
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

    config_t config() override
    {
        config_t config = test_op_plan::config();
        config.erase("SLICE");
        return config;
    }
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

/* A small get of an absent page takes one request, whose reply has the data.
 * The page is present for the next one. */
TEST_F(test_op_plan, small_get_is_fetched)
{
    make(1 << 16);
    for (op_t op : {GET_BCOPY, GET_COPIED}) {
        for (size_t length : {size_t(1), size_t(4000), size_t(8192)}) {
            prepare({op, 0, 0, m_local->length()});
            m_remote->evict(0, m_remote->length());
            uint64_t small     = counter("assist_small");
            uint64_t populates = counter("assist_populate");
            uint64_t hits      = counter("nic_hits");
            run(op, 5, 4000, length);
            EXPECT_EQ(small + 1, counter("assist_small"));
            EXPECT_EQ(populates, counter("assist_populate"));
            EXPECT_EQ(hits, counter("nic_hits"));

            m_a->wait([&]() { return m_remote->has(4000, length, PAGE_R); });
            run(op, 5, 4000, length);
            EXPECT_EQ(small + 1, counter("assist_small"));
            EXPECT_EQ(hits + 1, counter("nic_hits"));
        }
    }
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
