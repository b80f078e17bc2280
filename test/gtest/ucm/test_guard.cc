/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucm/access/nprdma_guard.h>

#include "test_child.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include <cstring>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

class test_guard : public ::testing::Test {
protected:
    static constexpr size_t page = 4096;

    void SetUp() override
    {
        ASSERT_EQ(UCS_OK, nprdma_guard_init());
    }

    void TearDown() override
    {
        nprdma_guard_cleanup();
    }

    static void *map(size_t length = page)
    {
        void *ptr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(MAP_FAILED, ptr);
        return ptr;
    }

    static ucs_status_t enter(void *ptr, nprdma_guard_ticket_t *ticket)
    {
        return nprdma_guard_enter((uintptr_t)ptr, 8, ticket);
    }
};

/* An access that needs exclusive use of a word waits for accesses to it */
TEST_F(test_guard, waits_for_accesses)
{
    char *ptr = (char*)map(2 * page);
    nprdma_guard_ticket_t ticket;
    std::atomic<bool> is_ready(false), is_done(false);

    ASSERT_EQ(UCS_OK, enter(ptr, &ticket));
    nprdma_guard_wait((uintptr_t)ptr + page, page); /* Not on this page */

    std::thread waiter([&]() {
        is_ready = true;
        nprdma_guard_wait((uintptr_t)ptr, 8);
        is_done = true;
    });
    while (!is_ready) {
        std::this_thread::yield();
    }
    for (int i = 0; i < 100; ++i) {
        EXPECT_FALSE(is_done);
        std::this_thread::yield();
    }
    nprdma_guard_leave(&ticket);
    waiter.join();
    munmap(ptr, 2 * page);
}

/* A call that unmaps memory waits for an access to it that is in progress. From
 * its beginning on no further access may enter its range, but others may. */
TEST_F(test_guard, munmap)
{
    char *ptr = (char*)map(4 * page);
    nprdma_guard_ticket_t ticket, other;
    std::atomic<bool> done(false);
    ucs_status_t status;

    ASSERT_EQ(UCS_OK, enter(ptr + page, &ticket));
    std::thread caller([&]() {
        munmap(ptr, 2 * page);
        done = true;
    });
    while ((status = enter(ptr + page, &other)) == UCS_OK) {
        nprdma_guard_leave(&other);
        std::this_thread::yield();
    }
    EXPECT_EQ(UCS_ERR_BUSY, status);
    EXPECT_EQ(UCS_ERR_BUSY, enter(ptr + 2 * page - 4, &other));
    EXPECT_EQ(UCS_OK, enter(ptr + 2 * page, &other));
    nprdma_guard_leave(&other);
    EXPECT_FALSE(done);

    nprdma_guard_leave(&ticket);
    caller.join();
    EXPECT_EQ(UCS_OK, enter(ptr, &other));
    nprdma_guard_leave(&other);
    munmap(ptr + 2 * page, 2 * page);
}

TEST_F(test_guard, too_many_accesses)
{
    std::vector<nprdma_guard_ticket_t> tickets;
    nprdma_guard_ticket_t ticket;
    void *ptr = map();

    while ((tickets.size() < 1000) && (enter(ptr, &ticket) == UCS_OK)) {
        tickets.push_back(ticket);
    }
    EXPECT_GE(tickets.size(), 8u);
    EXPECT_LT(tickets.size(), 1000u);
    EXPECT_EQ(UCS_ERR_BUSY, enter(ptr, &ticket));
    for (auto &t : tickets) {
        nprdma_guard_leave(&t);
    }
    EXPECT_EQ(UCS_OK, enter(ptr, &ticket));
    nprdma_guard_leave(&ticket);
    munmap(ptr, page);
}

TEST_F(test_guard, child_does_not_wait)
{
    nprdma_guard_ticket_t ticket, other;
    void *ptr = map();

    ASSERT_EQ(UCS_OK, enter(ptr, &ticket));
    expect_child([&]() {
        alarm(300); /* Ends a munmap() that waits for the parent */
        return (munmap(ptr, page) == 0) &&
               (enter(ptr, &other) == UCS_ERR_UNSUPPORTED);
    });
    nprdma_guard_leave(&ticket);
    munmap(ptr, page);
}

/* Open MPI patches libc after UCM, which disables UCM's hooks. The monitor
 * notices that, and does not report that handlers are installed. */
TEST(test_guard_hooks, disabled_hooks_are_noticed)
{
#ifndef __x86_64__
    GTEST_SKIP() << "the patch is machine code of x86-64";
#else
    /* mov $SYS_munmap, %eax; syscall; ret */
    static const unsigned char patch[] = {0xb8, 11, 0, 0, 0, 0x0f, 0x05, 0xc3};

    EXPECT_EQ(0, wait_status([&]() {
        void *libc  = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
        char *code  = (libc == nullptr) ? nullptr :
                      (char*)dlsym(libc, "munmap");
        char *start = (char*)((uintptr_t)code & ~(uintptr_t)4095);

        if ((nprdma_guard_init() != UCS_OK) || (code == nullptr)) {
            return 1;
        }
        nprdma_guard_cleanup();

        if (mprotect(start, 2 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) {
            return 2;
        }
        memcpy(code, patch, sizeof(patch));
        return (nprdma_guard_init() == UCS_ERR_UNSUPPORTED) ? 0 : 3;
    }));
#endif
}
