/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Pools of bounce slots: where their memory comes from. */

#include "provider.h"

#include <gtest/gtest.h>

namespace {

constexpr size_t   slot_size = 8448;
constexpr unsigned slots     = 32, min_slots = 4;

class test_bounce : public testing::TestWithParam<provider_alloc_t> {
protected:
    void SetUp() override
    {
        provider_counts   = {};
        provider_mrs_left = 1000;
        pool_set_budget(4 << 20);
    }

    void TearDown() override
    {
        EXPECT_EQ(0, provider_counts.bufs);
        EXPECT_EQ(0, provider_counts.mrs);
        EXPECT_EQ(0u, pool_pinned());
    }

    static bool gives() { return GetParam() == PROVIDER_GIVES; }

    static pool_t *open()
    {
        return pool_open(GetParam(), slot_size, slots, min_slots);
    }
};

TEST_P(test_bounce, memory_is_the_providers_if_it_gives_any)
{
    pool_t *pool = open();

    ASSERT_NE(nullptr, pool);
    EXPECT_EQ(slots, pool_use(pool));
    EXPECT_EQ(gives(), provider_counts.bufs);
    EXPECT_EQ(1, provider_counts.mrs);
    EXPECT_EQ(gives(), provider_counts.mrs_of_bufs);
    EXPECT_EQ(GetParam() == PROVIDER_REFUSES, provider_counts.refused);
    EXPECT_LE(slots * slot_size, pool_pinned());
    pool_close(pool);
}

TEST_P(test_bounce, grows_in_the_same_way)
{
    /* No more than the least at first: a quarter of this is less */
    pool_set_budget(512 << 10);
    pool_t *pool = open();
    ASSERT_NE(nullptr, pool);
    unsigned count = pool_use(pool);

    EXPECT_GT(slots, count);
    unsigned more = pool_grow(pool);
    EXPECT_LT(0u, more);
    EXPECT_EQ(count + more, pool_use(pool));
    EXPECT_EQ(gives() ? 2 : 0, provider_counts.mrs_of_bufs);
    pool_close(pool);
}

TEST_P(test_bounce, failed_registration_leaves_nothing)
{
    provider_mrs_left = 0;
    EXPECT_EQ(nullptr, open());
}

INSTANTIATE_TEST_SUITE_P(
        alloc, test_bounce,
        testing::Values(PROVIDER_HAS_NONE, PROVIDER_REFUSES, PROVIDER_GIVES),
        [](const auto &info) {
            return std::string((info.param == PROVIDER_HAS_NONE) ? "none" :
                               (info.param == PROVIDER_REFUSES) ? "refuses" :
                               "gives");
        });

} // namespace
