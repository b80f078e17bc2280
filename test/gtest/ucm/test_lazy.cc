/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucm/events/nprdma_lazy.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <random>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

namespace {
constexpr size_t KiB = 1024;
constexpr size_t MiB = 1024 * KiB;

nprdma_span_t span(uintptr_t start, size_t length)
{
    return nprdma_span(start, start + length);
}
}

/* The table, on memory that the test plays: a block is open, closed or gone */
class test_lazy : public ::testing::Test {
protected:
    static constexpr size_t limit = 4 * MiB;

    void SetUp() override
    {
        lazy = (nprdma_lazy_t*)calloc(1, nprdma_lazy_size());
        ASSERT_NE(nullptr, lazy);
        nprdma_lazy_init(lazy, limit, &ops, this);
    }

    void TearDown() override
    {
        free(lazy);
    }

    nprdma_lazy_stats_t stats()
    {
        nprdma_lazy_stats_t result;
        nprdma_lazy_query(lazy, &result);
        return result;
    }

    void made(uintptr_t start, size_t length)
    {
        nprdma_lazy_made(lazy, span(start, length));
    }

    int keep(uintptr_t start, size_t length)
    {
        return nprdma_lazy_keep(lazy, span(start, length));
    }

    /* Map and unmap. @return Whether the block is kept. */
    int pass(uintptr_t start, size_t length)
    {
        made(start, length);
        return keep(start, length);
    }

    uintptr_t reuse(size_t length)
    {
        return nprdma_lazy_reuse(lazy, length);
    }

    static nprdma_lazy_result_t close_cb(void *arg, nprdma_span_t)
    {
        auto self = static_cast<test_lazy*>(arg);
        EXPECT_LE(self->stats().bytes, self->bound);
        self->closed += (self->close_result == NPRDMA_LAZY_DONE);
        return self->close_result;
    }

    static nprdma_lazy_result_t open_cb(void *arg, nprdma_span_t)
    {
        auto self = static_cast<test_lazy*>(arg);
        ++self->opened;
        return self->open_result;
    }

    static nprdma_lazy_result_t release_cb(void *arg, nprdma_span_t block)
    {
        auto self = static_cast<test_lazy*>(arg);
        self->last_released = block.start;
        if (self->hold == 1) {
            self->hold = 2;
            while (self->hold == 2) {
                sched_yield();
            }
        }
        ++self->released;
        return self->release_result;
    }

    const nprdma_lazy_ops_t ops = { close_cb, open_cb, release_cb };
    nprdma_lazy_t          *lazy = nullptr;
    nprdma_lazy_result_t   close_result   = NPRDMA_LAZY_DONE;
    nprdma_lazy_result_t   open_result    = NPRDMA_LAZY_DONE;
    nprdma_lazy_result_t   release_result = NPRDMA_LAZY_DONE;
    size_t                 bound = limit;
    std::atomic<int>           closed{0};
    std::atomic<int>           opened{0};
    std::atomic<int>           released{0};
    std::atomic<int>           hold{0};
    std::atomic<uintptr_t>      last_released{0};
};

TEST_F(test_lazy, whole_blocks_that_mmap_has_made)
{
    const uintptr_t start = 16 * MiB;

    EXPECT_FALSE(keep(start, MiB)) << "not known";
    made(start, MiB);
    EXPECT_FALSE(keep(start, MiB / 2));
    EXPECT_FALSE(keep(start, MiB)) << "a part is gone";
    made(start, MiB);
    EXPECT_FALSE(keep(start - 4096, MiB + 4096)) << "and something else";
    made(start, MiB);
    nprdma_lazy_taint(lazy, span(start + MiB - 1, 1));
    EXPECT_FALSE(keep(start, MiB));
    made(start, MiB);
    nprdma_lazy_taint(lazy, span(start + MiB, MiB));
    nprdma_lazy_taint(lazy, span(start - MiB, MiB));
    EXPECT_TRUE(keep(start, MiB)) << "only neighbours were tainted";
    EXPECT_FALSE(keep(start, MiB)) << "not mapped any more";
    EXPECT_EQ(3u, stats().tainted);
    EXPECT_EQ(MiB, stats().bytes);
    EXPECT_EQ(start, reuse(MiB));
    EXPECT_EQ(0u, stats().bytes);
}

TEST_F(test_lazy, sizes)
{
    EXPECT_FALSE(pass(MiB, NPRDMA_LAZY_MIN - 4096));
    EXPECT_TRUE(pass(2 * MiB, NPRDMA_LAZY_MIN));
    EXPECT_FALSE(pass(16 * MiB, limit / 2 + 4096));
    EXPECT_TRUE(pass(32 * MiB, limit / 2));
    EXPECT_EQ(0u, reuse(NPRDMA_LAZY_MIN + 4096));
    EXPECT_EQ(0u, reuse(limit / 2 - 4096));
    EXPECT_EQ(32 * MiB, reuse(limit / 2));
    EXPECT_EQ(2 * MiB, reuse(NPRDMA_LAZY_MIN));
    EXPECT_EQ(0u, reuse(NPRDMA_LAZY_MIN));
}

TEST_F(test_lazy, newest_first)
{
    for (uintptr_t i = 1; i <= 3; ++i) {
        EXPECT_TRUE(pass(i * 16 * MiB, MiB));
    }
    EXPECT_EQ(48 * MiB, reuse(MiB));
    EXPECT_TRUE(pass(64 * MiB, MiB));
    EXPECT_EQ(64 * MiB, reuse(MiB));
    EXPECT_EQ(32 * MiB, reuse(MiB));
    EXPECT_EQ(16 * MiB, reuse(MiB));
    EXPECT_EQ(0, released);
}

TEST_F(test_lazy, bytes_are_bounded_and_the_oldest_leaves)
{
    for (uintptr_t i = 1; i <= 4; ++i) {
        EXPECT_TRUE(pass(i * 16 * MiB, MiB));
    }
    EXPECT_EQ(0, released);
    EXPECT_EQ(limit, stats().bytes);

    EXPECT_TRUE(pass(96 * MiB, 128 * KiB));
    EXPECT_EQ(16 * MiB, last_released);
    EXPECT_EQ(1, released);
    EXPECT_TRUE(pass(112 * MiB, 2 * MiB));
    EXPECT_EQ(48 * MiB, last_released);
    EXPECT_EQ(3, released);
    EXPECT_EQ(3 * MiB + 128 * KiB, stats().bytes);
}

TEST_F(test_lazy, slots_are_bounded)
{
    bound = 1024 * MiB;
    nprdma_lazy_init(lazy, bound, &ops, this);
    const uintptr_t first = 16 * MiB;
    for (uintptr_t i = 0; i < NPRDMA_LAZY_NUM_SLOTS + 5; ++i) {
        made(first + i * MiB, 128 * KiB);
        EXPECT_TRUE(keep(first + i * MiB, 128 * KiB));
    }
    EXPECT_EQ(5, released);
    EXPECT_EQ(first + 4 * MiB, last_released);
    EXPECT_EQ(NPRDMA_LAZY_NUM_SLOTS * 128 * KiB, stats().bytes);
}

TEST_F(test_lazy, blocks_are_bounded)
{
    uintptr_t i;
    for (i = 1; i <= NPRDMA_LAZY_NUM_BLOCKS; ++i) {
        made(i * MiB, 128 * KiB);
    }
    made(i * MiB, 128 * KiB);
    EXPECT_FALSE(keep(i * MiB, 128 * KiB)) << "the list was full";
    EXPECT_TRUE(keep(MiB, 128 * KiB));
    EXPECT_TRUE(pass(i * MiB, 128 * KiB)) << "there was one place";
}

TEST_F(test_lazy, refused_and_lost)
{
    close_result = NPRDMA_LAZY_REFUSED;
    EXPECT_FALSE(pass(16 * MiB, MiB));
    EXPECT_EQ(0u, stats().bytes);
    close_result = NPRDMA_LAZY_DONE;

    /* What cannot be opened is released */
    EXPECT_TRUE(pass(16 * MiB, MiB));
    open_result = NPRDMA_LAZY_REFUSED;
    EXPECT_EQ(0u, reuse(MiB));
    EXPECT_EQ(1, released);
    EXPECT_EQ(0u, stats().bytes);

    /* What is lost is not */
    EXPECT_TRUE(pass(16 * MiB, MiB));
    open_result = NPRDMA_LAZY_LOST;
    EXPECT_EQ(0u, reuse(MiB));
    EXPECT_EQ(1, released);
    EXPECT_EQ(0u, stats().bytes);

    /* What cannot be released stays, unless its addresses are needed */
    EXPECT_TRUE(pass(16 * MiB, MiB));
    release_result = NPRDMA_LAZY_REFUSED;
    EXPECT_EQ(0u, nprdma_lazy_drop(lazy));
    EXPECT_EQ(MiB, stats().bytes);
    nprdma_lazy_forget(lazy, span(16 * MiB, 4096));
    EXPECT_EQ(0u, stats().bytes);
}

TEST_F(test_lazy, mapped_unseen)
{
    EXPECT_TRUE(pass(16 * MiB, MiB));
    nprdma_lazy_mapped(lazy, span(16 * MiB + 4096, 4096));
    EXPECT_EQ(0u, reuse(MiB));
    EXPECT_EQ(0, released) << "the addresses are of another mapping";

    made(16 * MiB, MiB);
    nprdma_lazy_mapped(lazy, span(16 * MiB, MiB));
    EXPECT_FALSE(keep(16 * MiB, MiB)) << "the mapping is another one";
}

TEST_F(test_lazy, drop)
{
    EXPECT_TRUE(pass(16 * MiB, MiB));
    EXPECT_TRUE(pass(32 * MiB, MiB));
    EXPECT_EQ(2u, nprdma_lazy_drop(lazy));
    EXPECT_EQ(0u, nprdma_lazy_drop(lazy));
    EXPECT_EQ(0u, stats().bytes);
}

TEST_F(test_lazy, pause)
{
    EXPECT_TRUE(pass(16 * MiB, MiB));
    nprdma_lazy_pause(lazy);
    EXPECT_EQ(1, released);
    EXPECT_FALSE(pass(16 * MiB, MiB));
    nprdma_lazy_resume(lazy);
    EXPECT_TRUE(pass(16 * MiB, MiB));
}

/* A call that maps other memory where a thread is about to unmap a block waits
 * for it: otherwise that thread would unmap the other memory */
TEST_F(test_lazy, addresses_are_free_when_they_are_forgotten)
{
    std::atomic<int> forgotten(0);

    EXPECT_TRUE(pass(16 * MiB, MiB));
    hold = 1;
    std::thread releasing([&]() {
        nprdma_lazy_drop(lazy);
    });
    while (hold != 2) {
        sched_yield();
    }

    std::thread forgetting([&]() {
        nprdma_lazy_forget(lazy, span(16 * MiB, MiB));
        forgotten = released + 1;
    });
    /* The slot stays taken, and its bytes stay counted, until the end: also
     * when the other thread has had the CPU for much longer than it needs */
    clockid_t clock;
    timespec used = {};
    ASSERT_EQ(0, pthread_getcpuclockid(forgetting.native_handle(), &clock));
    while ((forgotten == 0) && (clock_gettime(clock, &used) == 0) &&
           (used.tv_sec == 0) && (used.tv_nsec < 2000000)) {
        EXPECT_EQ(MiB, stats().bytes);
        sched_yield();
    }
    EXPECT_EQ(0, forgotten);
    hold = 3;
    releasing.join();
    forgetting.join();
    EXPECT_EQ(2, forgotten) << "forgotten before it was unmapped";
    EXPECT_EQ(0u, stats().bytes);
}

/* Threads map, unmap and release; no block ever has two owners */
class test_lazy_threads : public test_lazy {
protected:
    static constexpr int    num_blocks = 64;
    static constexpr size_t stride     = 16 * MiB;

    /* What a block is: its owners, or this */
    static constexpr int nowhere = -1;

    static std::atomic<int> &owners(uintptr_t start)
    {
        static std::atomic<int> table[num_blocks];
        return table[(start / stride) - 1];
    }

    /* As mmap() */
    uintptr_t map()
    {
        uintptr_t start = reuse(MiB);
        for (int i = 1; (start == 0) && (i <= num_blocks); ++i) {
            int expected = nowhere;
            if (owners(i * stride).compare_exchange_strong(expected, 1)) {
                start = i * stride;
            }
        }
        if (start != 0) {
            made(start, MiB);
        }
        return start;
    }

    /* As munmap() */
    void unmap(uintptr_t start)
    {
        wrong += (owners(start) != 1);
        owners(start) = 0; /* In the pool, or nowhere */
        if (!keep(start, MiB)) {
            owners(start) = nowhere;
        }
    }

    void run(int seed)
    {
        std::mt19937 random(seed);
        std::vector<uintptr_t> mine;
        for (int i = 0; i < 20000; ++i) {
            if ((random() % 2) && (mine.size() < 6)) {
                uintptr_t start = map();
                if (start != 0) {
                    mine.push_back(start);
                }
            } else if (!mine.empty()) {
                unmap(mine.back());
                mine.pop_back();
            }
            if (random() % 64 == 0) {
                nprdma_lazy_drop(lazy);
            }
        }
    }

    static std::atomic<int> wrong;
};

std::atomic<int> test_lazy_threads::wrong{0};

TEST_F(test_lazy_threads, one_owner)
{
    const nprdma_lazy_ops_t check = {
        [](void*, nprdma_span_t) { return NPRDMA_LAZY_DONE; },
        [](void*, nprdma_span_t block) {
            wrong += (owners(block.start)++ != 0);
            return NPRDMA_LAZY_DONE;
        },
        [](void*, nprdma_span_t block) {
            wrong += (owners(block.start) != 0);
            owners(block.start) = nowhere;
            return NPRDMA_LAZY_DONE;
        }
    };
    for (int i = 1; i <= num_blocks; ++i) {
        owners(i * stride) = nowhere;
    }
    nprdma_lazy_init(lazy, limit, &check, nullptr);

    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([this, t]() { run(t); });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    EXPECT_EQ(0, wrong);
    EXPECT_LE(stats().bytes, limit);
    EXPECT_GT(stats().reused, 0u);
    nprdma_lazy_drop(lazy);
    EXPECT_EQ(0u, stats().bytes);
    EXPECT_EQ(stats().kept, stats().reused + stats().dropped);
}
