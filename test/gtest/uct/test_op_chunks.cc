/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op_plan.h"

#include <thread>

/* The NIC looks a page up for each 256 bytes, as a NIC may do for each packet.
 * Therefore a page can arrive partly as data and partly as signature. */
class test_op_chunks : public test_op_plan,
                       public ::testing::WithParamInterface<op_way> {
protected:
    static constexpr size_t chunk = 256;

    config_t config() override
    {
        config_t config = test_op_plan::config();
        config["FAULT"] = "granule=" + std::to_string(chunk);
        return config;
    }

    /*
     * Holds the NIC at the first chunk of a page, and takes the page meanwhile.
     *
     * @return Whether the page stayed absent. The target's service populates
     *         pages ahead for an earlier operation, and may bring it back.
     */
    bool lose_at(int point, const transfer &t, bool is_local, size_t page)
    {
        paged_buffer &side = this->side(is_local);
        size_t lost        = page_size / chunk - (point != GATE_CHUNK_BEGIN);
        bool is_scanned    = !is_local && (t.op != PUT_ZCOPY) &&
                             (t.length <= scan_max());

        prepare(t);
        uint64_t doubts = suspects(), again = redone();
        uint64_t lines  = counter("suspect_lines");
        auto before     = side.stats();
        page_table_gate_arm(side.table(), point, side.ptr(page));
        std::thread thread([&]() {
            EXPECT_EQ(0, page_table_gate_wait(side.table(), point, 60000));
            side.evict(page, 1);
            page_table_gate_release(side.table(), point);
        });
        run(t.op, t.local, t.remote, t.length);
        thread.join();
        auto after   = side.stats();
        size_t count = after.absent_reads + after.absent_writes -
                       before.absent_reads - before.absent_writes;

        /* No chunk outside of the lost ones misses its page */
        EXPECT_LE(count, lost);
        if (is_scanned) {
            EXPECT_EQ(lines + count * chunk / 64, counter("suspect_lines"));
        }
        if (!is_scanned || (count > 0)) {
            EXPECT_LT(doubts, suspects());
            EXPECT_EQ(again + 1, redone());
        }
        return count == lost;
    }

    void expect_lost(int point, const transfer &t, bool is_local, size_t page)
    {
        bool is_lost = false;

        SCOPED_TRACE(testing::Message()
                     << "point " << point << " op " << t.op
                     << (is_local ? " local" : " remote") << " length "
                     << t.length << " page " << page);
        for (int i = 0; (i < 20) && !is_lost; ++i) {
            is_lost = lose_at(point, t, is_local, page);
        }
        EXPECT_TRUE(is_lost);
    }

    void lose(op_t op, size_t length)
    {
        make(1 << 18);
        for (int point : {GATE_CHUNK_BEGIN, GATE_CHUNK_CHECKED,
                          GATE_CHUNK_END}) {
            for (bool is_local : {false, true}) {
                if (!has_pages(op, is_local)) {
                    continue;
                }
                transfer t   = {op, 4096, 8192, length};
                size_t begin = is_local ? t.local : t.remote;
                /* The last page that the transfer covers entirely */
                size_t last  = (length - page_size) & ~(page_size - 1);
                for (size_t page : {begin, begin + last}) {
                    expect_lost(point, t, is_local, page);
                }
            }
        }
    }
};

constexpr size_t test_op_chunks::chunk;

TEST_P(test_op_chunks, every_fault_is_repaired)
{
    make(1 << 18);
    if (GetParam().is_large) {
        try_lengths(GetParam().op, {8193, 100001});
    } else {
        try_lengths(GetParam().op, {257, 8000});
    }
}

TEST_P(test_op_chunks, page_lost_at_a_chunk_is_found)
{
    lose(GetParam().op, GetParam().is_large ? 100001 : 8000);
}

INSTANTIATE_TEST_SUITE_P(all, test_op_chunks, ::testing::ValuesIn(op_ways),
                         op_way_name);
