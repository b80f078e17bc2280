/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_monitor.h"

/*
 * Only the kernel module can do this: it gets all events, whatever causes them.
 * Run in the guest, with swap.
 */
class test_monitor_kernel : public test_monitor {
protected:
    static constexpr size_t size = 64 * page;

    void SetUp() override
    {
        if (!on_kernel()) {
            GTEST_SKIP() << "needs the kernel module, in the guest "
                            "(NPRDMA_TEST_BACKEND=kernel)";
        }
        test_monitor::SetUp();
        params.drain = nullptr; /* The NIC uses the views: no hooks */
    }

    void TearDown() override
    {
        if (ptr != nullptr) {
            unreg(&range);
        }
        test_monitor::TearDown();
    }

    /* Memory with contents, populated */
    void make(unsigned flags = NPRDMA_POPULATE_WRITE)
    {
        start();
        ptr = map(size);
        madvise(ptr, size, MADV_NOHUGEPAGE);
        memset(ptr, 0x5a, size);
        ASSERT_EQ(UCS_OK, reg(&range, ptr, size));
        ASSERT_EQ(UCS_OK, populate(&range, flags));
        ASSERT_EQ(flags ? 3 : 1, all_bits(&range, ptr, size));
    }

    /* All of the pages were taken. The states were cleared at once, and the
     * pages counted. */
    void expect_taken(size_t offset = 0, size_t length = size)
    {
        nprdma_monitor_stats_t after = stats();
        EXPECT_EQ(0, all_bits(&range, ptr + offset, length));
        EXPECT_GE(after.kernel_invalidated, length / page);
        EXPECT_GE(after.kernel_events, 1u);
        EXPECT_EQ(0, drains);
    }

    /* The pages can be populated again, with their contents */
    void expect_back(uint8_t value = 0x5a)
    {
        ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
        EXPECT_EQ(3, all_bits(&range, ptr, size));
        for (size_t i = 0; i < size; ++i) {
            ASSERT_EQ(value, (uint8_t)ptr[i]) << i;
        }
    }

    /* Other memory is there, which is for a new registration only */
    void expect_retired(uint8_t value)
    {
        EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range));
        EXPECT_EQ(UCS_ERR_INVALID_ADDR,
                  populate(&range, NPRDMA_POPULATE_WRITE));
        *(volatile char*)ptr = (char)value; /* Resident */
        EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_RESIDENT));
        EXPECT_EQ(0, all_bits(&range, ptr, size));
        unreg(&range);
        ASSERT_EQ(UCS_OK, reg(&range, ptr, size));
        expect_back(value);
    }

    char           *ptr = nullptr;
    nprdma_range_t range;
};

/* Registering pages that are populated needs no call to the kernel */
TEST_F(test_monitor_kernel, registering_populated_pages_needs_no_call)
{
    nprdma_range_t other;

    make();
    EXPECT_NE(0u, range.backend);
    ASSERT_EQ(UCS_OK, reg(&other, ptr, size));
    EXPECT_EQ(UCS_OK, populate(&other, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(0u, other.backend);
    ASSERT_EQ(0, madvise(ptr, page, MADV_DONTNEED));
    EXPECT_EQ(UCS_OK, populate(&other, NPRDMA_POPULATE_WRITE));
    EXPECT_NE(0u, other.backend);
    unreg(&other);

    /* The first registration covers them, so nothing was taken */
    EXPECT_EQ(3, all_bits(&range, ptr, size));
}

/* By system calls that UCM does not hook, and those for which it has no
 * event */
TEST_F(test_monitor_kernel, raw_system_calls)
{
    make();
    ASSERT_EQ(0, syscall(SYS_madvise, ptr, size, MADV_DONTNEED));
    expect_taken();
    expect_back(0);

    ASSERT_EQ(0, mprotect(ptr, size, PROT_NONE));
    expect_taken();
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range));
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_RESIDENT));
    EXPECT_EQ(0, all_bits(&range, ptr, size));
    ASSERT_EQ(0, mprotect(ptr, size, PROT_READ | PROT_WRITE));
    expect_back(0);

    memset(ptr, 7, size);
    void *room = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);
    long moved = syscall(SYS_mremap, ptr, size, size,
                         MREMAP_MAYMOVE | MREMAP_FIXED, room);
    ASSERT_EQ((long)room, moved);
    expect_taken();
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range));
    ASSERT_EQ((long)ptr, syscall(SYS_mremap, moved, size, size,
                                 MREMAP_MAYMOVE | MREMAP_FIXED, ptr));
    expect_retired(7);

    raw_munmap(ptr, size);
    expect_taken();
    raw_mmap(ptr, size);
    expect_retired(0);
}

/* The NIC never gets pages of a file, but gets private copies of them */
TEST_F(test_monitor_kernel, files)
{
    char path[] = "/run/disk/nprdma_test_XXXXXX";
    int fd      = mkstemp(path);
    if (fd < 0) {
        fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    } else {
        unlink(path);
        ASSERT_EQ(0, ftruncate(fd, size));
    }
    ASSERT_GE(fd, 0);
    start();
    ptr = map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
    ASSERT_EQ(UCS_OK, reg(&range, ptr, size));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range));
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(3, all_bits(&range, ptr, size));
    close(fd);
}

/* By the library's calls, of which no hook tells, and for each page alone */
TEST_F(test_monitor_kernel, pages_are_retired_without_hooks)
{
    nprdma_range_t other;

    make();
    munmap(ptr, size);
    expect_taken();
    raw_mmap(ptr, size);
    expect_retired(0);

    ASSERT_EQ(ptr, mmap(ptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    ASSERT_EQ(UCS_OK, reg(&other, ptr + page + 10, 2 * page));
    EXPECT_EQ(UCS_OK, populate(&other));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range, ptr, page));
    EXPECT_EQ(UCS_OK, populate(&range, ptr + page, 3 * page));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range, ptr + page, 4 * page));
    EXPECT_EQ(1, all_bits(&range, ptr + page, 3 * page));
    EXPECT_EQ(0, all_bits(&range, ptr + 4 * page, size - 4 * page));
    unreg(&other);
    EXPECT_EQ(0u, stats().events);
}
