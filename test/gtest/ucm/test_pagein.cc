/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <gtest/gtest.h>

#include "test_child.h"
#include "ucm/access/nprdma_pagein.h"

#include <atomic>
#include <thread>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

class test_pagein : public ::testing::Test {
protected:
    static constexpr size_t page      = 4096;
    static constexpr size_t num_pages = 8;

    void SetUp() override
    {
        ASSERT_EQ(UCS_OK, nprdma_pagein_init());
        m_ptr = (char*)mmap(nullptr, num_pages * page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(MAP_FAILED, (void*)m_ptr);
        madvise(m_ptr, num_pages * page, MADV_NOHUGEPAGE);
    }

    void TearDown() override
    {
        munmap(m_ptr, num_pages * page);
        nprdma_pagein_cleanup();
    }

    size_t in_memory(size_t first, size_t count) const
    {
        return nprdma_pagein_in_memory((uintptr_t)m_ptr + (first * page),
                                       count);
    }

    char *m_ptr;
};

TEST_F(test_pagein, in_memory_ends_at_the_first_absent_page)
{
    EXPECT_EQ(0u, in_memory(0, num_pages));
    for (size_t i : {0, 1, 2, 4}) {
        m_ptr[i * page] = 1;
    }
    EXPECT_EQ(3u, in_memory(0, num_pages));
    EXPECT_EQ(2u, in_memory(0, 2));
    EXPECT_EQ(1u, in_memory(2, 2));
    EXPECT_EQ(0u, in_memory(3, 1));
    EXPECT_EQ(1u, in_memory(4, 4));
}

/* It may have closed what it has inherited, and have opened others since */
TEST_F(test_pagein, child_keeps_its_files)
{
    expect_child([]() {
        int last;

        syscall(SYS_close_range, 3, ~0u, 0);
        do {
            last = dup(0);
        } while ((last >= 0) && (last < 100));
        bool good = nprdma_pagein_init() == UCS_OK;
        for (int fd = 3; fd <= last; ++fd) {
            good = good && (fcntl(fd, F_GETFD) == 0);
        }
        nprdma_pagein_cleanup();
        return good;
    });
}

/* The access reports that there is no memory */
TEST_F(test_pagein, in_memory_if_not_mapped)
{
    ASSERT_EQ(0, munmap(m_ptr, page));
    EXPECT_EQ(1u, in_memory(0, 1));
}
