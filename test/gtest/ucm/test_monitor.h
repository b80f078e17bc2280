/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_MONITOR_H
#define NPRDMA_TEST_MONITOR_H

#include <ucm/backend/nprdma_backend.h>
#include <ucm/events/nprdma_hook.h>
#include <ucm/nprdma_monitor.h>
#include <ucs/sys/string.h>

/* Includes templates, so its first inclusion must not be within extern "C" */
#include <infiniband/verbs.h>

extern "C" {
#include <npemu_iommu.h>
}

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Functions that read the emulated RNIC's tables */
#define ONLY_EMULATED(_why) \
    if (on_kernel()) { \
        GTEST_SKIP() << "of the emulation: " _why; \
    }

/* A monitor whose NIC is simulated by the test, which decides when a drain
 * ends. */
class test_monitor : public ::testing::Test {
protected:
    static constexpr size_t page  = NPRDMA_PAGE_SIZE;
    static constexpr size_t chunk = 2u << 20;

    void SetUp() override
    {
        params.backend      = on_kernel() ? &nprdma_backend_kernel :
                                            &nprdma_backend_emulated;
        params.why          = why;
        params.region_size  = 4 * chunk;
        params.max_metadata = 1u << 30;
        params.drain        = drain_cb;
        params.attach       = attach_cb;
        params.detach       = detach_cb;
        params.arg          = this;
    }

    void TearDown() override
    {
        for (auto &[ptr, length] : maps) {
            munmap(ptr, length);
        }
        if (monitor != nullptr) {
            stop();
        }
    }

    /* NPRDMA_TEST_BACKEND=kernel: with the kernel module, in the guest */
    static bool on_kernel()
    {
        const char *backend = getenv("NPRDMA_TEST_BACKEND");
        return (backend != nullptr) && (strcmp(backend, "kernel") == 0);
    }

    void start()
    {
        ASSERT_EQ(UCS_OK, nprdma_monitor_create(&params, &monitor)) << why;
    }

    void stop()
    {
        nprdma_monitor_destroy(monitor);
        monitor = nullptr;
        EXPECT_TRUE(attached.empty());
    }

    nprdma_monitor_stats_t stats()
    {
        nprdma_monitor_stats_t result;
        nprdma_monitor_query(monitor, &result);
        return result;
    }

    /* Memory at the start of a granule, so that one region covers all of it. It
     * stays until the end. */
    char *map(size_t length = 16 * page, int prot = PROT_READ | PROT_WRITE,
              int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1)
    {
        size_t size = length + params.region_size;
        char *area  = (char*)mmap(nullptr, size, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                  -1, 0);
        EXPECT_NE(MAP_FAILED, (void*)area);
        char *ptr = (char*)(((uintptr_t)area + params.region_size - 1) &
                            ~(uintptr_t)(params.region_size - 1));
        munmap(area, ptr - area);
        munmap(ptr + length, area + size - ptr - length);
        EXPECT_EQ(ptr, mmap(ptr, length, prot, flags | MAP_FIXED, fd, 0));
        maps.emplace_back(ptr, length);
        return ptr;
    }

    /* Memory where the kernel likes */
    static char *block(size_t length = (size_t)1 << 20)
    {
        void *ptr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(MAP_FAILED, ptr);
        return (char*)ptr;
    }

    static nprdma_lazy_stats_t kept()
    {
        nprdma_lazy_stats_t result;
        nprdma_lazy_query(&result);
        return result;
    }

    ucs_status_t reg(nprdma_range_t *range, const void *ptr, size_t length)
    {
        return nprdma_monitor_register(monitor, (uintptr_t)ptr, length, range);
    }

    void unreg(nprdma_range_t *range, int invalidate = 0)
    {
        nprdma_monitor_unregister(monitor, range, invalidate);
    }

    ucs_status_t populate(nprdma_range_t *range, unsigned flags = 0)
    {
        return nprdma_monitor_populate(monitor, range, range->address,
                                       range->length, flags);
    }

    ucs_status_t populate(nprdma_range_t *range, const void *ptr, size_t length,
                          unsigned flags = 0)
    {
        return nprdma_monitor_populate(monitor, range, (uintptr_t)ptr, length,
                                       flags);
    }

    static uint32_t state(const nprdma_range_t *range, const void *ptr)
    {
        size_t index = nprdma_region_page_index(range->region, (uintptr_t)ptr);
        return nprdma_page_load(&range->region->states[index]);
    }

    static uint32_t bits(const nprdma_range_t *range, const void *ptr)
    {
        return state(range, ptr) & NPRDMA_PAGE_BITS;
    }

    /* The common bits of all pages, or -1 if they differ */
    static int all_bits(const nprdma_range_t *range, const char *ptr,
                        size_t length)
    {
        uint32_t first = bits(range, ptr);
        for (size_t i = page; i < length; i += page) {
            if (bits(range, ptr + i) != first) {
                return -1;
            }
        }
        return (int)first;
    }

    static npemu_iommu_header_t *header(const nprdma_range_t *range)
    {
        return nprdma_emulated_iommu(range->region)->header;
    }

    /* What the kernel says of a page (proc_pid_pagemap(5)), which is not
     * touched */
    static uint64_t pagemap(const void *ptr)
    {
        static int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        uint64_t word = 0;
        EXPECT_EQ((ssize_t)sizeof(word),
                  pread(fd, &word, sizeof(word),
                        (uintptr_t)ptr / page * sizeof(word)));
        return word;
    }

    static bool is_present(const void *ptr) { return pagemap(ptr) >> 63; }

    /* System calls that bypass libc, and so UCM */
    static void raw_munmap(void *ptr, size_t length)
    {
        EXPECT_EQ(0, syscall(SYS_munmap, ptr, length));
    }

    static void raw_mmap(void *ptr, size_t length)
    {
        EXPECT_EQ((long)ptr,
                  syscall(SYS_mmap, ptr, length, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    }

    template<typename F> static void wait_until(F condition)
    {
        auto limit = std::chrono::steady_clock::now() +
                     std::chrono::seconds(60);
        while (!condition()) {
            ASSERT_LT(std::chrono::steady_clock::now(), limit);
            std::this_thread::yield();
        }
    }

    /* What drain callbacks use in place of functions of std::atomic, which
     * ThreadSanitizer instruments */
    template<typename T>
    NPRDMA_HOOK static T load(const std::atomic<T> &value)
    {
        static_assert(sizeof(value) == sizeof(T), "has more than the value");
        return __atomic_load_n((const T*)&value, __ATOMIC_SEQ_CST);
    }

    template<typename T>
    NPRDMA_HOOK static void replace(std::atomic<T> &value, T from, T to)
    {
        __atomic_compare_exchange_n((T*)&value, &from, to, false,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }

    /* Called in a drain, that is in a memory hook, so it must not allocate.
     * If threads end meanwhile, it has to be NPRDMA_HOOK. */
    void (*on_drain)(test_monitor *self) = nullptr;
    std::atomic<int> drains{0};
    ucs_status_t     attach_status = UCS_OK;

    char                       why[NPRDMA_BACKEND_WHY_MAX] = "";
    nprdma_monitor_params_t    params{};
    nprdma_monitor_t           *monitor = nullptr;
    std::mutex                 lock;
    std::set<nprdma_region_t*> attached;
    std::vector<std::pair<char*, size_t>> maps;

private:
    NPRDMA_HOOK static void drain_cb(void *arg)
    {
        auto self = static_cast<test_monitor*>(arg);
        __atomic_fetch_add((int*)&self->drains, 1, __ATOMIC_SEQ_CST);
        if (self->on_drain != nullptr) {
            self->on_drain(self);
        }
    }

    static ucs_status_t attach_cb(void *arg, nprdma_region_t *region)
    {
        auto self = static_cast<test_monitor*>(arg);
        std::lock_guard<std::mutex> guard(self->lock);
        if (self->attach_status == UCS_OK) {
            EXPECT_TRUE(self->attached.insert(region).second);
            region->priv = self;
        }
        return self->attach_status;
    }

    static void detach_cb(void *arg, nprdma_region_t *region)
    {
        auto self = static_cast<test_monitor*>(arg);
        std::lock_guard<std::mutex> guard(self->lock);
        EXPECT_EQ(1u, self->attached.erase(region));
        EXPECT_EQ((void*)self, region->priv);
        /* No page is accessible any more */
        for (size_t i = 0; i < region->length / page; ++i) {
            uint32_t word = nprdma_page_load(&region->states[i]);
            ASSERT_EQ(0u, word & NPRDMA_PAGE_BITS);
        }
    }
};

#endif
