/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <algorithm>

class test_amo : public uct_buffer_test {
protected:
    test_amo() : uct_buffer_test(4096) {}
};

TEST_F(test_amo, unaligned)
{
    uint64_t result = 7;

    *m_remote->ptr<uint64_t>(0) = *m_remote->ptr<uint64_t>(8) = 0;
    EXPECT_EQ(UCS_ERR_INVALID_PARAM,
              m_a->complete([&](uct_completion_t *comp) {
        return uct_ep_atomic64_fetch(m_ab, UCT_ATOMIC_OP_ADD, 1, &result,
                                     m_remote->address(4), m_rkey, comp);
    }));
    EXPECT_EQ(7u, result);
    EXPECT_EQ(0u, *m_remote->ptr<uint64_t>(0));
    EXPECT_EQ(0u, *m_remote->ptr<uint64_t>(8));
}

/* Three initiators, one of them the target, draw each ticket exactly once */
TEST_F(test_amo, exactly_once)
{
    static const uint64_t count = 3000;
    uct_ep_h bb                 = m_b->connect(m_b->address());
    std::vector<int> drawn(2 * count);
    uint64_t *word = m_remote->ptr<uint64_t>(8);

    *word = 0;
    for (uint64_t i = 0; i < count; ++i) {
        completion comp[2];
        uint64_t result[2];
        ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
            return uct_ep_atomic64_fetch(m_ab, UCT_ATOMIC_OP_ADD, 1, &result[0],
                                         m_remote->address(8), m_rkey,
                                         &comp[0]);
        }));
        ASSERT_EQ(UCS_INPROGRESS, m_b->retry([&]() {
            return uct_ep_atomic64_fetch(bb, UCT_ATOMIC_OP_ADD, 1, &result[1],
                                         m_remote->address(8), m_rkey,
                                         &comp[1]);
        }));
        __atomic_fetch_add(word, UINT64_C(1) << 32, __ATOMIC_RELAXED);
        m_a->wait([&]() { return comp[0].done && comp[1].done; });
        for (auto ticket : result) {
            ASSERT_LT((uint32_t)ticket, 2 * count);
            ++drawn[(uint32_t)ticket];
        }
    }
    EXPECT_EQ((long)(2 * count), std::count(drawn.begin(), drawn.end(), 1));
    EXPECT_EQ((count << 32) + 2 * count, *word);
}
