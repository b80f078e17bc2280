/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

extern "C" {
#include "uct/ib/nprdma/rma/nprdma_state_cache.h"
}

#include <gtest/gtest.h>

#include <memory>
#include <vector>

class test_state_cache : public ::testing::Test {
protected:
    using cache_t = std::unique_ptr<uct_nprdma_state_cache_t,
                                    decltype(&uct_nprdma_state_cache_destroy)>;

    static cache_t create(size_t size)
    {
        return cache_t(uct_nprdma_state_cache_create(size),
                       uct_nprdma_state_cache_destroy);
    }

    static std::vector<uint32_t> words(size_t count, uint32_t begin)
    {
        std::vector<uint32_t> result(count);
        for (size_t i = 0; i < count; ++i) {
            result[i] = ((begin + i) << 2) | 3;
        }
        return result;
    }

    static bool known(const cache_t &cache, uct_nprdma_peer_region_t region,
                      uint64_t page, const std::vector<uint32_t> &expected)
    {
        std::vector<uint32_t> found(expected.size());
        return uct_nprdma_state_cache_lookup(cache.get(), &region, page,
                                             found.size(), 3, found.data()) &&
               (found == expected);
    }

    static void keep(const cache_t &cache, uct_nprdma_peer_region_t region,
                     uint64_t page, const std::vector<uint32_t> &states)
    {
        uct_nprdma_state_cache_store(cache.get(), &region, page, states.size(),
                                     states.data());
    }

    /* Until the states are trusted, whatever the cache had before */
    static void settle(const cache_t &cache, uct_nprdma_peer_region_t region,
                       uint64_t page, const std::vector<uint32_t> &states)
    {
        for (int i = 0; i < 9; ++i) {
            keep(cache, region, page, states);
        }
    }

    const uct_nprdma_peer_region_t m_region = {17, 4};
};

TEST_F(test_state_cache, ranges)
{
    auto cache = create(1 << 20);

    for (uint64_t page : {uint64_t(0), uint64_t(1), uint64_t(63), uint64_t(64),
                          uint64_t(1000), uint64_t(1) << 50}) {
        for (size_t count : {1, 2, 63, 64, 65, 200, 1025}) {
            auto states = words(count, page + count);
            settle(cache, m_region, page, states);
            EXPECT_TRUE(known(cache, m_region, page, states));
            states = words(count, page + count + 5);
            settle(cache, m_region, page, states);
            EXPECT_TRUE(known(cache, m_region, page, states)) << "newer";
            uint32_t tail;
            EXPECT_TRUE(uct_nprdma_state_cache_lookup(
                    cache.get(), &m_region, page + count - 1, 1, 1, &tail));
            EXPECT_EQ(states.back(), tail);
        }
    }
}

TEST_F(test_state_cache, absent_and_unknown)
{
    auto cache  = create(1 << 16);
    auto states = words(100, 1);
    std::vector<uint32_t> found(101);

    keep(cache, m_region, 10, states);
    EXPECT_FALSE(uct_nprdma_state_cache_lookup(cache.get(), &m_region, 9, 2, 1,
                                               found.data()));
    EXPECT_FALSE(uct_nprdma_state_cache_lookup(cache.get(), &m_region, 10, 101,
                                               1, found.data()));
    states[70] &= ~2u; /* Valid for reading only */
    settle(cache, m_region, 10, states);
    EXPECT_TRUE(uct_nprdma_state_cache_lookup(cache.get(), &m_region, 10, 100,
                                              1, found.data()));
    EXPECT_FALSE(uct_nprdma_state_cache_lookup(cache.get(), &m_region, 10, 100,
                                               2, found.data()));
}

/* A state that has changed is trusted after it was seen unchanged eight times.
 * Other blocks have no influence. */
TEST_F(test_state_cache, changed_state_is_trusted_after_eight_equal_ones)
{
    auto cache  = create(1 << 16);
    auto states = words(192, 1);

    keep(cache, m_region, 0, states);
    EXPECT_TRUE(known(cache, m_region, 0, states));
    states[70] += 4;
    keep(cache, m_region, 70, {states[70]});
    for (int i = 0; i < 8; ++i) {
        EXPECT_FALSE(known(cache, m_region, 64, {states[64]})) << i;
        EXPECT_FALSE(known(cache, m_region, 0, states)) << i;
        keep(cache, m_region, 64, {states[64]});
    }
    EXPECT_TRUE(known(cache, m_region, 0, states));

    states[70] += 4;
    keep(cache, m_region, 70, {states[70]});
    EXPECT_FALSE(known(cache, m_region, 70, {states[70]}));
    EXPECT_TRUE(known(cache, m_region, 0, words(64, 1)));
    EXPECT_TRUE(known(cache, m_region, 128, words(64, 129)));
}

TEST_F(test_state_cache, size_is_bounded)
{
    auto none  = create(0);
    auto small = create(1); /* One set of the cache */
    size_t kept = 0;

    keep(none, m_region, 0, words(64, 1));
    EXPECT_FALSE(known(none, m_region, 0, words(64, 1)));

    for (uint64_t i = 0; i < 100; ++i) {
        keep(small, m_region, i * 64, words(64, i));
        EXPECT_TRUE(known(small, m_region, i * 64, words(64, i)));
    }
    for (uint64_t i = 0; i < 100; ++i) {
        kept += known(small, m_region, i * 64, words(64, i));
    }
    EXPECT_EQ(4u, kept);
}
