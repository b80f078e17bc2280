/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucm/access/nprdma_access.h>

#include <ucm/api/ucm.h>

#include "test_child.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

class test_access : public ::testing::Test {
protected:
    static constexpr size_t page = 4096;

    void SetUp() override
    {
        ASSERT_EQ(UCS_OK, nprdma_access_init());
    }

    void TearDown() override
    {
        nprdma_access_cleanup();
    }

    static char *map(size_t length, int prot = PROT_READ | PROT_WRITE)
    {
        void *ptr = mmap(nullptr, length, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                         0);
        EXPECT_NE(MAP_FAILED, ptr);
        return (char*)ptr;
    }

    static ucs_status_t
    atomic(nprdma_atomic_op_t op, size_t size, void *ptr, uint64_t value,
           uint64_t compare = 0, uint64_t *old_p = nullptr)
    {
        uint64_t old;
        ucs_status_t status;

        status = nprdma_access_atomic(op, size, (uintptr_t)ptr, value, compare,
                                      (old_p == nullptr) ? &old : old_p);
        return status;
    }

    /* Every kind of access to memory without access rights */
    static void expect_faults(char *ptr, bool readable = false)
    {
        char buffer[64] = {};
        for (size_t length : {1, 2, 4, 8, 3, 64}) {
            EXPECT_EQ(UCS_ERR_INVALID_ADDR,
                      nprdma_access_store((uintptr_t)ptr, buffer, length));
            EXPECT_EQ(readable ? UCS_OK : UCS_ERR_INVALID_ADDR,
                      nprdma_access_fetch(buffer, (uintptr_t)ptr, length));
        }
        EXPECT_EQ(UCS_ERR_INVALID_ADDR, atomic(NPRDMA_ATOMIC_ADD, 4, ptr, 1));
        EXPECT_EQ(UCS_ERR_INVALID_ADDR, atomic(NPRDMA_ATOMIC_CSWAP, 8, ptr, 1));
    }

    template<typename T> static void check_atomics()
    {
        T memory[3]  = {T(0x5555555555555555), T(0x1234567812345678),
                        T(0xaaaaaaaaaaaaaaaa)};
        T expected   = memory[1];
        T operand    = T(0xf0f0f0f0f0f0f0f0);
        size_t size  = sizeof(T);
        uint64_t old = 0;

        auto check = [&](T next) {
            EXPECT_EQ((uint64_t)expected, old);
            EXPECT_EQ(next, memory[1]);
            EXPECT_EQ(T(0x5555555555555555), memory[0]);
            EXPECT_EQ(T(0xaaaaaaaaaaaaaaaa), memory[2]);
            expected = next;
        };

        EXPECT_EQ(UCS_OK, atomic(NPRDMA_ATOMIC_ADD, size, &memory[1], operand,
                                 0, &old));
        check(T(expected + operand));
        EXPECT_EQ(UCS_OK, atomic(NPRDMA_ATOMIC_AND, size, &memory[1], operand,
                                 0, &old));
        check(expected & operand);
        EXPECT_EQ(UCS_OK, atomic(NPRDMA_ATOMIC_OR, size, &memory[1], T(0x77), 0,
                                 &old));
        check(expected | T(0x77));
        EXPECT_EQ(UCS_OK, atomic(NPRDMA_ATOMIC_XOR, size, &memory[1], operand,
                                 0, &old));
        check(expected ^ operand);
        EXPECT_EQ(UCS_OK, atomic(NPRDMA_ATOMIC_SWAP, size, &memory[1], 42, 0,
                                 &old));
        check(42);
        EXPECT_EQ(UCS_OK, atomic(NPRDMA_ATOMIC_CSWAP, size, &memory[1], 43, 41,
                                 &old));
        check(42);
        EXPECT_EQ(UCS_OK, atomic(NPRDMA_ATOMIC_CSWAP, size, &memory[1], 43, 42,
                                 &old));
        check(43);
    }

    static void check_copies()
    {
        const size_t size = 4 * page;
        char *ptr         = map(size);
        std::vector<char> data(2 * page + 100);

        std::iota(data.begin(), data.end(), 1);
        for (size_t offset : {size_t(0), size_t(1), page - 4, page - 1}) {
            for (size_t length : {size_t(0), size_t(1), size_t(2), size_t(4),
                                  size_t(7), size_t(8), size_t(9), page,
                                  2 * page, data.size()}) {
                std::vector<char> copy(length + 1);
                memset(ptr, 0, size);
                ASSERT_EQ(UCS_OK, nprdma_access_store((uintptr_t)ptr + offset,
                                                      data.data(), length));
                ASSERT_EQ(0, memcmp(ptr + offset, data.data(), length));
                ASSERT_EQ((long)(size - length),
                          std::count(ptr, ptr + offset, 0) +
                          std::count(ptr + offset + length, ptr + size, 0));
                ASSERT_EQ(UCS_OK,
                          nprdma_access_fetch(copy.data(),
                                              (uintptr_t)ptr + offset, length));
                ASSERT_EQ(0, memcmp(copy.data(), data.data(), length));
            }
        }
        munmap(ptr, size);
    }
};

TEST_F(test_access, copies)
{
    check_copies();
}

TEST_F(test_access, atomics)
{
    check_atomics<uint32_t>();
    check_atomics<uint64_t>();
}

TEST_F(test_access, bad_atomics)
{
    uint64_t memory[2] = {1, 2};

    EXPECT_EQ(UCS_ERR_INVALID_PARAM,
              atomic(NPRDMA_ATOMIC_ADD, 8, (char*)memory + 4, 1));
    EXPECT_EQ(UCS_ERR_INVALID_PARAM,
              atomic(NPRDMA_ATOMIC_ADD, 4, (char*)memory + 2, 1));
    EXPECT_EQ(UCS_ERR_INVALID_PARAM, atomic(NPRDMA_ATOMIC_ADD, 2, memory, 1));
    EXPECT_EQ(UCS_ERR_INVALID_PARAM, atomic(NPRDMA_ATOMIC_ADD, 16, memory, 1));
    EXPECT_EQ(UCS_ERR_INVALID_PARAM, atomic(NPRDMA_ATOMIC_LAST, 8, memory, 1));
    EXPECT_EQ(1u, memory[0]);
    EXPECT_EQ(2u, memory[1]);
}

TEST_F(test_access, read_only)
{
    char *ptr = map(page, PROT_READ);

    expect_faults(ptr, true);
    munmap(ptr, page);
}

/* Two threads add to the same word, one of them by nprdma_access_xx() */
TEST_F(test_access, atomic_towards_the_cpu)
{
    static const int count = 100000;
    uint64_t word = 0;

    std::thread cpu([&]() {
        for (int i = 0; i < count; ++i) {
            __atomic_fetch_add(&word, 1, __ATOMIC_RELAXED);
        }
    });
    for (int i = 0; i < count; ++i) {
        EXPECT_EQ(UCS_OK, atomic(NPRDMA_ATOMIC_ADD, 8, &word, 1));
    }
    cpu.join();
    EXPECT_EQ(2u * count, word);
}

/* Two threads add to the same word, while the application takes the handler
 * away and gives it back: some by the CPU, some on copies */
TEST_F(test_access, atomic_by_cpu_and_copies_at_once)
{
    struct sigaction ours, other = {};
    std::atomic<bool> stop(false);
    std::atomic<uint64_t> count(0);
    uint64_t word = 0;

    auto add = [&]() {
        for (; !stop; ++count) {
            EXPECT_EQ(UCS_OK, atomic(NPRDMA_ATOMIC_ADD, 8, &word, 1));
        }
    };
    std::thread first(add), second(add);
    other.sa_handler = [](int) { _exit(1); };
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (std::chrono::steady_clock::now() < end) {
        sigaction(SIGSEGV, &other, &ours);
        nprdma_fault_check();
        std::this_thread::yield();
        sigaction(SIGSEGV, &ours, nullptr);
        nprdma_fault_check();
        std::this_thread::yield();
    }
    stop = true;
    first.join();
    second.join();
    EXPECT_EQ(count, word);
}

TEST_F(test_access, words_are_never_torn)
{
    alignas(8) uint64_t word = 0;
    std::atomic<bool> stop(false);
    std::atomic<uint64_t> torn(0);

    std::thread reader([&]() {
        while (!stop) {
            uint64_t value = __atomic_load_n(&word, __ATOMIC_RELAXED);
            torn += (value != 0) && (value != UINT64_MAX);
        }
    });
    for (uint64_t i = 0; i < 200000; ++i) {
        uint64_t value = 0 - (i & 1);
        EXPECT_EQ(UCS_OK, nprdma_access_store((uintptr_t)&word, &value, 8));
    }
    stop = true;
    reader.join();
    EXPECT_EQ(0u, torn);
}

/* A child does not access the memory of its parent */
TEST_F(test_access, forked_child)
{
    char *ptr = map(page);

    expect_child([&]() {
        char data[64];
        memset(data, 'c', sizeof(data));
        return (nprdma_access_init() == UCS_OK) && nprdma_access_is_direct() &&
               (nprdma_access_store((uintptr_t)ptr, data, 64) == UCS_OK) &&
               (nprdma_access_store((uintptr_t)ptr + 64, data, 8) == UCS_OK) &&
               (memcmp(ptr, data, 64) == 0) &&
               (memcmp(ptr + 64, data, 8) == 0) &&
               (atomic(NPRDMA_ATOMIC_ADD, 8, ptr + 128, 1) == UCS_OK);
    });
    EXPECT_EQ(page, (size_t)std::count(ptr, ptr + page, 0));
    check_copies();
    munmap(ptr, page);
}

/* Memory events are not needed. Where another handler has replaced ours,
 * everything works by copies. */
TEST(test_access_copy, works_without_events_and_handler)
{
    expect_child([]() {
        struct any_mode : test_access {
            void check(bool is_direct)
            {
                ASSERT_EQ(UCS_OK, nprdma_access_init());
                EXPECT_EQ(is_direct, nprdma_access_is_direct());
                check_copies();
                check_atomics<uint32_t>();
                check_atomics<uint64_t>();
                char *ptr = map(page);
                munmap(ptr, page);
                expect_faults(ptr);
                nprdma_access_cleanup();
            }
            void TestBody() override
            {
                check(true);
                EXPECT_EQ(UCS_OK, nprdma_access_init());
                signal(SIGSEGV, [](int) { _exit(1); });
                nprdma_access_cleanup();
                check(false);
            }
        } test;
        ucm_global_config_t opts = ucm_global_opts;

        opts.enable_events = 0;
        ucm_set_global_opts(&opts);
        test.TestBody();
        return !::testing::Test::HasFailure();
    });
}
