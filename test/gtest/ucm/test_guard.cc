/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucm/access/nprdma_guard.h>

#include <ucm/api/ucm.h>

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

    /* A call that unmaps memory waits for an access to it that is in
     * progress */
    template<typename F> void expect_waits(void *ptr, F call)
    {
        nprdma_guard_ticket_t ticket, other;
        std::atomic<bool> done(false);

        ASSERT_EQ(UCS_OK, enter(ptr, &ticket));
        std::thread caller([&]() {
            call();
            done = true;
        });

        /* When the call has begun, no further access may enter the range */
        ucs_status_t status;
        while ((status = enter(ptr, &other)) == UCS_OK) {
            nprdma_guard_leave(&other);
            std::this_thread::yield();
        }
        EXPECT_EQ(UCS_ERR_BUSY, status);
        EXPECT_FALSE(done);

        nprdma_guard_leave(&ticket);
        caller.join();

        /* After the call the address is accessible again */
        EXPECT_EQ(UCS_OK, enter(ptr, &other));
        nprdma_guard_leave(&other);
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

TEST_F(test_guard, munmap)
{
    void *ptr = map(4 * page);

    expect_waits((char*)ptr + page, [=]() { munmap(ptr, 4 * page); });
}

namespace {
struct held_call {
    std::atomic<bool> inside{false};
    std::atomic<bool> go_on{false};
    void              *address = nullptr;

    static void callback(ucm_event_type_t, ucm_event_t *event, void *arg)
    {
        auto *self = static_cast<held_call*>(arg);
        if (event->munmap.address == self->address) {
            self->inside = true;
            while (!self->go_on) {
            }
        }
    }
};
}

TEST_F(test_guard, blocks_its_range_only)
{
    nprdma_guard_ticket_t ticket;
    held_call call;
    char *ptr = (char*)map(2 * page);

    call.address = ptr;
    ASSERT_EQ(UCS_OK, ucm_set_event_handler(UCM_EVENT_MUNMAP, 5,
                                            held_call::callback, &call));
    std::thread caller([=]() { munmap(ptr, page); });
    while (!call.inside) {
        std::this_thread::yield();
    }

    EXPECT_EQ(UCS_ERR_BUSY, enter(ptr, &ticket));
    EXPECT_EQ(UCS_ERR_BUSY, enter(ptr + page - 4, &ticket));
    EXPECT_EQ(UCS_OK, enter(ptr + page, &ticket));
    nprdma_guard_leave(&ticket);

    call.go_on = true;
    caller.join();
    ucm_unset_event_handler(UCM_EVENT_MUNMAP, held_call::callback, &call);
    EXPECT_EQ(UCS_OK, enter(ptr, &ticket));
    nprdma_guard_leave(&ticket);
    munmap(ptr + page, page);
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
