/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* States, replacement, twins and read-ahead of a window's pages */

#include "rmem_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>


class test_rmem_cache : public ::testing::Test {
protected:
    void TearDown() override
    {
        rmem_cache_cleanup(&m_cache);
    }

    void init(uint32_t pages, uint32_t frames, uint32_t twins)
    {
        ASSERT_EQ(0, rmem_cache_init(&m_cache, pages, frames, twins));
    }

    void evict(uint32_t max)
    {
        uint32_t victims[64];
        uint32_t count = rmem_cache_victims(&m_cache, victims, max);

        for (uint32_t i = 0; i < count; ++i) {
            if (m_cache.states[victims[i]] == RMEM_PAGE_DIRTY) {
                rmem_cache_clean(&m_cache, victims[i], true);
            }
            rmem_cache_evicted(&m_cache, victims[i]);
        }
    }

    /* What has to be true after each step */
    void check()
    {
        std::set<uint32_t> twins(m_cache.twins,
                                 m_cache.twins + m_cache.free_twins);
        uint32_t           here = 0, used = 0;

        for (uint32_t page = 0; page < m_cache.pages; ++page) {
            if (rmem_cache_is_here(&m_cache, page)) {
                rmem_frame_t *frame = rmem_cache_frame(&m_cache, page);

                ++here;
                ASSERT_EQ(page, frame->page);
                if (frame->twin < m_cache.max_twins) {
                    ++used;
                    ASSERT_TRUE(twins.insert(frame->twin).second);
                }
            }
        }
        ASSERT_EQ(here, m_cache.used_frames);
        ASSERT_EQ(m_cache.max_twins, m_cache.free_twins + used);
    }

    rmem_cache_t m_cache = {};
};

TEST_F(test_rmem_cache, random_steps_lose_nothing)
{
    const uint32_t pages = 100, frames = 24, twins = 5;
    std::mt19937   random(1);

    init(pages, frames, twins);
    for (unsigned step = 0; (step < 100000) && !HasFailure(); ++step) {
        uint32_t page = std::min(random() % pages, random() % pages);
        int      here = rmem_cache_is_here(&m_cache, page);

        if (!here && (m_cache.used_frames == frames)) {
            evict(4);
        } else if (!here) {
            rmem_cache_add(&m_cache, page, RMEM_PAGE_CLEAN);
        } else if (random() % 8 == 0) {
            rmem_cache_discard(&m_cache, page);
            ASSERT_EQ(RMEM_PAGE_VIRGIN, m_cache.states[page]);
        } else if (m_cache.states[page] == RMEM_PAGE_CLEAN) {
            rmem_cache_take_twin(&m_cache, page);
            m_cache.states[page] = RMEM_PAGE_DIRTY;
        } else {
            rmem_cache_clean(&m_cache, page, random() % 2);
        }
        check();
    }
}

/* Both queues are FIFOs; ghosts come to the second one */
TEST_F(test_rmem_cache, pages_leave_in_order)
{
    uint32_t victims[8];

    init(20, 8, 0);
    for (uint32_t page : {0, 1, 2, 3, 4, 5}) {
        rmem_cache_add(&m_cache, page, RMEM_PAGE_CLEAN);
    }
    evict(3); /* 0, 1, 2 */
    for (uint32_t page : {0, 2}) {
        rmem_cache_add(&m_cache, page, RMEM_PAGE_CLEAN);
    }
    ASSERT_EQ(2u, rmem_cache_victims(&m_cache, victims, 2));
    EXPECT_EQ((std::vector<uint32_t>{0, 3}),
              std::vector<uint32_t>(victims, victims + 2));
    evict(2);
    ASSERT_EQ(3u, rmem_cache_victims(&m_cache, victims, 4)); /* All */
    EXPECT_EQ((std::vector<uint32_t>{2, 4, 5}),
              std::vector<uint32_t>(victims, victims + 3));
}

TEST_F(test_rmem_cache, what_was_never_sent_stays_virgin)
{
    init(20, 10, 3);
    rmem_cache_add(&m_cache, 5, RMEM_PAGE_DIRTY);
    rmem_cache_clean(&m_cache, 5, false);
    EXPECT_EQ(RMEM_TWIN_ZEROS, rmem_cache_frame(&m_cache, 5)->twin);
    rmem_cache_clean(&m_cache, 5, true);
    EXPECT_EQ(RMEM_TWIN_NONE, rmem_cache_frame(&m_cache, 5)->twin);
    rmem_cache_clean(&m_cache, 5, false);
    evict(1);
    EXPECT_EQ(RMEM_PAGE_ABSENT, m_cache.states[5]);
}

TEST_F(test_rmem_cache, eight_streams_at_once)
{
    const uint32_t length = 16 + 4 + 1 + 16;
    unsigned       faults[9] = {};

    for (unsigned streams : {8, 9}) {
        uint32_t next[9];

        init(10000, 5000, 0);
        for (unsigned i = 0; i < streams; ++i) {
            next[i]   = i * 1000;
            faults[i] = 0;
        }
        for (unsigned round = 0; round < length; ++round) {
            for (unsigned i = 0; i < streams; ++i) {
                if (next[i] < i * 1000 + length) {
                    next[i] += rmem_cache_ahead(&m_cache, next[i]);
                    ++faults[i];
                }
            }
        }
        /* 1, 4, 16 and 16 pages, or one at a time */
        EXPECT_EQ((streams == 8) ? 4u : length, faults[0]);
        rmem_cache_cleanup(&m_cache);
    }
    init(10, 8, 0);
}

TEST_F(test_rmem_cache, a_stream_brings_equal_pages_of_the_window)
{
    init(40, 40, 0);
    m_cache.states[2] = RMEM_PAGE_ABSENT;
    EXPECT_EQ(1u, rmem_cache_ahead(&m_cache, 0));
    EXPECT_EQ(1u, rmem_cache_ahead(&m_cache, 1)); /* The next is not virgin */
    EXPECT_EQ(1u, rmem_cache_ahead(&m_cache, 2));
    EXPECT_EQ(10u, rmem_cache_ahead(&m_cache, 3)); /* A quarter of the frames */
    EXPECT_EQ(1u, rmem_cache_ahead(&m_cache, 37));
    EXPECT_EQ(2u, rmem_cache_ahead(&m_cache, 38)); /* The window ends */
}
