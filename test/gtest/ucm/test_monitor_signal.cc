/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_monitor.h"

#include <ucm/access/nprdma_access.h>

#include <algorithm>
#include <csignal>

/*
 * Memory hooks in signal handlers. The trap flag of x86 stops the thread behind
 * each instruction of a call. The handler takes a page away, which runs the
 * hooks. So the hooks run at every point where a signal can arrive, also in the
 * middle of a change of the table of regions. A hook that waits for the work of
 * its own thread would wait for ever.
 */
namespace {

void (*on_step)(void *arg);
void *on_step_arg;
volatile unsigned num_steps;

void step(int)
{
    int error = errno;

    ++num_steps;
    on_step(on_step_arg);
    errno = error;
}

#if defined(__x86_64__)
constexpr bool can_step = true;

/* Macros, because the return of a function would be stepped as well */
#define SET_TRAP_FLAG \
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc")
#define CLEAR_TRAP_FLAG \
    __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc")
#else
constexpr bool can_step = false;
#define SET_TRAP_FLAG
#define CLEAR_TRAP_FLAG
#endif

} // namespace

class test_monitor_signal : public test_monitor {
protected:
    void SetUp() override
    {
        if (!can_step) {
            GTEST_SKIP() << "how to step through code is known for x86-64";
        }
        test_monitor::SetUp();
        params.region_size = chunk;
        start();
        ptr = map(16 * page);
        memset(ptr, 1, 16 * page);
        on_step     = take_first_page;
        on_step_arg = this;
        num_steps   = 0;

        struct sigaction action = {};
        action.sa_handler = step;
        ASSERT_EQ(0, sigaction(SIGTRAP, &action, &old_action));
        alarm(400); /* Ends a test in which a hook waits for its own thread */
    }

    void TearDown() override
    {
        if (can_step) {
            alarm(0);
            sigaction(SIGTRAP, &old_action, nullptr);
            test_monitor::TearDown();
        }
    }

    static void take_first_page(void *arg)
    {
        auto self = static_cast<test_monitor_signal*>(arg);
        self->failed += (madvise(self->ptr, page, MADV_DONTNEED) != 0);
    }

    static void empty_the_pool(void *arg)
    {
        auto self = static_cast<test_monitor_signal*>(arg);
        self->failed += (mremap(self->ptr, page, page, 0) != self->ptr);
    }

    /* @return The number of instructions stepped. */
    template<typename F> unsigned step_through(F call)
    {
        unsigned before = num_steps;

        SET_TRAP_FLAG;
        call();
        CLEAR_TRAP_FLAG;
        EXPECT_EQ(0, failed);
        return num_steps - before;
    }

    char             *ptr = nullptr;
    volatile int     failed = 0;
    struct sigaction old_action;
};

/* One region enters the table, and another one leaves it */
TEST_F(test_monitor_signal, while_a_region_is_created_and_destroyed)
{
    nprdma_range_t first, second;
    ucs_status_t status = UCS_ERR_LAST;
    uint64_t events;

    ASSERT_EQ(UCS_OK, reg(&first, ptr, 16 * page));
    ASSERT_EQ(UCS_OK, populate(&first, ptr + page, 2 * page));
    events = stats().events;

    /* Too large for the rest of the granule */
    char *other    = map(chunk + page);
    unsigned steps = step_through([&]() {
        status = reg(&second, other, chunk + page);
    });
    EXPECT_EQ(UCS_OK, status);
    EXPECT_GT(steps, 500u);
    EXPECT_GE(stats().events, events + steps);
    EXPECT_EQ(2u, stats().regions);
    EXPECT_EQ(NPRDMA_PAGE_R, bits(&first, ptr + page));
    EXPECT_EQ(0u, bits(&first, ptr));

    /* Other registrations cause the eviction */
    unreg(&second);
    uint64_t evicted = stats().evicted;
    nprdma_range_t third;
    char *last = map(chunk + page);
    attach_status = UCS_ERR_EXCEEDS_LIMIT;
    step_through([&]() { status = reg(&third, last, chunk + page); });
    attach_status = UCS_OK;
    EXPECT_EQ(UCS_ERR_EXCEEDS_LIMIT, status);
    EXPECT_EQ(evicted + 1, stats().evicted);
    EXPECT_EQ(1u, stats().regions);
    unreg(&first);
}

/* A block is kept and comes back while the handler's call looks for all kept
 * blocks. It must not wait for the one that its own thread has claimed. */
TEST_F(test_monitor_signal, while_a_block_is_kept_and_reused)
{
    params.lazy_limit = (size_t)64 << 20;
    stop();
    start();
    on_step = empty_the_pool;

    char *kept_block = block(), *again = nullptr;
    memset(kept_block, 1, (size_t)1 << 20);
    step_through([&]() { failed += munmap(kept_block, (size_t)1 << 20); });
    step_through([&]() { again = block(); });
    ASSERT_NE(nullptr, again);
    EXPECT_EQ((ptrdiff_t)1 << 20, std::count(again, again + (1 << 20), 0));
    munmap(again, (size_t)1 << 20);
}

/* A word is stored for a peer while the handler takes its page away. The
 * handler must not wait for the access that it has interrupted. */
TEST_F(test_monitor_signal, while_a_word_is_stored)
{
    ASSERT_EQ(UCS_OK, nprdma_access_init());

    ucs_status_t status = UCS_ERR_LAST;
    uint64_t value      = 0x1122334455667788;
    nprdma_fault_section_t section;

    nprdma_fault_enter(&section);
    unsigned steps = step_through([&]() {
        status = nprdma_access_store((uintptr_t)ptr, &value, sizeof(value));
    });
    nprdma_fault_leave(&section);
    EXPECT_GT(steps, 20u);
    EXPECT_EQ(UCS_OK, status);
    nprdma_access_cleanup();
}
