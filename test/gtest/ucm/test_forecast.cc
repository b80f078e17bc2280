/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucm/events/nprdma_forecast.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace {
constexpr size_t KiB    = 1024;
constexpr size_t MiB    = 1024 * KiB;
constexpr size_t piece  = NPRDMA_FORECAST_PIECE;
constexpr int    streak = NPRDMA_FORECAST_STREAK;

nprdma_span_t span(uintptr_t start, size_t length)
{
    return nprdma_span(start, start + length);
}
}

/* The table, with addresses that stand for nothing */
class test_forecast : public ::testing::Test {
protected:
    void SetUp() override
    {
        forecast = (nprdma_forecast_t*)calloc(1, nprdma_forecast_size());
        ASSERT_NE(nullptr, forecast);
        fill(base - MiB, 4 * KiB); /* From the first operation on */
    }

    void TearDown() override
    {
        free(forecast);
    }

    nprdma_forecast_stats_t stats()
    {
        nprdma_forecast_stats_t result;
        nprdma_forecast_query(forecast, &result);
        return result;
    }

    void map(uintptr_t start, size_t length, int is_plain = 1)
    {
        nprdma_forecast_mapped(forecast, span(start, length), is_plain);
    }

    void fill(uintptr_t start, size_t length)
    {
        nprdma_forecast_filled(forecast, span(start, length));
    }

    void unmap(uintptr_t start, size_t length)
    {
        nprdma_forecast_taken(forecast, span(start, length),
                              span(start, length));
    }

    /* `count` blocks that are mapped at the same time, and filled */
    void pass(size_t length, int count = 1, int times = 1)
    {
        for (int time = 0; time < times; ++time) {
            for (int i = 0; i < count; ++i) {
                map(base + i * length, length);
                fill(base + i * length, length);
            }
            for (int i = 0; i < count; ++i) {
                unmap(base + i * length, length);
            }
        }
    }

    /* Bytes that are brought in, each of them once and in order */
    size_t bring_in(bool is_done = true)
    {
        nprdma_forecast_piece_t next;
        size_t total = 0;

        while (nprdma_forecast_peek(forecast, &next)) {
            EXPECT_LE(next.span.end - next.span.start, piece);
            EXPECT_TRUE(nprdma_forecast_begin(forecast, &next));
            total += next.span.end - next.span.start;
            nprdma_forecast_end(forecast, &next, is_done);
        }
        return total;
    }

    bool expects(size_t length, uintptr_t start = base)
    {
        uint64_t before = stats().expected;
        map(start, length);
        bool result = (stats().expected > before);
        EXPECT_EQ(result ? length : 0, bring_in());
        fill(start, length); /* Does not end the streak */
        unmap(start, length);
        return result;
    }

    static constexpr uintptr_t base = 1ul << 32;
    nprdma_forecast_t *forecast     = nullptr;
};

TEST_F(test_forecast, blocks_in_a_row)
{
    for (int i = 0; i < streak; ++i) {
        EXPECT_FALSE(expects(MiB)) << i;
    }
    EXPECT_TRUE(expects(MiB));
    EXPECT_TRUE(expects(MiB, 2 * base)) << "the address does not matter";
    EXPECT_FALSE(expects(2 * MiB)) << "of another length";
    EXPECT_FALSE(expects(MiB - 4 * KiB));
    EXPECT_TRUE(expects(MiB));
    EXPECT_EQ(3u, stats().expected);
    EXPECT_EQ(0u, stats().unused);
}

TEST_F(test_forecast, a_block_that_was_not_filled_ends_it)
{
    pass(MiB, 1, streak);
    map(base, MiB);
    EXPECT_EQ(MiB, bring_in());
    unmap(base, MiB);
    EXPECT_EQ(1u, stats().unused);
    for (int i = 0; i < streak; ++i) {
        EXPECT_FALSE(expects(MiB)) << i;
    }
    EXPECT_TRUE(expects(MiB));
}

/* Memory hooks cost nothing while no operation fills memory */
TEST_F(test_forecast, nothing_is_known_before_the_first_operation)
{
    memset(forecast, 0, nprdma_forecast_size());
    map(base, MiB);
    fill(base, MiB);
    EXPECT_EQ(0u, stats().filled_bytes);
    unmap(base, MiB);
    pass(MiB, 1, streak);
    EXPECT_TRUE(expects(MiB));
}

TEST_F(test_forecast, nearly_all_of_a_block_is_filled)
{
    /* The buffer begins behind the header of an allocator */
    for (int i = 0; i < streak; ++i) {
        map(base, MiB + 4 * KiB);
        fill(base + 4 * KiB, MiB);
        unmap(base, MiB + 4 * KiB);
    }
    EXPECT_TRUE(expects(MiB + 4 * KiB));

    for (int i = 0; i < 2 * streak; ++i) {
        map(base, 2 * MiB);
        fill(base, MiB);
        fill(base + MiB, MiB);                 /* By two halves */
        fill(base - 4 * KiB, 2 * MiB);         /* Before and behind it */
        fill(base + 4 * KiB, 2 * MiB);
        unmap(base, 2 * MiB);
    }
    EXPECT_FALSE(expects(2 * MiB));
}

TEST_F(test_forecast, a_buffer_that_stays_is_one_block)
{
    map(base, MiB);
    for (int i = 0; i < 10 * streak; ++i) {
        fill(base, MiB);
    }
    EXPECT_EQ(MiB, stats().filled_bytes);
    unmap(base, MiB);
    EXPECT_FALSE(expects(MiB)) << "one block was filled, if often";
    EXPECT_EQ(0u, stats().filled_bytes);
}

TEST_F(test_forecast, never_more_than_was_filled_at_once)
{
    pass(MiB, 3, streak);
    uint64_t before = stats().expected;
    for (int i = 0; i < 5; ++i) {
        map(base + i * MiB, MiB);
    }
    EXPECT_EQ(before + 3, stats().expected);
    EXPECT_EQ(3 * MiB, stats().expected_bytes);
    EXPECT_EQ(3 * MiB, bring_in());

    /* Filled ones count as well: the fourth is not expected, nor is a sixth */
    fill(base, MiB);
    fill(base + 3 * MiB, MiB);
    EXPECT_EQ(2 * MiB, stats().expected_bytes);
    EXPECT_EQ(2 * MiB, stats().filled_bytes);
    map(base + 5 * MiB, MiB);
    EXPECT_EQ(before + 3, stats().expected);
    for (int i = 0; i < 6; ++i) {
        unmap(base + i * MiB, MiB);
    }
    EXPECT_EQ(0u, stats().expected_bytes);
    EXPECT_EQ(0u, stats().filled_bytes);
}

TEST_F(test_forecast, only_plain_memory_of_some_length)
{
    pass(64 * KiB, 1, 2 * streak);
    EXPECT_FALSE(expects(64 * KiB));
    pass(128 * KiB, 1, streak);
    map(base, 128 * KiB, 0);
    EXPECT_EQ(0u, stats().expected);
    EXPECT_EQ(0u, bring_in());
    EXPECT_TRUE(expects(128 * KiB));
}

TEST_F(test_forecast, buffers_to_send_from_are_not_judged)
{
    pass(MiB, 2, streak);
    uint64_t before = stats().expected;
    for (int i = 0; i < 10; ++i) {
        map(base, MiB);
        map(base + MiB, MiB);
        fill(base, MiB);
        nprdma_forecast_shown(forecast, span(base + MiB, MiB));
        EXPECT_EQ(0u, stats().expected_bytes);
        nprdma_forecast_shown(forecast, span(base, MiB)); /* Goes on */
        unmap(base, MiB);
        unmap(base + MiB, MiB);
    }
    EXPECT_EQ(0u, stats().unused);
    EXPECT_EQ(before + 20, stats().expected);
    EXPECT_TRUE(expects(MiB));
}

/* A buffer to send from, then one to receive into, of the same length */
TEST_F(test_forecast, buffers_in_pairs)
{
    pass(MiB, 1, streak);
    for (int i = 0; i < 10; ++i) {
        map(base, MiB);
        map(base + MiB, MiB);
        nprdma_forecast_shown(forecast, span(base, MiB));
        EXPECT_EQ(MiB, stats().expected_bytes);
        nprdma_forecast_piece_t next;
        ASSERT_TRUE(nprdma_forecast_peek(forecast, &next));
        EXPECT_EQ(base + MiB, next.span.start);
        EXPECT_EQ(MiB, bring_in());
        fill(base + MiB, MiB);
        unmap(base, MiB);
        unmap(base + MiB, MiB);
    }
    EXPECT_EQ(20u, stats().expected);
    EXPECT_EQ(0u, stats().unused);
    EXPECT_EQ(0u, stats().expected_bytes);
    EXPECT_EQ(0u, stats().filled_bytes);
}

TEST_F(test_forecast, what_is_taken_is_forgotten)
{
    pass(MiB, 1, streak);
    map(base, MiB);
    /* MADV_DONTNEED of a part, or mremap() */
    nprdma_forecast_taken(forecast, span(base + 8 * KiB, 4 * KiB),
                          nprdma_span(0, 0));
    EXPECT_EQ(0u, bring_in());
    EXPECT_EQ(1u, stats().unused);
    EXPECT_EQ(0u, stats().expected_bytes);

    /* A new mapping there, where no hook has seen the old one go */
    pass(MiB, 1, streak);
    map(base, MiB);
    map(base - MiB, 4 * MiB, 0);
    EXPECT_EQ(0u, bring_in());
    EXPECT_EQ(0u, stats().expected_bytes);
}

TEST_F(test_forecast, an_operation_needs_no_help)
{
    pass(MiB, 1, streak);
    map(base, MiB);
    fill(base, MiB); /* Before anything was brought in: it does that itself */
    EXPECT_EQ(0u, bring_in());
    unmap(base, MiB);
    EXPECT_EQ(0u, stats().unused);
    EXPECT_TRUE(expects(MiB));
}

TEST_F(test_forecast, what_fails_is_left_alone)
{
    pass(MiB, 1, streak);
    map(base, MiB);
    EXPECT_EQ(piece, bring_in(false));
    fill(base, MiB);
    unmap(base, MiB);
    EXPECT_TRUE(expects(MiB));
}

TEST_F(test_forecast, many_blocks_and_lengths)
{
    const int count = 2 * NPRDMA_FORECAST_NUM_BLOCKS;

    pass(MiB, count, 2);
    EXPECT_TRUE(expects(MiB));
    for (int i = 1; i <= NPRDMA_FORECAST_NUM_LENGTHS; ++i) {
        pass(MiB + i * 64 * KiB, 1, streak);
    }
    EXPECT_FALSE(expects(MiB)) << "others have taken its place";
    EXPECT_TRUE(expects(MiB + 2 * 64 * KiB));
    EXPECT_EQ(0u, stats().filled_bytes);
}

/* Two threads have seen the same piece */
TEST_F(test_forecast, one_thread_has_a_piece)
{
    nprdma_forecast_piece_t first, second;

    pass(MiB, 1, streak);
    map(base, MiB);
    ASSERT_TRUE(nprdma_forecast_peek(forecast, &first));
    ASSERT_TRUE(nprdma_forecast_peek(forecast, &second));
    ASSERT_TRUE(nprdma_forecast_begin(forecast, &first));
    EXPECT_FALSE(nprdma_forecast_begin(forecast, &second));
    EXPECT_FALSE(nprdma_forecast_peek(forecast, &second)) << "no other block";
    nprdma_forecast_end(forecast, &first, 1);
    EXPECT_FALSE(nprdma_forecast_begin(forecast, &first)) << "it is done";

    ASSERT_TRUE(nprdma_forecast_peek(forecast, &first));
    EXPECT_EQ(base + piece, first.span.start);
    unmap(base, MiB);
    map(base, MiB);
    EXPECT_FALSE(nprdma_forecast_begin(forecast, &first)) << "another block";
}

/* An operation on a block that another thread brings in counts as any other */
TEST_F(test_forecast, filled_while_a_piece_comes_in)
{
    nprdma_forecast_piece_t next;

    pass(MiB, 1, streak);
    for (bool is_ended : {true, false}) {
        map(base, MiB);
        ASSERT_TRUE(nprdma_forecast_peek(forecast, &next));
        std::thread([&]() { nprdma_forecast_begin(forecast, &next); }).join();
        fill(base, MiB);
        if (is_ended) {
            nprdma_forecast_end(forecast, &next, 1);
            EXPECT_EQ(0u, bring_in()) << "the operation does the rest";
            EXPECT_EQ(MiB, stats().filled_bytes);
            unmap(base, MiB);
        } else {
            unmap(base, MiB); /* Gives up */
            nprdma_forecast_end(forecast, &next, 1);
        }
        EXPECT_EQ(0u, stats().unused);
        EXPECT_EQ(0u, stats().expected_bytes);
        EXPECT_EQ(0u, stats().filled_bytes);
    }
    EXPECT_TRUE(expects(MiB));
}

TEST_F(test_forecast, hooks_wait_for_a_piece)
{
    nprdma_forecast_piece_t next;
    std::atomic<int> step{0};

    pass(MiB, 1, streak);
    map(base, MiB);
    ASSERT_TRUE(nprdma_forecast_peek(forecast, &next));
    std::thread thread([&]() {
        ASSERT_TRUE(nprdma_forecast_begin(forecast, &next));
        step = 1;
        for (int i = 0; i < 1000; ++i) {
            sched_yield();
        }
        step = 2;
        nprdma_forecast_end(forecast, &next, 1);
    });
    while (step == 0) {
        sched_yield();
    }
    unmap(2 * base, MiB); /* Elsewhere */
    unmap(base, MiB);
    EXPECT_EQ(2, step) << "the addresses get another meaning now";
    thread.join();
    EXPECT_EQ(0u, bring_in());
    EXPECT_EQ(0u, stats().expected_bytes);
}

/* The thread that has the piece waits for a page fault that the thread in the
 * hook has to resolve */
TEST_F(test_forecast, hooks_do_not_wait_for_ever)
{
    nprdma_forecast_piece_t next;
    std::atomic<int> step{0};

    pass(MiB, 1, streak);
    map(base, MiB);
    ASSERT_TRUE(nprdma_forecast_peek(forecast, &next));
    std::thread thread([&]() {
        ASSERT_TRUE(nprdma_forecast_begin(forecast, &next));
        step = 1;
        while (step == 1) {
            sched_yield();
        }
        nprdma_forecast_end(forecast, &next, 1);
    });
    while (step == 0) {
        sched_yield();
    }
    unmap(base, MiB);
    step = 2;
    thread.join();
    EXPECT_EQ(0u, bring_in()) << "the rest of a block that is gone";
    EXPECT_EQ(0u, stats().expected_bytes);
}

/* A signal handler unmaps what the thread that it has interrupted brings in */
TEST_F(test_forecast, interrupted_thread)
{
    nprdma_forecast_piece_t next;

    pass(MiB, 1, streak);
    map(base, MiB);
    ASSERT_TRUE(nprdma_forecast_peek(forecast, &next));
    ASSERT_TRUE(nprdma_forecast_begin(forecast, &next));
    unmap(base, MiB);
    nprdma_forecast_end(forecast, &next, 1);
    EXPECT_EQ(0u, bring_in());
    EXPECT_EQ(0u, stats().expected_bytes);
}

/* Sums are right in the end, whatever threads do, and no piece is of a block
 * that its owner has unmapped */
TEST_F(test_forecast, storm)
{
    constexpr int num_threads = 6;
    std::atomic<int> mapped[num_threads] = {};
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;

    for (int t = 0; t < num_threads; ++t) {
        threads.emplace_back([&, t]() {
            std::minstd_rand random(t + 1);
            uintptr_t start = base * (t + 1);
            for (int i = 0; i < 20000; ++i) {
                mapped[t] = 1;
                map(start, 512 * KiB);
                if (random() % 64 != 0) {
                    fill(start, 512 * KiB);
                } else if (random() % 2) {
                    nprdma_forecast_shown(forecast, span(start, 512 * KiB));
                }
                unmap(start, 512 * KiB);
                mapped[t] = 0;
            }
        });
    }
    std::thread other([&]() {
        nprdma_forecast_piece_t next;
        while (!stop) {
            if (nprdma_forecast_peek(forecast, &next) &&
                nprdma_forecast_begin(forecast, &next)) {
                int t = next.span.start / base - 1;
                for (int i = 0; i < 20; ++i) {
                    EXPECT_EQ(1, mapped[t]);
                }
                nprdma_forecast_end(forecast, &next, 1);
            }
        }
    });
    for (auto &thread : threads) {
        thread.join();
    }
    stop = true;
    other.join();
    EXPECT_GT(stats().expected, 0u);
    EXPECT_EQ(0u, stats().expected_bytes);
    EXPECT_EQ(0u, stats().filled_bytes);
    EXPECT_EQ(0u, bring_in());
}
