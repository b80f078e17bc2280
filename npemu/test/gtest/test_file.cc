/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Files of the NIC. Where they may not be large (ulimit -f) this is an error,
 * and not the end of the program: each test has a process of its own, which
 * dies of SIGXFSZ otherwise.
 */

#include "npemu_test.h"

extern "C" {
#include "base/npemu_file.h"
#include "npemu_iommu.h"
#include "base/npemu_log.h"
}

#include <csignal>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace npt;

namespace {

constexpr size_t LIMIT = 8192;

void limit_files()
{
    struct rlimit limit = {LIMIT, LIMIT};

    ASSERT_EQ(0, setrlimit(RLIMIT_FSIZE, &limit));
}

bool is_pending()
{
    sigset_t pending;

    sigpending(&pending);
    return sigismember(&pending, SIGXFSZ);
}

bool is_blocked()
{
    sigset_t blocked;

    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    return sigismember(&blocked, SIGXFSZ);
}

/* A file that is as large as it may be */
int full_file()
{
    int fd = memfd_create("full", 0);

    EXPECT_EQ(0, ftruncate(fd, LIMIT));
    EXPECT_EQ((off_t)LIMIT, lseek(fd, 0, SEEK_END));
    return fd;
}

TEST(test_file_limit, table_creation_fails)
{
    in_child([] {
        npemu_iommu_t iommu;

        limit_files();
        EXPECT_EQ(EFBIG, npemu_iommu_create(0x10000000, 1 << 20, 1, &iommu));
        EXPECT_FALSE(is_pending());
        EXPECT_FALSE(is_blocked());
    });
}

/* The program's own signals are as they were. */
TEST(test_file_limit, signals_of_the_program_are_kept)
{
    in_child([] {
        sigset_t set;

        limit_files();
        int fd = full_file();
        EXPECT_EQ(-1, npemu_file_write(fd, "x", 1));
        EXPECT_EQ(EFBIG, errno);
        EXPECT_FALSE(is_pending());

        sigemptyset(&set);
        sigaddset(&set, SIGXFSZ);
        pthread_sigmask(SIG_BLOCK, &set, nullptr);
        EXPECT_EQ(-1, npemu_file_write(fd, "x", 1));
        EXPECT_FALSE(is_pending());
        EXPECT_TRUE(is_blocked());

        /* One that it caused itself */
        EXPECT_EQ(-1, write(fd, "x", 1));
        EXPECT_TRUE(is_pending());
        EXPECT_EQ(-1, npemu_file_write(fd, "x", 1));
        EXPECT_TRUE(is_pending());
    });
}

} // namespace
