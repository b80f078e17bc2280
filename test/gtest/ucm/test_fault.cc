/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The fault handler together with handlers of the application. Each test runs
 * in a process of its own, and some of these processes must die.
 */

#include <ucm/access/nprdma_access.h>

#include "test_child.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include <csignal>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* What the application's handlers have recorded */
static struct {
    int        calls[10];
    int        sig;
    siginfo_t  info;
    uintptr_t  stack;
    sigset_t   mask;
} seen;

static struct sigaction replaced[10];
static char *hole; /* A page without access rights */

static void note(int which, int sig, const siginfo_t *info)
{
    ++seen.calls[which];
    seen.sig   = sig;
    seen.stack = (uintptr_t)__builtin_frame_address(0);
    if (info != nullptr) {
        seen.info = *info;
    }
    pthread_sigmask(SIG_BLOCK, nullptr, &seen.mask);
}

static void mend(const siginfo_t *info)
{
    mprotect((void*)((uintptr_t)info->si_addr & ~UINT64_C(4095)), 4096,
             PROT_READ | PROT_WRITE);
}

/* Makes the page accessible, as programs that track their memory do */
static void on_fault_mend(int sig, siginfo_t *info, void *)
{
    note(0, sig, info);
    mend(info);
}

/* Passes a signal that is not its own on to the replaced handler */
template<int N>
static void on_fault_chain(int sig, siginfo_t *info, void *context)
{
    note(N, sig, info);
    if (seen.calls[N] > 1000) {
        _exit(99);
    }
    if (replaced[N].sa_flags & SA_SIGINFO) {
        replaced[N].sa_sigaction(sig, info, context);
    } else if (replaced[N].sa_handler == SIG_DFL) {
        signal(sig, SIG_DFL);
    } else if (replaced[N].sa_handler != SIG_IGN) {
        replaced[N].sa_handler(sig);
    }
}

class test_fault : public ::testing::Test {
protected:
    using action_t = void (*)(int, siginfo_t*, void*);

    /* Runs a function in a child. Returns the child's wait status. */
    static int run(const std::function<void()> &function)
    {
        fflush(nullptr);
        return wait_status([&]() {
            struct rlimit limit = {};
            setrlimit(RLIMIT_CORE, &limit);
            hole = (char*)mmap(nullptr, 4096, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            /* Remove handlers of a sanitizer */
            signal(SIGSEGV, SIG_DFL);
            signal(SIGBUS, SIG_DFL);
            memset(&seen, 0, sizeof(seen));
            alarm(300);
            function();
            fflush(nullptr);
            return HasFailure() ? 77 : 0;
        });
    }

    static void expect_ok(const std::function<void()> &function)
    {
        int status = run(function);

        EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0))
                << "status 0x" << std::hex << status;
    }

    static void expect_death(int sig, const std::function<void()> &function)
    {
        int status = run(function);

        EXPECT_TRUE(WIFSIGNALED(status) && (WTERMSIG(status) == sig))
                << "status 0x" << std::hex << status;
    }

    static void init() { ASSERT_EQ(UCS_OK, nprdma_access_init()); }

    static void handle(int sig, action_t handler, int flags = 0,
                       struct sigaction *old = nullptr, int masked = 0)
    {
        struct sigaction action = {};

        action.sa_sigaction = handler;
        action.sa_flags     = SA_SIGINFO | flags;
        sigemptyset(&action.sa_mask);
        if (masked != 0) {
            sigaddset(&action.sa_mask, masked);
        }
        ASSERT_EQ(0, sigaction(sig, &action, old));
    }

    /* Accesses to absent memory in one section return errors */
    static void expect_errors(ucs_status_t expected = UCS_ERR_INVALID_ADDR)
    {
        nprdma_fault_section_t section;
        uint64_t word = 0, old;

        nprdma_fault_check();
        nprdma_fault_enter(&section);
        EXPECT_EQ(expected, nprdma_access_store((uintptr_t)hole, &word, 8));
        EXPECT_EQ(expected, nprdma_access_fetch(&word, (uintptr_t)hole, 3));
        EXPECT_EQ(expected, nprdma_access_atomic(NPRDMA_ATOMIC_ADD, 4,
                                                 (uintptr_t)hole, 1, 0, &old));
        nprdma_fault_leave(&section);
    }

    static void expect_same(const sigset_t &a, const sigset_t &b)
    {
        for (int sig = 1; sig < SIGRTMAX; ++sig) {
            EXPECT_EQ(sigismember(&a, sig), sigismember(&b, sig)) << sig;
        }
    }

    static void close_hole() { mprotect(hole, 4096, PROT_NONE); }

    static void fault() { *(volatile char*)(hole + 5) = 1; }

    /* Behind the end of its file */
    static void fault_bus()
    {
        int fd = memfd_create("nprdma-test", 0);
        char *ptr = (char*)mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                                MAP_SHARED, fd, 0);
        *(volatile char*)ptr = 1;
    }
};

/* ---- without handlers of the application ---- */

TEST_F(test_fault, true_faults_kill)
{
    expect_death(SIGSEGV, []() { init(); expect_errors(); fault(); });
    expect_death(SIGBUS, []() { init(); expect_errors(); fault_bus(); });
}

TEST_F(test_fault, ignored)
{
    expect_ok([]() {
        signal(SIGSEGV, SIG_IGN);
        init();
        raise(SIGSEGV);
        expect_errors();
        raise(SIGSEGV);
    });
    /* The kernel does not let SIGSEGV be ignored */
    expect_death(SIGSEGV, []() {
        signal(SIGSEGV, SIG_IGN);
        init();
        fault();
    });
}

/* A bug of nprdma: the fault is at the other address than the touch
 * announced */
TEST_F(test_fault, fault_at_the_buffer_of_a_copy_kills)
{
    expect_death(SIGSEGV, []() {
        static char app[64];
        init();
        nprdma_touch_copy(hole, app, sizeof(app), app);
    });
    expect_death(SIGSEGV, []() {
        static char app[64];
        init();
        nprdma_touch_copy(app, hole, sizeof(app), app);
    });
}

/* ---- handlers of the application installed before ---- */

TEST_F(test_fault, handler_before)
{
    expect_ok([]() {
        handle(SIGSEGV, on_fault_mend, 0, nullptr, SIGUSR1);
        init();
        expect_errors();
        EXPECT_EQ(0, seen.calls[0]);

        sigset_t before, after;
        pthread_sigmask(SIG_BLOCK, nullptr, &before);
        fault();
        pthread_sigmask(SIG_BLOCK, nullptr, &after);
        EXPECT_EQ(1, seen.calls[0]);
        EXPECT_EQ(SIGSEGV, seen.sig);
        EXPECT_EQ(SIGSEGV, seen.info.si_signo);
        EXPECT_EQ(SEGV_ACCERR, seen.info.si_code);
        EXPECT_EQ((void*)(hole + 5), seen.info.si_addr);
        EXPECT_TRUE(sigismember(&seen.mask, SIGUSR1));
        EXPECT_TRUE(sigismember(&seen.mask, SIGSEGV));
        EXPECT_FALSE(sigismember(&seen.mask, SIGUSR2));
        expect_same(before, after);

        close_hole();
        expect_errors();
        EXPECT_EQ(1, seen.calls[0]);
    });
}

TEST_F(test_fault, alternate_stack)
{
    for (bool is_wanted : {false, true}) {
        expect_ok([=]() {
            static char room[256 * 1024];
            stack_t stack = {};

            stack.ss_sp   = room;
            stack.ss_size = sizeof(room);
            ASSERT_EQ(0, sigaltstack(&stack, nullptr));
            handle(SIGSEGV, on_fault_mend, is_wanted ? SA_ONSTACK : 0);
            init();
            expect_errors();
            fault();
            EXPECT_EQ(1, seen.calls[0]);
            EXPECT_EQ(is_wanted, (seen.stack >= (uintptr_t)room) &&
                                 (seen.stack < (uintptr_t)(room +
                                                           sizeof(room))));
            close_hole();
            expect_errors();
        });
    }
}

/* ---- handlers of the application installed later ---- */

/* It gets the faults that are not ours. The kernel copies. */
TEST_F(test_fault, handler_after)
{
    for (int sig : {SIGSEGV, SIGBUS}) {
        expect_ok([=]() {
            uint64_t word = 5, old = 0, copy = 0;
            init();
            handle(sig, on_fault_mend, 0, &replaced[0]);
            expect_errors();
            EXPECT_FALSE(nprdma_fault_is_ready());
            EXPECT_EQ(UCS_OK, nprdma_access_atomic(NPRDMA_ATOMIC_ADD, 8,
                                                   (uintptr_t)&word, 2, 0,
                                                   &old));
            EXPECT_EQ(UCS_OK, nprdma_access_fetch(&copy, (uintptr_t)&word, 8));
            EXPECT_EQ(5u, old);
            EXPECT_EQ(7u, copy);
            EXPECT_EQ(0, seen.calls[0]);
            if (sig == SIGSEGV) {
                fault();
                EXPECT_EQ(1, seen.calls[0]);
                EXPECT_EQ((void*)(hole + 5), seen.info.si_addr);
            }
        });
    }
}

/* Until a section has noticed it, a later handler that passes signals on works
 * like ours */
TEST_F(test_fault, handler_after_that_chains)
{
    expect_ok([]() {
        uint64_t word = 0;
        init();
        handle(SIGSEGV, on_fault_chain<3>, 0, &replaced[3]);
        EXPECT_EQ(UCS_ERR_INVALID_ADDR,
                  nprdma_access_store((uintptr_t)hole, &word, 8));
        EXPECT_EQ(1, seen.calls[3]);
        expect_errors();
        EXPECT_EQ(1, seen.calls[3]);
    });
    expect_death(SIGSEGV, []() {
        init();
        handle(SIGSEGV, on_fault_chain<3>, 0, &replaced[3]);
        expect_errors();
        fault();
    });
}

/* A handler that once had the address of ours, and that ours replaces later */
TEST_F(test_fault, no_handler_calls_itself)
{
    expect_death(SIGSEGV, []() {
        init();
        handle(SIGSEGV, on_fault_chain<3>, 0, &replaced[3]);
        sigaction(SIGSEGV, &replaced[3], nullptr);
        nprdma_access_cleanup();
        handle(SIGSEGV, on_fault_chain<3>);
        init();
        expect_errors();
        fault();
    });
}

/* ---- threads, processes, the end ---- */

TEST_F(test_fault, thread_that_blocks_signals)
{
    expect_ok([]() {
        sigset_t all, before, after;

        init();
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, nullptr);
        pthread_sigmask(SIG_SETMASK, nullptr, &before);
        EXPECT_FALSE(nprdma_fault_may_touch());
        expect_errors();
        pthread_sigmask(SIG_SETMASK, nullptr, &after);
        expect_same(before, after);

        sigemptyset(&all);
        pthread_sigmask(SIG_SETMASK, &all, nullptr);
        EXPECT_TRUE(nprdma_fault_may_touch());
    });
}

/* Cleanup removes our handler, unless the application has installed one
 * later */
TEST_F(test_fault, cleanup_restores_the_handler)
{
    expect_ok([]() {
        struct sigaction before, after;

        handle(SIGSEGV, on_fault_mend, SA_NODEFER, nullptr, SIGUSR2);
        for (int round = 0; round < 20; ++round) {
            sigaction(SIGSEGV, nullptr, &before);
            init();
            init();
            nprdma_access_cleanup();
            expect_errors();
            nprdma_access_cleanup();
            sigaction(SIGSEGV, nullptr, &after);
            EXPECT_EQ(before.sa_sigaction, after.sa_sigaction);
            EXPECT_EQ(before.sa_flags, after.sa_flags);
            EXPECT_TRUE(sigismember(&after.sa_mask, SIGUSR2));
            sigaction(SIGBUS, nullptr, &after);
            EXPECT_EQ(SIG_DFL, after.sa_handler);
        }
    });
    /* A later handler can still call the handler that it replaced */
    expect_death(SIGSEGV, []() {
        init();
        handle(SIGSEGV, on_fault_chain<3>, 0, &replaced[3]);
        nprdma_access_cleanup();
        fault();
    });
}
