/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Page states that are compared or changed many at a time, in pairs where
 * possible. Every page of the range is, and no other one, at each offset and
 * for each count. */

#include <nprdma_page_state.h>

#include <gtest/gtest.h>

#include <thread>

class test_page_state : public ::testing::Test {
protected:
    static constexpr size_t most = 20;

    test_page_state()
    {
        for (size_t i = 0; i < most; ++i) {
            m_states[i] = word(i);
        }
    }

    /* A distinct count, and both bits */
    static uint32_t word(size_t i)
    {
        return ((uint32_t)(i + 0x1000) * NPRDMA_PAGE_COUNT) | NPRDMA_PAGE_BITS;
    }

    /* Every piece of the array that has a neighbour on each side */
    template<typename F> void each_piece(F f)
    {
        for (size_t first = 1; first < 6; ++first) {
            for (size_t count = 1; first + count < most; ++count) {
                SCOPED_TRACE(testing::Message()
                             << count << " pages from " << first);
                f(first, count);
            }
        }
    }

    alignas(8) nprdma_page_state_t m_states[most];
};

/* All of the requested states are loaded, and no others */
TEST_F(test_page_state, one_page_takes_a_bit_from_all)
{
    each_piece([&](size_t first, size_t count) {
        for (size_t i = 0; i < most; ++i) {
            bool within = (i >= first) && (i < first + count);
            for (uint32_t bit : {NPRDMA_PAGE_R, NPRDMA_PAGE_W}) {
                uint32_t words[most] = {};
                uint32_t left = NPRDMA_PAGE_BITS & ~(within ? bit : 0);

                m_states[i] = word(i) & ~bit;
                EXPECT_EQ(left, nprdma_page_load_all(&m_states[first], count,
                                                     words)) << i;
                for (size_t k = 0; k < most; ++k) {
                    EXPECT_EQ((k < count) ? m_states[first + k].load() : 0,
                              words[k]) << k;
                }
                EXPECT_EQ(left, nprdma_page_load_all(&m_states[first], count,
                                                     NULL)) << i;
                m_states[i] = word(i);
            }
        }
    });
}

TEST_F(test_page_state, one_page_that_has_changed_is_seen)
{
    each_piece([&](size_t first, size_t count) {
        uint32_t words[most];

        nprdma_page_load_all(&m_states[first], count, words);
        EXPECT_TRUE(nprdma_page_equal_all(&m_states[first], count, words));
        for (size_t i = 0; i < most; ++i) {
            /* The bits are the same and the count differs: the page was absent
             * meanwhile */
            m_states[i] = word(i) + 2 * NPRDMA_PAGE_COUNT;
            EXPECT_EQ((i < first) || (i >= first + count),
                      nprdma_page_equal_all(&m_states[first], count, words))
                    << i;
            m_states[i] = word(i);
        }
    });
}

TEST_F(test_page_state, clears_the_requested_states)
{
    each_piece([&](size_t first, size_t count) {
        for (uint32_t bits : {NPRDMA_PAGE_R, NPRDMA_PAGE_W, NPRDMA_PAGE_BITS}) {
            nprdma_page_state_t expected[most];
            size_t cleared = 0;

            for (size_t i = 0; i < most; ++i) {
                /* Neighbours differ: none, one, the other, both bits */
                m_states[i] = (word(i) & ~NPRDMA_PAGE_BITS) |
                              (uint32_t)((i * 7 + first + count) % 4);
                expected[i] = m_states[i].load();
                if ((i >= first) && (i < first + count)) {
                    cleared += !!(nprdma_page_clear(&expected[i], bits) & bits);
                }
            }
            EXPECT_EQ(cleared,
                      nprdma_page_clear_all(&m_states[first], count, bits));
            for (size_t i = 0; i < most; ++i) {
                EXPECT_EQ(expected[i].load(), m_states[i].load()) << i;
            }
            EXPECT_EQ(0u, nprdma_page_clear_all(&m_states[first], count, bits));
        }
    });
}

TEST_F(test_page_state, a_pair_changes_as_a_whole)
{
    for (size_t changed : {0, 1, 2}) {
        uint32_t words[2] = {word(4), word(5)};
        uint32_t next[2]  = {word(14), word(15)};

        m_states[4] = words[0];
        m_states[5] = words[1];
        if (changed < 2) {
            words[changed] += NPRDMA_PAGE_COUNT;
        }
        EXPECT_EQ(changed == 2,
                  nprdma_page_change_pair(&m_states[4], words, next));
        EXPECT_EQ(word((changed == 2) ? 14 : 4), m_states[4]) << changed;
        EXPECT_EQ(word((changed == 2) ? 15 : 5), m_states[5]) << changed;
        EXPECT_EQ(word(3), m_states[3]);
        EXPECT_EQ(word(6), m_states[6]);
    }
}

/* No change of another thread, of one page of a pair, is lost */
TEST_F(test_page_state, clears_beside_a_thread_that_sets)
{
    static constexpr uint32_t times = 100000;
    size_t cleared = 0;

    for (size_t i = 4; i < 8; ++i) {
        m_states[i] = 0;
    }
    std::thread setter([&]() {
        for (uint32_t i = 0; i < times;) {
            auto *state = &m_states[4 + i % 4];
            i += nprdma_page_change(state, nprdma_page_load(state) &
                                    ~NPRDMA_PAGE_BITS, NPRDMA_PAGE_R);
        }
    });
    while (cleared < times) {
        cleared += nprdma_page_clear_all(&m_states[4], 4, NPRDMA_PAGE_BITS);
    }
    setter.join();
    EXPECT_EQ(times, cleared);
    for (size_t i = 4; i < 8; ++i) {
        /* Each was set and cleared a quarter of the times */
        EXPECT_EQ(times / 2 * NPRDMA_PAGE_COUNT, m_states[i]) << i;
    }
}
