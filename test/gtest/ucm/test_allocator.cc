/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Memory hooks that malloc() calls, while other threads of the process need
 * the lock that malloc() holds then (one_lock.h). The main thread plays
 * malloc(): it holds the lock and calls what malloc() calls. */

#include "one_lock.h"
#include "test_monitor.h"

#include <ucm/access/nprdma_access.h>
#include <ucm/events/nprdma_lazy.h>

#include <ucm/api/ucm.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>

#include <malloc.h>
#include <sys/shm.h>

class test_allocator : public test_monitor {
protected:
    static constexpr size_t KiB = 1024;
    static constexpr size_t MiB = 1024 * KiB;

    void SetUp() override
    {
        test_monitor::SetUp();
        params.lazy_limit = 32 * MiB;
        /* So that malloc() maps, and trims the heap, as often as it can */
        mallopt(M_MMAP_THRESHOLD, 128 * KiB);
        mallopt(M_TRIM_THRESHOLD, 4 * KiB);
    }

    void TearDown() override
    {
        test_monitor::TearDown();
        if (has_handlers) {
            ucm_unset_event_handler(types, outside, nullptr);
            ucm_unset_event_handler(types, inside, nullptr);
        }
    }

    /* From here on a thread that allocates in a hook ends the process: the
     * handlers are around all others */
    void watch_hooks()
    {
        has_handlers = true;
        ASSERT_EQ(UCS_OK,
                  ucm_set_event_handler(types | UCM_EVENT_FLAG_NO_INSTALL,
                                        INT32_MAX, outside, nullptr));
        ASSERT_EQ(UCS_OK,
                  ucm_set_event_handler(types | UCM_EVENT_FLAG_NO_INSTALL,
                                        INT32_MIN, inside, nullptr));
    }

    /* A call of mremap() empties the pool. @a any is a mapped page. */
    static void drop(void *any)
    {
        EXPECT_EQ(any, mremap(any, page, page, 0));
    }

    /* What another thread does must not need the lock, which this one has. It
     * may free its own memory when it ends, so it is waited for behind. No
     * third thread allocates. */
    template<typename F> static void expect_without_lock(F func)
    {
        std::atomic<bool> is_ready(false), is_locked(false), is_done(false);
        std::thread other([&]() {
            is_ready = true;
            while (!is_locked) {
                std::this_thread::yield();
            }
            func();
            is_done = true;
        });
        while (!is_ready) { /* The start of a thread may need the lock */
            std::this_thread::yield();
        }
        one_lock_take();
        is_locked = true;
        while (!is_done && (one_lock_num_waiting() == 0)) {
            std::this_thread::yield();
        }
        bool is_good = is_done;
        one_lock_release();
        EXPECT_TRUE(is_good) << "the thread allocates";
        other.join();
    }

    /* All that malloc() and its callers do to memory, here under its lock. No
     * call may fail. @return The number of those that did. */
    int all_calls(std::mt19937 &random, int shmid)
    {
        size_t length = (1 + random() % 8) * 128 * KiB;
        int failed    = 0;
        char *ptr     = block(length);
        char *other   = block(length);
        memset(ptr, 1, length);
        failed += munmap(ptr, length) != 0;
        /* Where a block was kept just now, unless another thread has it */
        ptr = (char*)mmap(ptr, length / 2, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                          0);
        if (ptr == MAP_FAILED) {
            failed += errno != EEXIST;
            ptr     = block(length / 2);
        }
        failed += madvise(ptr, length / 2, MADV_DONTNEED) != 0;
        /* The kernel refuses while a userfaultfd watches a part of it */
        void *moved = mremap(ptr, length / 2, length, MREMAP_MAYMOVE);
        failed += (moved == MAP_FAILED) && (errno != EFAULT);
        failed += munmap((moved == MAP_FAILED) ? ptr : moved, length / 2) != 0;
        failed += (moved != MAP_FAILED) &&
                  (munmap((char*)moved + length / 2, length / 2) != 0);
        failed += munmap(other, length) != 0;
        failed += sbrk(length) == (void*)-1;
        failed += sbrk(-(intptr_t)length) == (void*)-1;
        void *segment = shmat(shmid, nullptr, 0);
        failed += (segment == (void*)-1) || (shmdt(segment) != 0);
        return failed;
    }

    /* Everything that a monitor is called for, and much malloc() */
    void work(unsigned seed, const std::atomic<bool> &stop)
    {
        std::mt19937 random(seed);
        void *any = block(page);
        while (!stop) {
            size_t length  = (1 + random() % 8) * 64 * KiB;
            bool is_mapped = random() % 2;
            char *ptr      = is_mapped ? block(length) :
                                         (char*)malloc(length);
            nprdma_range_t range;
            if (is_mapped) { /* New memory, also if it was kept */
                EXPECT_EQ((long)length, std::count(ptr, ptr + length, 0));
            }
            memset(ptr, seed, length);
            bool is_local = random() % 2;
            ucs_status_t status =
                    is_local ?
                    nprdma_monitor_register_local(monitor, (uintptr_t)ptr,
                                                  length, &range) :
                    reg(&range, ptr, length);
            EXPECT_EQ(UCS_OK, status);
            populate(&range, (random() % 2) ? (unsigned)NPRDMA_POPULATE_WRITE :
                                              0u);
            uint64_t word = seed;
            nprdma_access_store((uintptr_t)ptr, &word, sizeof(word));
            nprdma_access_fetch(&word, (uintptr_t)ptr, sizeof(word));
            unreg(&range, random() % 2);
            stats();
            if (random() % 4 == 0) {
                drop(any);
            }
            if (is_mapped) {
                munmap(ptr, length);
            } else {
                free(ptr);
            }
        }
    }

    bool has_handlers = false;

private:
    static constexpr int types = UCM_EVENT_MMAP | UCM_EVENT_MUNMAP |
                                 UCM_EVENT_MREMAP | UCM_EVENT_SHMAT |
                                 UCM_EVENT_SHMDT | UCM_EVENT_SBRK |
                                 UCM_EVENT_BRK | UCM_EVENT_MADVISE;

    static void inside(ucm_event_type_t, ucm_event_t*, void*)
    {
        one_lock_hook(1);
    }

    static void outside(ucm_event_type_t, ucm_event_t*, void*)
    {
        one_lock_hook(0);
    }
};

/* A thread that unmaps what is kept has claimed its place. A hook that needs
 * the addresses waits for that. */
TEST_F(test_allocator, dropping_needs_no_lock)
{
    void *any = block(page);
    start();
    for (int i = 0; i < 20; ++i) {
        for (size_t length : { MiB, 2 * MiB, 3 * MiB }) {
            char *ptr = block(length);
            memset(ptr, 1, length);
            munmap(ptr, length);
        }
        ASSERT_EQ(6 * MiB, kept().bytes);
        expect_without_lock([any]() { drop(any); });
        EXPECT_EQ(0u, kept().bytes);
    }
}

/* Threads are anywhere in the monitor when they come to malloc(), and wait
 * there. Each hook returns all the same. */
TEST_F(test_allocator, hooks_do_not_wait_for_malloc)
{
    constexpr int num_threads = 6;
    std::atomic<bool> stop_work(false);
    std::vector<std::thread> threads;
    std::mt19937 random(7);
    int shmid  = shmget(IPC_PRIVATE, MiB, IPC_CREAT | 0600);
    int failed = 0, most = 0;
    ASSERT_NE(-1, shmid);
    params.region_size = chunk; /* Many regions: each one allocates */
    params.revoke      = NPRDMA_REVOKE_LAZY;
    params.revoke_tick = 0.002;
    ASSERT_EQ(UCS_OK, nprdma_access_init());
    start();
    watch_hooks();
    for (int t = 0; t < num_threads; ++t) {
        threads.emplace_back([&, t]() { work(t + 1, stop_work); });
    }

    /* Other processes may have the CPUs for a while */
    auto passed  = [begin = std::chrono::steady_clock::now()]() {
        return std::chrono::steady_clock::now() - begin;
    };
    auto has_all = [&]() {
        return (most >= num_threads - 1) && (kept().reused > 0);
    };
    for (int i = 0; ((i < 200) && (passed() < std::chrono::seconds(5))) ||
                    (!has_all() && (passed() < std::chrono::seconds(60)));
         ++i) {
        one_lock_take();
        int waiting = one_lock_num_waiting();
        for (int k = 0; (k < 200) && (waiting < num_threads); ++k) {
            std::this_thread::yield();
            waiting = one_lock_num_waiting();
        }
        most    = std::max(most, waiting);
        failed += all_calls(random, shmid);
        one_lock_release();
        std::this_thread::yield();
    }
    stop_work = true;
    for (auto &thread : threads) {
        thread.join();
    }
    EXPECT_EQ(0, failed);
    EXPECT_GE(most, num_threads - 1) << "the others were waiting meanwhile";
    EXPECT_GT(kept().reused, 0u);
    EXPECT_GT(stats().drains, 0u);
    shmctl(shmid, IPC_RMID, nullptr);
    nprdma_access_cleanup();
}
