/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucm/events/nprdma_pace.h>

#include <gtest/gtest.h>

/* Whether blocks of huge pages are worth it, with times that the test tells */
class test_pace : public testing::Test {
protected:
    static constexpr size_t MiB  = 1 << 20;
    static constexpr uint64_t us = 1000;

    void slow(size_t length, int times = NPRDMA_PACE_ROW, uint64_t now = 0)
    {
        for (int i = 0; i < times; ++i) {
            nprdma_pace_zeroed(&pace, length, length / MiB * 61 * us, now);
        }
    }

    void fast(size_t length)
    {
        nprdma_pace_zeroed(&pace, length, length / MiB * 59 * us, 0);
    }

    bool keeps(size_t length, uint64_t now = 0)
    {
        return nprdma_pace_is_worth_it(&pace, length, now);
    }

    void SetUp() override
    {
        nprdma_pace_hot(&pace, MiB / 2, 5 * us);
    }

    nprdma_pace_t pace = {};
};

TEST_F(test_pace, nothing_is_known_at_first)
{
    pace = {};
    EXPECT_FALSE(nprdma_pace_has_hot(&pace));
    EXPECT_TRUE(keeps(SIZE_MAX));
    slow(8 * MiB, 100);
    EXPECT_TRUE(keeps(SIZE_MAX));
}

TEST_F(test_pace, slow_ones_are_not_kept)
{
    slow(8 * MiB, NPRDMA_PACE_ROW - 1);
    EXPECT_TRUE(keeps(8 * MiB));
    slow(8 * MiB, 1);
    EXPECT_FALSE(keeps(8 * MiB));
    EXPECT_FALSE(keeps(16 * MiB));
    EXPECT_TRUE(keeps(6 * MiB));
    slow(6 * MiB);
    EXPECT_FALSE(keeps(6 * MiB));
    EXPECT_TRUE(keeps(4 * MiB));
}

TEST_F(test_pace, not_in_a_row)
{
    for (int i = 0; i < 10; ++i) {
        slow(8 * MiB, NPRDMA_PACE_ROW - 1);
        fast(8 * MiB);
    }
    EXPECT_TRUE(keeps(8 * MiB));
}

TEST_F(test_pace, until_they_are_tried_again)
{
    slow(8 * MiB, NPRDMA_PACE_ROW, 1000);
    EXPECT_FALSE(keeps(8 * MiB, 1000 + NPRDMA_PACE_PAUSE - 1));
    EXPECT_TRUE(keeps(8 * MiB, 1000 + NPRDMA_PACE_PAUSE));
    /* As before: some in a row */
    slow(8 * MiB, NPRDMA_PACE_ROW - 1, 1000 + NPRDMA_PACE_PAUSE);
    EXPECT_TRUE(keeps(8 * MiB, 1000 + NPRDMA_PACE_PAUSE));
    slow(8 * MiB, 1, 1000 + NPRDMA_PACE_PAUSE);
    EXPECT_FALSE(keeps(8 * MiB, 1000 + NPRDMA_PACE_PAUSE));
}

TEST_F(test_pace, least_time_in_the_cache)
{
    nprdma_pace_hot(&pace, MiB / 2, 50 * us);
    slow(8 * MiB);
    EXPECT_FALSE(keeps(8 * MiB)) << "a higher one does not count";
    pace = {};
    nprdma_pace_hot(&pace, MiB / 2, 50 * us);
    slow(8 * MiB);
    EXPECT_TRUE(keeps(8 * MiB));
    nprdma_pace_hot(&pace, MiB / 2, 5 * us);
    slow(8 * MiB);
    EXPECT_FALSE(keeps(8 * MiB)) << "a lower one does";
}
