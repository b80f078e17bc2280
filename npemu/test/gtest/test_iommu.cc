/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Tables of the emulated IOMMU: their life, states, gates, drains. */

#include "internals.h"
#include "npemu_test.h"

extern "C" {
#include "npemu_iommu.h"
}

#include <thread>

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace npt;

namespace {

constexpr uint64_t ADDRESS   = 0x7f0000000000;
constexpr uint64_t SIGNATURE = 0x5a5a1234c0ffee77;

class test_iommu : public testing::Test {
protected:
    void SetUp() override
    {
        ASSERT_EQ(0, npemu_iommu_create(ADDRESS, PAGES * NPRDMA_PAGE_SIZE,
                                        SIGNATURE, &iommu));
    }

    void TearDown() override { npemu_iommu_destroy(&iommu); }

    size_t invalidate(size_t first, size_t count, int touch = 0)
    {
        return npemu_iommu_invalidate(&iommu, first, count, NPRDMA_PAGE_BITS,
                                      touch);
    }

    static constexpr size_t PAGES = 5000; /* more than a page of words */
    npemu_iommu_t iommu;
};

TEST_F(test_iommu, file_size_is_sealed)
{
    struct stat st;

    ASSERT_EQ(0, fstat(iommu.fd, &st));
    EXPECT_EQ(-1, ftruncate(iommu.fd, 4096));
    EXPECT_EQ(-1, ftruncate(iommu.fd, st.st_size + 4096));
}

TEST_F(test_iommu, every_change_is_counted)
{
    nprdma_page_state_t *state = &iommu.states[17];

    EXPECT_TRUE(nprdma_page_change(state, 0, NPRDMA_PAGE_R));
    EXPECT_EQ(NPRDMA_PAGE_COUNT | NPRDMA_PAGE_R, nprdma_page_load(state));
    /* Decided on what is no longer so */
    EXPECT_FALSE(nprdma_page_change(state, 0, NPRDMA_PAGE_BITS));
    EXPECT_TRUE(nprdma_page_change(state, nprdma_page_load(state),
                                   NPRDMA_PAGE_BITS));
    EXPECT_EQ(2 * NPRDMA_PAGE_COUNT | NPRDMA_PAGE_BITS,
              nprdma_page_load(state));
    nprdma_page_clear(state, NPRDMA_PAGE_W);
    EXPECT_EQ(3 * NPRDMA_PAGE_COUNT | NPRDMA_PAGE_R, nprdma_page_load(state));
    nprdma_page_clear(state, NPRDMA_PAGE_W);
    EXPECT_EQ(3 * NPRDMA_PAGE_COUNT | NPRDMA_PAGE_R, nprdma_page_load(state));
}

TEST_F(test_iommu, invalidate_reports_if_a_drain_is_due)
{
    for (size_t i = 10; i < 20; ++i) {
        EXPECT_TRUE(nprdma_page_change(&iommu.states[i], 0, NPRDMA_PAGE_W));
    }
    EXPECT_EQ(0u, invalidate(0, 10));
    EXPECT_EQ(5u, invalidate(5, 10));
    EXPECT_EQ(5u, invalidate(0, PAGES));
    EXPECT_EQ(0u, invalidate(0, PAGES));
    EXPECT_EQ(2 * NPRDMA_PAGE_COUNT, nprdma_page_load(&iommu.states[15]));
}

/* Also if a NIC finds a page gone while the monitor takes that away: another
 * NIC may be in the page. */
TEST_F(test_iommu, drain_is_due_beside_a_mark)
{
    std::atomic<int> round{0}, done{0};
    std::thread nic([&] {
        for (int i = 0; i < 1000; ++i) {
            while (round <= i) {
            }
            for (volatile int wait = i * 7 % 3000; wait > 0; wait = wait - 1) {
            }
            npt_iommu_mark(&iommu, PAGES - 1);
            ++done;
        }
    });
    for (int i = 0; i < 1000; ++i) {
        npt_iommu_unmark(&iommu);
        EXPECT_TRUE(nprdma_page_change(
                &iommu.states[PAGES - 1],
                nprdma_page_load(&iommu.states[PAGES - 1]), NPRDMA_PAGE_BITS));
        ++round;
        EXPECT_NE(0u, invalidate(0, PAGES)) << i;
        while (done <= i) {
        }
    }
    nic.join();
}

TEST_F(test_iommu, gate_holds_one_access_and_releases_it)
{
    std::atomic<int> passed{0};

    npemu_gate_arm(iommu.header, NPEMU_GATE_MAP, 7);
    npemu_gate_pass(iommu.header, NPEMU_GATE_MAP, 0, 7);
    npemu_gate_pass(iommu.header, NPEMU_GATE_MAP, 8, 100);
    npemu_gate_pass(iommu.header, NPEMU_GATE_INVALIDATE_START, 7, 1);
    EXPECT_EQ(ETIMEDOUT, npemu_gate_wait(iommu.header, NPEMU_GATE_MAP, 0));

    std::thread thread([&] {
        npemu_gate_pass(iommu.header, NPEMU_GATE_MAP, 5, 3);
        passed = 1;
    });
    EXPECT_EQ(0, npemu_gate_wait(iommu.header, NPEMU_GATE_MAP, WAIT_MS));
    /* Holds one only */
    npemu_gate_pass(iommu.header, NPEMU_GATE_MAP, 7, 1);
    EXPECT_EQ(0, passed);
    npemu_gate_release(iommu.header, NPEMU_GATE_MAP);
    thread.join();
    EXPECT_EQ(1, passed);
}

TEST_F(test_iommu, gate_of_a_dead_process_opens)
{
    in_child([&] {
        /* The table is not inherited, its descriptor is */
        npemu_iommu_t own;

        ASSERT_EQ(0, npemu_iommu_create(ADDRESS, 4096, SIGNATURE, &own));
        pid_t pid = fork();
        if (pid == 0) {
            void *map = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                             own.fd, 0);
            npemu_gate_arm((npemu_iommu_header_t*)map, NPEMU_GATE_MAP, 0);
            _exit(0);
        }
        ASSERT_EQ(pid, waitpid(pid, nullptr, 0));
        npemu_gate_pass(own.header, NPEMU_GATE_MAP, 0, 1);
        npemu_iommu_destroy(&own);
    });
}

} // namespace
