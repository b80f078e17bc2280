/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Words are stored with one CPU instruction, even if the page has changed
 * meanwhile */

#include <ucm/access/nprdma_access.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

class test_access_word : public ::testing::Test {
protected:
    static constexpr size_t page = 4096;

    void SetUp() override
    {
        ASSERT_EQ(UCS_OK, nprdma_access_init());
        ASSERT_TRUE(nprdma_access_is_direct());
    }

    void TearDown() override
    {
        nprdma_access_cleanup();
    }

    static char *
    map(void *where = nullptr, int fd = -1, int flags = MAP_PRIVATE)
    {
        void *ptr = mmap(where, page, PROT_READ | PROT_WRITE,
                         flags | ((fd < 0) ? MAP_ANONYMOUS : 0) |
                         ((where == nullptr) ? 0 : MAP_FIXED), fd, 0);
        EXPECT_NE(MAP_FAILED, ptr);
        return (char*)ptr;
    }

    template<typename T> static ucs_status_t store(void *ptr, T value)
    {
        return nprdma_access_store((uintptr_t)ptr, &value, sizeof(value));
    }

    static ucs_status_t add(void *ptr, uint32_t value)
    {
        uint64_t old;

        return nprdma_access_atomic(NPRDMA_ATOMIC_ADD, sizeof(value),
                                    (uintptr_t)ptr, value, 0, &old);
    }

    /* Each kind of word, at both ends of the page */
    static void expect_stores(char *ptr)
    {
        for (size_t i : {(size_t)0, page - 8}) {
            ASSERT_EQ(UCS_OK, store(ptr + i, (uint64_t)0x1122334455667788));
            ASSERT_EQ(UCS_OK, store(ptr + i, (uint32_t)0xa));
            ASSERT_EQ(UCS_OK, store(ptr + i + 6, (uint16_t)0xb));
            ASSERT_EQ(UCS_OK, store(ptr + i + 5, (uint8_t)0xc));
            ASSERT_EQ(UCS_OK, add(ptr + i, 7));
            ASSERT_EQ(0x000b0c440000000au + 7, *(uint64_t*)(ptr + i));
        }
    }

    static void expect_faults(char *ptr)
    {
        for (size_t i : {(size_t)0, page - 8}) {
            EXPECT_EQ(UCS_ERR_INVALID_ADDR, store(ptr + i, (uint64_t)1));
            EXPECT_EQ(UCS_ERR_INVALID_ADDR, store(ptr + i, (uint32_t)1));
            EXPECT_EQ(UCS_ERR_INVALID_ADDR, store(ptr + i + 6, (uint16_t)1));
            EXPECT_EQ(UCS_ERR_INVALID_ADDR, store(ptr + i + 7, (uint8_t)1));
            EXPECT_EQ(UCS_ERR_INVALID_ADDR, add(ptr + i, 1));
        }
    }

    /* Raw system calls bypass the hooks, so the page counts as mapped */
    static void protect(char *ptr, int prot)
    {
        ASSERT_EQ(0, syscall(SYS_mprotect, ptr, page, prot));
    }

    static void drop(char *ptr)
    {
        ASSERT_EQ(0, syscall(SYS_madvise, ptr, page, MADV_DONTNEED));
    }
};

TEST_F(test_access_word, shared_file)
{
    int fd = memfd_create("nprdma-test", MFD_CLOEXEC);
    ASSERT_EQ(0, ftruncate(fd, page));
    char *ptr   = map(nullptr, fd, MAP_SHARED);
    char *other = map(nullptr, fd, MAP_SHARED);

    expect_stores(ptr);
    drop(ptr);
    expect_stores(ptr);
    EXPECT_EQ(0, memcmp(ptr, other, page));

    ASSERT_EQ(0, ftruncate(fd, 0));
    expect_faults(ptr);
    ASSERT_EQ(0, ftruncate(fd, page));
    expect_stores(ptr);
    munmap(ptr, page);
    munmap(other, page);
    close(fd);
}

TEST_F(test_access_word, protected_meanwhile)
{
    char *ptr = map();

    for (int prot : {PROT_READ, PROT_NONE}) {
        for (bool is_absent : {false, true}) {
            expect_stores(ptr);
            if (is_absent) {
                drop(ptr);
            }
            protect(ptr, prot);
            expect_faults(ptr);
            protect(ptr, PROT_READ | PROT_WRITE);
            EXPECT_EQ(is_absent ? 0 : 0x11, *ptr);
        }
    }
    munmap(ptr, page);
}

/* The kernel does not copy secret memory. The CPU may access it, because it
 * belongs to the process. */
TEST_F(test_access_word, replaced_by_secret_memory)
{
    int fd = (int)syscall(SYS_memfd_secret, O_CLOEXEC);
    if (fd < 0) {
        GTEST_SKIP() << "no memfd_secret here: " << strerror(errno);
    }
    ASSERT_EQ(0, ftruncate(fd, page));
    char *ptr = map();

    expect_stores(ptr);
    ASSERT_EQ(ptr, map(ptr, fd, MAP_SHARED));
    expect_stores(ptr);
    ASSERT_EQ(ptr, map(ptr));
    expect_stores(ptr);
    munmap(ptr, page);
    close(fd);
}

/* A store of a byte loses no update of its neighbours in the word */
TEST_F(test_access_word, neighbouring_bytes_are_not_written)
{
    static const int count = 200000;
    alignas(4) std::atomic<uint16_t> halves[2] = {};
    std::atomic<bool> is_done(false);
    int lost = 0;

    /* Until all stores are done, which take longer than the start of this
     * thread */
    std::thread cpu([&]() {
        for (uint16_t sum = 0; !is_done; ++sum) {
            uint16_t seen = halves[1].fetch_add(1);
            if (seen != sum) {
                ++lost;
                sum = seen;
            }
        }
    });
    while (halves[1] == 0) {
        std::this_thread::yield();
    }
    for (int i = 0; i < count; ++i) {
        EXPECT_EQ(UCS_OK, store(&halves[0], (uint16_t)i));
    }
    is_done = true;
    cpu.join();
    EXPECT_EQ(0, lost);
    EXPECT_EQ((uint16_t)(count - 1), halves[0]);
}
