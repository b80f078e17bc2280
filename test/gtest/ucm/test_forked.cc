/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* fork() while another thread of the process is inside a lock of src/ucm. The
 * thread is stopped there, by a function of the C library that it calls. */

#include "test_child.h"
#include "test_monitor.h"

#include <ucm/access/nprdma_access.h>
#include <ucm/access/nprdma_fault.h>
#include <ucm/access/nprdma_pagein.h>
#include <ucm/events/nprdma_events.h>
#include <ucm/events/nprdma_lazy.h>

#include <ucm/api/ucm.h>

#include <nprdma_uapi.h>

#include <ucs/sys/string.h>

#include <cstdarg>
#include <cstdlib>
#include <fstream>
#include <string>

#include <pthread.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <sys/wait.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool is_sanitized = true;
#else
static const bool is_sanitized = false;
#endif

/* ---- gates ---- */

/* Function, or file, at which this thread is to be stopped */
static thread_local const char *gate;
static std::atomic<bool> is_stopped;
static std::atomic<bool> is_open;

static void pass(const char *name)
{
    if ((gate != nullptr) && (strcmp(gate, name) == 0)) {
        gate       = nullptr;
        is_stopped = true;
        while (!is_open) {
            std::this_thread::yield();
        }
    }
}

/* A function of the C library that a thread may be stopped in */
#define GATE(_type, _name, _params, ...) \
    extern "C" _type __real_##_name _params; \
    extern "C" _type __wrap_##_name _params \
    { \
        pass(#_name); \
        return __real_##_name(__VA_ARGS__); \
    }

GATE(ssize_t, getrandom, (void *buffer, size_t length, unsigned flags), buffer,
     length, flags)
GATE(int, madvise, (void *ptr, size_t length, int advice), ptr, length, advice)
GATE(ssize_t, process_vm_readv,
     (pid_t pid, const iovec *local, unsigned long num_local,
      const iovec *remote, unsigned long num_remote, unsigned long flags),
     pid, local, num_local, remote, num_remote, flags)
GATE(ssize_t, process_vm_writev,
     (pid_t pid, const iovec *local, unsigned long num_local,
      const iovec *remote, unsigned long num_remote, unsigned long flags),
     pid, local, num_local, remote, num_remote, flags)

extern "C" int __real_open(const char *path, int flags, ...);
extern "C" int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) ? va_arg(args, mode_t) : 0;
    va_end(args);
    pass(path);
    return __real_open(path, flags, mode);
}

/* ---- locks ---- */

namespace {

nprdma_monitor_params_t monitor_params;
nprdma_monitor_t        *monitor;
nprdma_listener_t       listener;

bool create(size_t lazy_limit = 0)
{
    monitor_params.lazy_limit = lazy_limit;
    return nprdma_monitor_create(&monitor_params, &monitor) == UCS_OK;
}

bool destroy()
{
    nprdma_monitor_destroy(monitor);
    return true;
}

/* A registration whose region is the first one: the signature is made then */
bool with_region()
{
    static char memory[4 * NPRDMA_PAGE_SIZE];
    nprdma_range_t range;
    bool result = nprdma_monitor_register(monitor, (uintptr_t)memory,
                                          sizeof(memory), &range) == UCS_OK;
    if (result) {
        nprdma_monitor_unregister(monitor, &range, 0);
    }
    return result;
}

bool by_copy()
{
    bool result = nprdma_access_init() == UCS_OK;
    nprdma_fault_remove();
    return result;
}

bool with_atomic()
{
    uint64_t word = 1, old = 0;
    return (nprdma_access_atomic(NPRDMA_ATOMIC_ADD, 8, (uintptr_t)&word, 2, 0,
                                 &old) == UCS_OK) && (word == 3) && (old == 1);
}

bool keeping()
{
    return nprdma_lazy_start(64u << 20);
}

/* A thread of the parent has UCM's lock for ever, in the child: it reads */
bool in_hook()
{
    ucm_event_callback_t handler = [](ucm_event_type_t, ucm_event_t*, void*) {
        pass("in a hook");
    };
    if (ucm_set_event_handler(UCM_EVENT_MUNMAP | UCM_EVENT_FLAG_NO_INSTALL, -5,
                              handler, nullptr) != UCS_OK) {
        return false;
    }
    void *ptr = mmap(nullptr, NPRDMA_PAGE_SIZE, PROT_READ,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (ptr != MAP_FAILED) && (munmap(ptr, NPRDMA_PAGE_SIZE) == 0);
}

bool module_opened()
{
    char why[NPRDMA_BACKEND_WHY_MAX];
    ucs_status_t status = nprdma_backend_kernel.open(nullptr, why);
    return (status == UCS_OK) || (status == UCS_ERR_NO_DEVICE);
}

struct held_lock {
    const char *name;
    bool       fork_waits; /* Else the lock is released in the child */
    const char *gate;
    bool       (*prepare)(); /* Before the thread is in the lock */
    bool       (*enter)();   /* What the thread does */
    bool       (*use)();     /* What the child does */
};

void PrintTo(const held_lock &lock, std::ostream *stream)
{
    *stream << lock.name;
}

bool nothing()
{
    return true;
}

const held_lock locks[] = {
    { "events", true, "madvise", nothing,
      []() { return nprdma_events_add(&listener) == UCS_OK; },
      []() { return create() && destroy(); } },
    { "lazy", true, "madvise", []() { return create(); }, keeping,
      []() { return create(64u << 20) && destroy(); } },
    { "hook", false, "in a hook", []() { return create(64u << 20); }, in_hook,
      []() { return create(64u << 20) && destroy(); } },
    { "access", false, "process_vm_writev", nothing,
      []() { return nprdma_access_init() == UCS_OK; },
      []() { return (nprdma_access_init() == UCS_OK) && with_atomic(); } },
    { "atomic_of_a_copy", false, "process_vm_readv", by_copy, with_atomic,
      []() { return by_copy() && with_atomic(); } },
    { "atomic_of_the_cpu", false, "process_vm_readv", by_copy, with_atomic,
      []() { return (nprdma_access_init() == UCS_OK) && with_atomic(); } },
    { "pagein", false, "/proc/self/pagemap", nothing,
      []() { return nprdma_pagein_init() == UCS_OK; },
      []() { return nprdma_pagein_init() == UCS_OK; } },
    { "emulated", true, "getrandom", []() { return create(); }, with_region,
      []() { return create() && with_region() && destroy(); } },
    { "kernel", true, NPRDMA_DEVICE_PATH, nothing, module_opened,
      module_opened },
};

} // namespace

class test_forked : public test_monitor,
                    public ::testing::WithParamInterface<held_lock> {
protected:
    /* Memory, as any program uses it: through the hooks */
    static bool use_memory()
    {
        for (size_t size : { (size_t)1 << 10, (size_t)1 << 18,
                             (size_t)1 << 26 }) {
            char *heap   = (char*)malloc(size);
            char *mapped = (char*)mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if ((heap == nullptr) || (mapped == MAP_FAILED)) {
                return false;
            }
            memset(heap, 1, size);
            memset(mapped, 1, size);
            free(heap);
            if (munmap(mapped, size) != 0) {
                return false;
            }
        }
        return true;
    }

    /* Whether a thread of this process sleeps until another one lets it go on
     * (proc_pid_syscall(5)) */
    static bool is_waiting(pid_t tid)
    {
        long number = -1;
        std::ifstream("/proc/self/task/" + std::to_string(tid) + "/syscall") >>
                number;
        return number == SYS_futex;
    }

    static int forked_child(const held_lock &lock)
    {
        alarm(30); /* A lock that nobody releases */
        if (!use_memory()) {
            return 1;
        }
        return lock.use() ? (use_memory() ? 0 : 3) : 2;
    }

    /* Fork while another thread is in the lock. In a process of its own. */
    int run(const held_lock &lock)
    {
        std::atomic<pid_t> tid(0);
        std::atomic<bool> has_forked(false);
        int status = -1;

        alarm(120);
        monitor_params = params;
        if ((pthread_atfork(nullptr, nullptr, nprdma_monitor_forked) != 0) ||
            !lock.prepare()) {
            return 10;
        }

        bool has_entered = false;
        std::atomic<bool> has_left(false);
        std::thread inside([&]() {
            gate        = lock.gate;
            has_entered = lock.enter();
            has_left    = true;
        });
        while (!is_stopped && !has_left) {
            std::this_thread::yield();
        }
        if (!is_stopped) {
            inside.join();
            return is_sanitized ? 77 : 14;
        }

        std::thread forking([&]() {
            tid       = (pid_t)syscall(SYS_gettid);
            pid_t pid = fork();
            if (pid == 0) {
                int result = forked_child(lock);
                if (is_sanitized) {
                    _exit(result); /* Leaks of a child are no matter */
                }
                exit(result);
            }
            has_forked = true;
            waitpid(pid, &status, 0);
        });
        bool has_waited = true;
        if (lock.fork_waits) {
            while (!has_forked && ((tid == 0) || !is_waiting(tid))) {
                std::this_thread::yield();
            }
            has_waited = !has_forked;
            is_open = true;
        }
        forking.join();
        is_open = true;
        inside.join();
        return !has_entered ? 11 : (status != 0) ? 12 : !has_waited ? 15 :
               use_memory() ? 0 : 13;
    }
};

TEST_P(test_forked, while_a_thread_is_inside)
{
#ifdef __SANITIZE_ADDRESS__
    if (GetParam().name == std::string("lazy")) {
        GTEST_SKIP() << "nothing is kept with this sanitizer";
    }
#endif
    int status = wait_status([this]() { return run(GetParam()); });
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 77)) {
        GTEST_SKIP() << "off with this sanitizer";
    }
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0)) << status;
}

INSTANTIATE_TEST_SUITE_P(all, test_forked, ::testing::ValuesIn(locks),
                         [](const auto &info) { return info.param.name; });
