/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* CPU instructions on memory that another thread takes away at the same time */

#include <ucm/access/nprdma_access.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include <csignal>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

class test_touch : public ::testing::Test {
protected:
    static constexpr size_t page = 4096;

    void SetUp() override
    {
        ASSERT_EQ(UCS_OK, nprdma_access_init());
        ASSERT_TRUE(nprdma_fault_enter(&m_section));
    }

    void TearDown() override
    {
        nprdma_fault_leave(&m_section);
        nprdma_access_cleanup();
    }

    static char *map(size_t length, int flags = MAP_PRIVATE | MAP_ANONYMOUS,
                     int fd = -1)
    {
        void *ptr = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, fd, 0);
        EXPECT_NE(MAP_FAILED, ptr);
        return (char*)ptr;
    }

    /* Two pages, the second without access rights */
    static char *map_edge()
    {
        char *ptr = map(2 * page);
        EXPECT_EQ(0, mprotect(ptr + page, page, PROT_NONE));
        return ptr + page;
    }

    nprdma_fault_section_t m_section;
};

/* No byte beyond the edge is accessed, on either side, for many lengths */
TEST_F(test_touch, copies_up_to_the_edge)
{
    std::vector<size_t> lengths(300);
    char *from = map_edge();
    char *to   = map_edge();

    std::iota(lengths.begin(), lengths.end(), 0);
    for (size_t length : {700, 767, 768, 769, 1000, 2047, 3333, 4096}) {
        lengths.push_back(length);
    }
    for (size_t i = 0; i < page; ++i) {
        from[-1 - (long)i] = (char)(i * 7 + i / 256 + 1);
    }
    for (size_t length : lengths) {
        memset(to - page, 0, page);
        ASSERT_EQ(0, nprdma_touch_copy(to - length, from - length, length,
                                       to - length));
        ASSERT_EQ(0, memcmp(to - length, from - length, length)) << length;
        for (size_t i = length; i < page; ++i) {
            ASSERT_EQ(0, to[-1 - (long)i]) << length;
        }
        memset(to - page, 0, page);
        ASSERT_EQ(0, nprdma_touch_copy(to - page, from - length, length,
                                       from - length));
        ASSERT_EQ(0, memcmp(to - page, from - length, length)) << length;
    }
    munmap(from - page, 2 * page);
    munmap(to - page, 2 * page);
}

TEST_F(test_touch, faults_behind_the_edge)
{
    std::vector<char> here(2 * page);
    char *edge = map_edge();
    uint64_t word = 0;

    for (size_t length : {1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 100, 128,
                          767, 768, 2000, 4096}) {
        for (size_t inside : {size_t(0), size_t(1), length / 2, length - 1}) {
            if (inside >= length) {
                continue;
            }
            char *app = edge - inside;
            ASSERT_EQ(NPRDMA_TOUCH_FAULT,
                      nprdma_touch_copy(app, here.data(), length, app));
            ASSERT_EQ(NPRDMA_TOUCH_FAULT,
                      nprdma_touch_copy(here.data(), app, length, app));
        }
    }

    EXPECT_EQ(NPRDMA_TOUCH_FAULT, nprdma_touch_cswap4(edge, &word, 1));
    EXPECT_EQ(NPRDMA_TOUCH_FAULT, nprdma_touch_cswap8(edge, &word, 1));
    EXPECT_EQ(NPRDMA_TOUCH_FAULT, nprdma_touch_lines(edge - 64, 2, 0));
    EXPECT_EQ(NPRDMA_TOUCH_FAULT, nprdma_touch_lines(edge, 1, 0));
    munmap(edge - page, 2 * page);
}

/* Non-canonical addresses, and those of the kernel */
TEST_F(test_touch, impossible_addresses)
{
    for (uint64_t address : {UINT64_C(0), UINT64_C(0x5a5a5a5a5a5a5a58),
                             UINT64_C(0x8000000000000000),
                             UINT64_C(0x00007ffffffffff8),
                             UINT64_C(0xffff800000000000),
                             UINT64_C(0xfffffffffffffff8)}) {
        void *app     = (void*)address;
        char here[64] = {};
        uint64_t word = 0;

        EXPECT_EQ(NPRDMA_TOUCH_FAULT, nprdma_touch_cswap8(app, &word, 1));
        EXPECT_EQ(NPRDMA_TOUCH_FAULT, nprdma_touch_copy(here, app, 8, app));
        EXPECT_EQ(NPRDMA_TOUCH_FAULT, nprdma_touch_copy(app, here, 24, app));
    }
}

/* A reader resets a byte when it sees it. The byte is not stored again, however
 * the other bytes are stored. */
TEST_F(test_touch, no_byte_is_stored_twice)
{
    for (size_t length : {3, 15, 33, 77, 1000}) {
        std::vector<char> memory(length), data(length, 1);
        std::atomic<bool> stop(false);
        std::atomic<int> seen(0);
        char *byte = &memory[length - 2];

        std::thread owner([&]() {
            while (!stop) {
                if (__atomic_load_n(byte, __ATOMIC_SEQ_CST) != 0) {
                    ++seen;
                    __atomic_store_n(byte, 0, __ATOMIC_SEQ_CST);
                    std::this_thread::yield();
                }
            }
        });
        for (int i = 1; i <= 300; ++i) {
            nprdma_touch_copy(memory.data(), data.data(), length,
                              memory.data());
            while (__atomic_load_n(byte, __ATOMIC_SEQ_CST) != 0) {
                std::this_thread::yield();
            }
            EXPECT_EQ(i, seen) << length;
        }
        stop = true;
        owner.join();
    }
}

/* ---- storms ---- */

class test_touch_storm : public test_touch {
protected:
    static constexpr size_t length = 2 * page;

    /* All accesses, repeatedly, while another thread changes the memory; no
     * signal */
    void access_in(char *ptr, const std::function<void(int)> &storm)
    {
        std::atomic<bool> stop(false);
        std::atomic<int> rounds(0);
        int done = 0, failed = 0;

        std::thread other([&]() {
            for (int i = 0; !stop; ++i) {
                storm(i);
                ++rounds;
            }
        });
        while ((rounds < 2000) || (((done < 1000) || (failed < 1000)) &&
                                   (rounds < 2000000))) {
            access_all(ptr, &done, &failed);
        }
        stop = true;
        other.join();
        EXPECT_GT(done, 0);
        EXPECT_GT(failed, 0);
    }

    static void access_all(char *ptr, int *done, int *failed)
    {
        static char here[length];
        uintptr_t address = (uintptr_t)ptr;
        uint64_t old;

        auto count = [&](ucs_status_t status) {
            if (status == UCS_OK) {
                ++*done;
            } else if (status == UCS_ERR_BUSY) {
                std::this_thread::yield();
            } else {
                ASSERT_EQ(UCS_ERR_INVALID_ADDR, status);
                ++*failed;
            }
        };

        for (size_t size : {1, 2, 4, 8, 13, 100, 1000, 8192}) {
            count(nprdma_access_store(address, here, size));
            count(nprdma_access_fetch(here, address, size));
        }
        count(nprdma_access_atomic(NPRDMA_ATOMIC_ADD, 8, address, 1, 0, &old));
        count(nprdma_access_atomic(NPRDMA_ATOMIC_SWAP, 4, address, 1, 0, &old));
        count((nprdma_touch_lines(ptr, length / 64, 1) < 0) ?
              UCS_ERR_INVALID_ADDR : UCS_OK);
    }
};

/* By raw system calls, which bypass the hooks */
TEST_F(test_touch_storm, munmap_unseen)
{
    char *ptr = map(length);

    access_in(ptr, [=](int i) {
        if (i % 2) {
            syscall(SYS_mmap, ptr, length, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        } else {
            syscall(SYS_munmap, ptr, length);
        }
    });
    munmap(ptr, length);
}

/* Changes by another process, which no hook reports */
TEST_F(test_touch_storm, truncated_by_another_process)
{
    int fd = memfd_create("nprdma-test", MFD_CLOEXEC);
    ASSERT_EQ(0, ftruncate(fd, length));
    char *ptr = map(length, MAP_SHARED, fd);
    int done = 0, failed = 0;

    pid_t parent = getpid();
    pid_t pid    = fork();
    if (pid == 0) {
        while ((ftruncate(fd, 0) == 0) && (ftruncate(fd, length) == 0) &&
               (getppid() == parent)) {
        }
        _exit(1);
    }
    for (int i = 0; (i < 1000000) && ((done < 5000) || (failed < 5000)); ++i) {
        access_all(ptr, &done, &failed);
    }
    EXPECT_GT(done, 0);
    EXPECT_GT(failed, 0);
    ::kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    munmap(ptr, length);
    close(fd);
}
