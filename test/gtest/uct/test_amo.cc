/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <algorithm>

class test_amo : public uct_pair_test {
protected:
    void SetUp() override
    {
        uct_pair_test::SetUp();
        m_remote.reset(new buffer(m_b->md(), 4096));
        m_rkey = m_a->unpack(m_remote->packed_key());
    }

    void TearDown() override
    {
        m_remote.reset();
        uct_pair_test::TearDown();
    }

    ucs_status_t post(uct_ep_h ep, uct_atomic_op_t op, uint32_t value)
    {
        return uct_ep_atomic32_post(ep, op, value, m_remote->address(8),
                                    m_rkey);
    }

    ucs_status_t post(uct_ep_h ep, uct_atomic_op_t op, uint64_t value)
    {
        return uct_ep_atomic64_post(ep, op, value, m_remote->address(8),
                                    m_rkey);
    }

    ucs_status_t fetch(uct_atomic_op_t op, uint32_t value, uint32_t *result,
                       uct_completion_t *comp)
    {
        return uct_ep_atomic32_fetch(m_ab, op, value, result,
                                     m_remote->address(8), m_rkey, comp);
    }

    ucs_status_t fetch(uct_atomic_op_t op, uint64_t value, uint64_t *result,
                       uct_completion_t *comp)
    {
        return uct_ep_atomic64_fetch(m_ab, op, value, result,
                                     m_remote->address(8), m_rkey, comp);
    }

    ucs_status_t cswap(uint32_t compare, uint32_t swap, uint32_t *result,
                       uct_completion_t *comp)
    {
        return uct_ep_atomic_cswap32(m_ab, compare, swap, m_remote->address(8),
                                     m_rkey, result, comp);
    }

    ucs_status_t cswap(uint64_t compare, uint64_t swap, uint64_t *result,
                       uct_completion_t *comp)
    {
        return uct_ep_atomic_cswap64(m_ab, compare, swap, m_remote->address(8),
                                     m_rkey, result, comp);
    }

    void complete(const std::function<ucs_status_t(uct_completion_t*)> &op)
    {
        completion comp;
        ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() { return op(&comp); }));
        m_a->wait([&]() { return comp.done; });
        EXPECT_EQ(UCS_OK, comp.status);
    }

    template<typename T> static T expected(uct_atomic_op_t op, T a, T b)
    {
        switch (op) {
        case UCT_ATOMIC_OP_ADD:
            return a + b;
        case UCT_ATOMIC_OP_AND:
            return a & b;
        case UCT_ATOMIC_OP_OR:
            return a | b;
        case UCT_ATOMIC_OP_XOR:
            return a ^ b;
        default:
            return b;
        }
    }

    template<typename T> void check()
    {
        T *word         = m_remote->ptr<T>(8);
        T value         = T(0xfedcba9876543210);
        uint64_t before = 0x1111111111111111, after = 0x2222222222222222;
        T result;

        *m_remote->ptr<uint64_t>(0)         = before;
        *m_remote->ptr<uint64_t>(8)         = ~UINT64_C(0);
        *m_remote->ptr<uint64_t>(16)        = after;
        for (auto op : {UCT_ATOMIC_OP_ADD, UCT_ATOMIC_OP_AND, UCT_ATOMIC_OP_OR,
                        UCT_ATOMIC_OP_XOR}) {
            *word = T(0x0f1e2d3c4b5a6978);
            T old = *word;
            ASSERT_EQ(UCS_OK, m_a->retry([&]() {
                return post(m_ab, op, value);
            }));
            m_a->flush(m_ab);
            EXPECT_EQ(expected(op, old, value), *word);
        }

        for (auto op : {UCT_ATOMIC_OP_ADD, UCT_ATOMIC_OP_AND, UCT_ATOMIC_OP_OR,
                        UCT_ATOMIC_OP_XOR, UCT_ATOMIC_OP_SWAP}) {
            *word = T(0x0f1e2d3c4b5a6978);
            T old = *word;
            complete([&](uct_completion_t *comp) {
                return fetch(op, value, &result, comp);
            });
            EXPECT_EQ(old, result);
            EXPECT_EQ(expected(op, old, value), *word);
        }

        *word = 5;
        complete([&](uct_completion_t *comp) {
            return cswap(T(6), value, &result, comp);
        });
        EXPECT_EQ(T(5), result);
        EXPECT_EQ(T(5), *word);
        complete([&](uct_completion_t *comp) {
            return cswap(T(5), value, &result, comp);
        });
        EXPECT_EQ(T(5), result);
        EXPECT_EQ(value, *word);

        EXPECT_EQ(before, *m_remote->ptr<uint64_t>(0));
        EXPECT_EQ(after, *m_remote->ptr<uint64_t>(16));
        if (sizeof(T) == 4) {
            EXPECT_EQ(~0u, *m_remote->ptr<uint32_t>(12));
        }
    }

    std::unique_ptr<buffer> m_remote;
    uct_rkey_t              m_rkey;
};

TEST_F(test_amo, all_32)
{
    check<uint32_t>();
}

TEST_F(test_amo, all_64)
{
    check<uint64_t>();
}

TEST_F(test_amo, unaligned)
{
    uint64_t result = 7;
    completion comp;

    *m_remote->ptr<uint64_t>(0) = *m_remote->ptr<uint64_t>(8) = 0;
    ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
        return uct_ep_atomic64_fetch(m_ab, UCT_ATOMIC_OP_ADD, 1, &result,
                                     m_remote->address(4), m_rkey, &comp);
    }));
    m_a->wait([&]() { return comp.done; });
    EXPECT_EQ(UCS_ERR_INVALID_PARAM, comp.status);
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

TEST_F(test_amo, posts_add_up)
{
    static const uint64_t count = 50000;
    uint64_t *word              = m_remote->ptr<uint64_t>(8);

    *word = 0;
    for (uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(UCS_OK, m_a->retry([&]() {
            return post(m_ab, UCT_ATOMIC_OP_ADD, i);
        }));
    }
    m_a->flush(m_ab);
    EXPECT_EQ(count * (count - 1) / 2, *word);
}
