/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Files of the NIC. Where they may not be large (ulimit -f) this is an error,
 * and not the end of the program: each test has a process of its own, which
 * dies of SIGXFSZ otherwise.
 */

#include "npemu_test.h"

extern "C" {
#include "npemu_iommu.h"
}

#include <csignal>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace npt;

namespace {

bool is_pending()
{
    sigset_t pending;

    sigpending(&pending);
    return sigismember(&pending, SIGXFSZ);
}

/* Neither kills the program, nor changes its own signals. */
TEST(test_file, limit_is_an_error)
{
    in_child([] {
        struct rlimit limit = {8192, 8192};
        npemu_iommu_t iommu;
        sigset_t set;
        int fd = memfd_create("full", 0);

        ASSERT_EQ(0, setrlimit(RLIMIT_FSIZE, &limit));
        EXPECT_EQ(EFBIG, npemu_iommu_create(0x10000000, 1 << 20, 1, &iommu));
        EXPECT_FALSE(is_pending());
        EXPECT_EQ(0, pthread_sigmask(SIG_SETMASK, nullptr, &set));
        EXPECT_FALSE(sigismember(&set, SIGXFSZ));

        /* Blocked by the program, which has caused one itself */
        ASSERT_EQ(0, ftruncate(fd, 8192));
        ASSERT_EQ(8192, lseek(fd, 0, SEEK_END));
        sigaddset(&set, SIGXFSZ);
        pthread_sigmask(SIG_BLOCK, &set, nullptr);
        EXPECT_EQ(EFBIG, npemu_iommu_create(0x10000000, 1 << 20, 1, &iommu));
        EXPECT_FALSE(is_pending());
        EXPECT_EQ(-1, write(fd, "x", 1));
        EXPECT_EQ(EFBIG, npemu_iommu_create(0x10000000, 1 << 20, 1, &iommu));
        EXPECT_TRUE(is_pending());
    });
}

} // namespace
