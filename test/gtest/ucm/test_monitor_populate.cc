/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_monitor.h"

#include <cstdlib>
#include <atomic>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

class test_monitor_populate : public test_monitor {
protected:
    void SetUp() override
    {
        test_monitor::SetUp();
        start();
    }

    /* Whether a page belongs to this process alone. The page of zeros does
     * not. */
    static bool is_exclusive(const char *ptr)
    {
        return (pagemap(ptr) >> 56) & 1;
    }
};

TEST_F(test_monitor_populate, for_reading_and_for_writing)
{
    nprdma_range_t range;
    char *ptr = map();

    ASSERT_EQ(UCS_OK, reg(&range, ptr + 10, 4 * page));
    ASSERT_EQ(UCS_OK, populate(&range, ptr + 10 + page, 1));
    EXPECT_EQ(0u, bits(&range, ptr));
    EXPECT_EQ(NPRDMA_PAGE_R | NPRDMA_PAGE_COUNT, state(&range, ptr + page));
    EXPECT_EQ(0u, bits(&range, ptr + 2 * page));
    EXPECT_EQ(1u, stats().populated);

    /* Populating for reading allocates no page: the page of zeros is mapped */
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(3, all_bits(&range, ptr, 5 * page));
    EXPECT_EQ(0u, bits(&range, ptr + 5 * page));
    EXPECT_EQ(6u, stats().populated);
    /* For the kernel the new page replaces the page of zeros, which is a
     * change */
    EXPECT_EQ((on_kernel() ? 3 : 2) * NPRDMA_PAGE_COUNT | 3,
              state(&range, ptr + page));
    EXPECT_EQ(NPRDMA_PAGE_COUNT | 3, state(&range, ptr));

    /* A page that is valid for writing is valid for reading, at no further
     * cost */
    uint64_t pageins = stats().pageins, ns = stats().populate_ns;
    EXPECT_GT(ns, 0u);
    EXPECT_EQ(UCS_OK, populate(&range));
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(pageins, stats().pageins);
    EXPECT_EQ(ns, stats().populate_ns);
    EXPECT_EQ(6u, stats().populated);
    unreg(&range);
}

/* Pages that the application has written stay exclusive, with exceptions */
TEST_F(test_monitor_populate, for_writing_of_resident_pages)
{
    const unsigned write = NPRDMA_POPULATE_WRITE;
    nprdma_range_t range;
    char *ptr = map();
    int release[2];

    memset(ptr, 1, 8 * page);
    EXPECT_EQ(0, *(volatile char*)(ptr + 8 * page));
    ASSERT_EQ(0, pipe(release));
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        close(release[1]);
        _exit(read(release[0], &range, 1) != 0);
    }
    memset(ptr, 2, 4 * page);
    mprotect(ptr + 2 * page, page, PROT_READ);
    ASSERT_EQ(UCS_OK, reg(&range, ptr, 16 * page));

    EXPECT_EQ(UCS_OK, populate(&range, ptr, 2 * page, write));
    EXPECT_EQ(3, all_bits(&range, ptr, 2 * page));
    EXPECT_TRUE(is_exclusive(ptr));

    /* Exclusive, but mapped read-only now */
    EXPECT_TRUE(is_exclusive(ptr + 2 * page));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range, ptr, 4 * page, write));
    EXPECT_EQ(0u, bits(&range, ptr + 2 * page) & NPRDMA_PAGE_W);

    /* Shared with the child: a write copies the page */
    EXPECT_FALSE(is_exclusive(ptr + 4 * page));
    EXPECT_EQ(UCS_OK, populate(&range, ptr + 4 * page, page, write));
    EXPECT_TRUE(is_exclusive(ptr + 4 * page));
    EXPECT_FALSE(is_exclusive(ptr + 5 * page));

    EXPECT_FALSE(is_exclusive(ptr + 8 * page));
    EXPECT_EQ(UCS_OK, populate(&range, ptr + 8 * page, page, write));
    EXPECT_TRUE(is_exclusive(ptr + 8 * page));

    int status = -1;
    close(release[1]);
    close(release[0]);
    EXPECT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    unreg(&range);
}

/* A key that is packed populates resident pages for writing. That is no fault
 * for a userfaultfd of the program: its thread may be the one that packs. */
TEST_F(test_monitor_populate, protected_pages_are_left_alone)
{
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api             = {};
    struct uffdio_register watch      = {};
    struct uffdio_writeprotect guard  = {};
    struct pollfd event               = {fd, POLLIN, 0};
    std::atomic<bool> is_done(false);
    nprdma_range_t range;

    api.api      = UFFD_API;
    api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
    if ((fd < 0) || (ioctl(fd, UFFDIO_API, &api) != 0)) {
        GTEST_SKIP() << "userfaultfd: " << strerror(errno);
    }
    char *ptr = map();
    memset(ptr, 1, 4 * page);
    ASSERT_EQ(UCS_OK, reg(&range, ptr, 4 * page));
    watch.range.start = (uint64_t)ptr;
    watch.range.len   = 4 * page;
    watch.mode        = UFFDIO_REGISTER_MODE_WP;
    ASSERT_EQ(0, ioctl(fd, UFFDIO_REGISTER, &watch));
    guard.range.start = (uint64_t)ptr + page;
    guard.range.len   = page;
    guard.mode        = UFFDIO_WRITEPROTECT_MODE_WP;
    ASSERT_EQ(0, ioctl(fd, UFFDIO_WRITEPROTECT, &guard));

    std::thread populating([&]() {
        populate(&range, NPRDMA_POPULATE_RESIDENT | NPRDMA_POPULATE_WRITE);
        is_done = true;
    });
    wait_until([&]() { return is_done || (poll(&event, 1, 0) > 0); });
    EXPECT_TRUE(is_done);
    EXPECT_EQ(0, ioctl(fd, UFFDIO_UNREGISTER, &watch.range));
    populating.join();
    EXPECT_EQ(0u, bits(&range, ptr + page));
    if (!on_kernel()) { /* The module populates all of a range or nothing */
        EXPECT_EQ(NPRDMA_PAGE_BITS, bits(&range, ptr));
        EXPECT_EQ(NPRDMA_PAGE_BITS, bits(&range, ptr + 2 * page));
    }
    unreg(&range);
    close(fd);
}

TEST_F(test_monitor_populate, inaccessible_memory_is_refused)
{
    nprdma_range_t range;
    char *ptr = map();
    char path[] = "/tmp/nprdma_test_XXXXXX";
    int fd = mkstemp(path);
    ASSERT_GE(fd, 0);
    unlink(path);
    ASSERT_EQ(0, ftruncate(fd, page));

    munmap(ptr + 2 * page, page);
    mprotect(ptr + 5 * page, page, PROT_NONE);
    mprotect(ptr + 8 * page, page, PROT_READ);
    ASSERT_NE(MAP_FAILED, mmap(ptr + 10 * page, 2 * page,
                               PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                               fd, 0));
    ASSERT_EQ(UCS_OK, reg(&range, ptr, 16 * page));

    struct {
        size_t       first, count;
        unsigned     flags;
        ucs_status_t status;
        size_t       good; /* Pages that are populated */
    } cases[] = {
        { 0, 4, 0, UCS_ERR_INVALID_ADDR, 2 },  /* A hole */
        { 2, 1, NPRDMA_POPULATE_WRITE, UCS_ERR_INVALID_ADDR, 0 },
        { 3, 4, 0, UCS_ERR_INVALID_ADDR, 2 },  /* PROT_NONE */
        { 6, 4, 0, UCS_OK, 4 },
        { 6, 4, NPRDMA_POPULATE_WRITE, UCS_ERR_INVALID_ADDR, 2 },
        { 8, 1, NPRDMA_POPULATE_WRITE, UCS_ERR_INVALID_ADDR, 0 },
        { 10, 3, 0, UCS_ERR_INVALID_ADDR, 1 }, /* Behind the end of a file */
        { 12, 4, NPRDMA_POPULATE_WRITE, UCS_OK, 4 }
    };
    for (auto &c : cases) {
        uint32_t want = (c.flags & NPRDMA_POPULATE_WRITE) ? NPRDMA_PAGE_W :
                                                            NPRDMA_PAGE_R;
        EXPECT_EQ(c.status, populate(&range, ptr + c.first * page,
                                     c.count * page, c.flags)) << c.first;
        for (size_t i = 0; i < c.count; ++i) {
            EXPECT_EQ(i < c.good ? want : 0u,
                      want & state(&range, ptr + (c.first + i) * page))
                    << c.first << "+" << i;
        }
    }

    /* All pages that can be populated, with errors for others ignored */
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_RESIDENT |
                                       NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(0u, bits(&range, ptr + 2 * page));
    EXPECT_EQ(1u, bits(&range, ptr + 8 * page));
    unreg(&range);
    close(fd);
}

TEST_F(test_monitor_populate, resident_pages_only)
{
    nprdma_range_t range;
    size_t size = 3 * chunk;
    char *ptr = map(size);
    /* Across words of the bit set, and across chunks */
    std::set<size_t> pages = { 0, 3, 4, 5, 63, 64, 127, 128, 511, 512, 1030 };

    madvise(ptr, size, MADV_NOHUGEPAGE);
    for (size_t i : pages) {
        ptr[i * page] = 1;
    }
    /* A zero page is valid for reading, and not for writing */
    EXPECT_EQ(0, ((volatile char*)ptr)[20 * page]);
    ASSERT_TRUE(is_present(ptr + 20 * page));

    ASSERT_EQ(UCS_OK, reg(&range, ptr, size));
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_RESIDENT |
                                       NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(pages.size(), stats().populated);
    EXPECT_EQ(0u, bits(&range, ptr + 20 * page));
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_RESIDENT));
    EXPECT_EQ(pages.size() + 1, stats().populated);
    EXPECT_EQ(1u, bits(&range, ptr + 20 * page));
    pages.insert(20);
    for (size_t i = 0; i < size / page; ++i) {
        ASSERT_EQ(pages.count(i) != 0, bits(&range, ptr + i * page) != 0) << i;
        ASSERT_EQ(pages.count(i) != 0, is_present(ptr + i * page)) << i;
    }
    unreg(&range);
}

/* A key of an invalidated registration never reaches its pages again: not while
 * another registration covers them, and not when they are registered again */
TEST_F(test_monitor_populate, invalidation_closes_the_region)
{
    nprdma_range_t range, edge, beside, again, last;
    char *ptr = map();

    ASSERT_EQ(UCS_OK, reg(&edge, ptr + 4 * page - 1, 1));
    ASSERT_EQ(UCS_OK, reg(&beside, ptr + 8 * page, page));
    ASSERT_EQ(UCS_OK, reg(&range, ptr, 8 * page));
    ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    ASSERT_EQ(UCS_OK, populate(&beside, NPRDMA_POPULATE_WRITE));
    unreg(&range, 1);
    EXPECT_EQ(1, drains);
    EXPECT_EQ(0, all_bits(&edge, ptr, 8 * page));
    EXPECT_EQ(3u, bits(&edge, ptr + 8 * page));

    /* The others go on, in so far by software */
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&edge));
    EXPECT_EQ(UCS_OK, populate(&beside));
    mmap(ptr, 16 * page, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&edge));

    ASSERT_EQ(UCS_OK, reg(&again, ptr, 16 * page));
    EXPECT_NE(edge.region, again.region);
    EXPECT_EQ(UCS_OK, populate(&again, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(3, all_bits(&again, ptr, 16 * page));
    EXPECT_EQ(0, all_bits(&edge, ptr, 8 * page));

    /* The region goes when it is not used any more, and only that one */
    EXPECT_EQ(2u, stats().regions);
    unreg(&edge);
    unreg(&beside);
    ASSERT_EQ(UCS_OK, reg(&last, ptr, page));
    EXPECT_EQ(again.region, last.region);
    EXPECT_EQ(1u, stats().regions);
    EXPECT_EQ(3, all_bits(&again, ptr, 16 * page));
    unreg(&last);
    unreg(&again);
}

/* A page may lie in several regions: revocation takes it in all of them */
TEST_F(test_monitor_populate, revoked_in_all_regions)
{
    size_t granule = params.region_size;
    nprdma_range_t small, large;
    char *ptr = map(2 * granule);

    ASSERT_EQ(UCS_OK, reg(&small, ptr + granule, 4 * page));
    ASSERT_EQ(UCS_OK, reg(&large, ptr, 2 * granule));
    ASSERT_NE(small.region, large.region);
    ASSERT_EQ(UCS_OK, populate(&small));
    ASSERT_EQ(UCS_OK, populate(&large, ptr + granule, 8 * page));
    unreg(&large);
    unreg(&small, 1);
    EXPECT_EQ(0, all_bits(&small, ptr + granule, 4 * page));
    EXPECT_EQ(0, all_bits(&large, ptr + granule, 4 * page));
    EXPECT_EQ(1, all_bits(&large, ptr + granule + 4 * page, 4 * page));
}

/*
 * The simulated NIC of this test "accesses" a page: while its counter is odd,
 * it checks that the page is present. A drain waits for the counters. So a page
 * that has its bit must be present.
 */
class test_monitor_populate_race : public test_monitor_populate {
protected:
    static constexpr int num_nics = 2;

    struct nic {
        alignas(64) std::atomic<uint64_t> seq{0};
    };

    NPRDMA_HOOK static void drain_nics(test_monitor *arg)
    {
        auto self = static_cast<test_monitor_populate_race*>(arg);
        for (auto &nic : self->nics) {
            uint64_t seq = load(nic.seq);
            while ((seq & 1) && (load(nic.seq) == seq)) {
                sched_yield();
            }
        }
    }

    void run_nic(nic *nic, nprdma_range_t *range, char *ptr, unsigned seed)
    {
        while (!stop_nics) {
            char *target = ptr + rand_r(&seed) % num_pages * page;
            ++nic->seq;
            if (bits(range, target)) {
                if (is_present(target)) {
                    ++hits;
                } else {
                    ++violations;
                }
            }
            ++nic->seq;
        }
    }

    /* A drain waits for threads that may have to wait for a CPU, so with few
     * CPUs there are fewer rounds */
    bool is_enough(int round) const
    {
        return (round >= 4000) ||
               ((round >= 100) && (std::chrono::steady_clock::now() > end));
    }

    void run_populates(nprdma_range_t *range, char *ptr, unsigned seed)
    {
        for (int i = 0; !is_enough(i); ++i) {
            size_t first   = rand_r(&seed) % num_pages;
            size_t count   = 1 + rand_r(&seed) % (num_pages - first);
            unsigned flags = rand_r(&seed) % 4; /* All combinations */
            ucs_status_t status = populate(range, ptr + first * page,
                                           count * page, flags);
            ASSERT_TRUE((status == UCS_OK) || (status == UCS_ERR_BUSY) ||
                        (status == UCS_ERR_INVALID_ADDR)) << status;
        }
    }

    static void map_again(char *start, size_t length)
    {
        ASSERT_EQ(start, mmap(start, length, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    }

    void run_events(char *ptr, unsigned seed)
    {
        for (int i = 0; !is_enough(i); ++i) {
            size_t first = rand_r(&seed) % num_pages;
            size_t count = 1 + rand_r(&seed) % (num_pages - first) / 4;
            char *start  = ptr + first * page;
            switch (rand_r(&seed) % 3) {
            case 0:
                madvise(start, count * page, MADV_DONTNEED);
                break;
            case 1:
                map_again(start, count * page);
                break;
            default:
                /* Mapped again at once, so that other threads find memory */
                munmap(start, page);
                map_again(start, page);
                break;
            }
        }
    }

    static constexpr size_t num_pages = 64;

    const std::chrono::steady_clock::time_point end =
            std::chrono::steady_clock::now() + std::chrono::seconds(10);
    nic                   nics[num_nics];
    std::atomic<bool>     stop_nics{false};
    std::atomic<uint64_t> hits{0};
    std::atomic<uint64_t> violations{0};
};

TEST_F(test_monitor_populate_race, populate_and_events)
{
    nprdma_range_t range;
    char *ptr = map(num_pages * page);
    std::vector<std::thread> threads, nic_threads;

    ASSERT_EQ(UCS_OK, reg(&range, ptr, num_pages * page));
    on_drain = drain_nics;
    for (int i = 0; i < num_nics; ++i) {
        nic_threads.emplace_back([&, i]() {
            run_nic(&nics[i], &range, ptr, i);
        });
    }

    for (unsigned t = 0; t < 2; ++t) {
        threads.emplace_back([&, t]() { run_populates(&range, ptr, 10 + t); });
        threads.emplace_back([&, t]() { run_events(ptr, 20 + t); });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    /* The threads may start late, and all events may precede all populates.
     * Therefore leave one page to access, and one to take. */
    while (populate(&range) != UCS_OK) {
    }
    uint64_t before = hits;
    wait_until([&]() { return hits > before; });
    ASSERT_EQ(0, madvise(ptr, page, MADV_DONTNEED));
    stop_nics = true;
    for (auto &thread : nic_threads) {
        thread.join();
    }
    on_drain = nullptr;

    EXPECT_EQ(0u, violations);
    EXPECT_GT(stats().invalidated, 0u);
    EXPECT_GE(stats().populated, num_pages);
    unreg(&range);
}
