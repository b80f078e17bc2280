/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_monitor.h"

class test_monitor_region : public test_monitor {
};

TEST_F(test_monitor_region, one_region_for_a_granule)
{
    nprdma_range_t range[3];
    start();
    char *ptr = map();

    ASSERT_EQ(UCS_OK, reg(&range[0], ptr + 5, 1));
    ASSERT_EQ(UCS_OK, reg(&range[1], ptr + 3 * page - 1, 2 * page));
    ASSERT_EQ(UCS_OK, reg(&range[2], ptr, params.region_size));
    EXPECT_EQ(range[0].region, range[1].region);
    EXPECT_EQ(range[0].region, range[2].region);

    const nprdma_region_t *region = range[0].region;
    EXPECT_EQ((uintptr_t)ptr, region->address);
    EXPECT_EQ(params.region_size, region->length);
    EXPECT_GE(region->fd, 0);
    EXPECT_NE(0u, fcntl(region->fd, F_GETFD) & FD_CLOEXEC);
    EXPECT_EQ(1u, stats().regions);
    EXPECT_EQ(3u, stats().ranges);
    EXPECT_EQ(0u, stats().idle_regions);
    EXPECT_EQ(params.region_size / page * 4, stats().state_bytes);

    /* Nothing was touched */
    EXPECT_FALSE(is_present(ptr));
    EXPECT_EQ(0, all_bits(&range[0], ptr, 16 * page));
    for (auto &r : range) {
        unreg(&r);
    }
    EXPECT_EQ(0u, stats().ranges);
    EXPECT_EQ(1u, stats().idle_regions);
}

TEST_F(test_monitor_region, spanning_and_larger_buffers)
{
    nprdma_range_t small, spanning, large, inside, again;
    size_t granule = params.region_size;
    start();
    char *ptr = map(4 * granule);

    ASSERT_EQ(UCS_OK, reg(&small, ptr + granule, page));
    ASSERT_EQ(UCS_OK, reg(&spanning, ptr + 2 * granule - 1, 2));
    EXPECT_NE(small.region, spanning.region);
    EXPECT_EQ((uintptr_t)ptr + granule, spanning.region->address);
    EXPECT_EQ(2 * granule, spanning.region->length);

    /* Growth adds a region, the others stay what they are */
    ASSERT_EQ(UCS_OK, reg(&large, ptr + 1, 3 * granule));
    EXPECT_EQ((uintptr_t)ptr, large.region->address);
    EXPECT_EQ(4 * granule, large.region->length);

    /* Covered by a region, so no new one is created */
    ASSERT_EQ(UCS_OK, reg(&inside, ptr + 2 * granule - 1, granule));
    ASSERT_EQ(UCS_OK, reg(&again, ptr + 3 * granule, page));
    EXPECT_EQ(large.region, again.region);
    EXPECT_EQ(3u, stats().regions);
    EXPECT_EQ(3u, stats().created);
    for (auto r : { &small, &spanning, &large, &inside, &again }) {
        EXPECT_LE(r->region->address, r->address);
        EXPECT_GE(r->region->address + r->region->length,
                  r->address + r->length);
        unreg(r);
    }
}

TEST_F(test_monitor_region, bad_ranges)
{
    nprdma_range_t range;
    start();

    EXPECT_EQ(UCS_ERR_INVALID_PARAM, reg(&range, &range, 0));
    EXPECT_EQ(UCS_ERR_INVALID_PARAM, reg(&range, (void*)~0ul, 1));
    EXPECT_EQ(UCS_ERR_INVALID_PARAM, reg(&range, &range, SIZE_MAX));
    /* A region is whole pages, and cannot end behind the highest one */
    for (size_t back : {1ul, page / 2, page - 1}) {
        EXPECT_EQ(UCS_ERR_INVALID_PARAM,
                  reg(&range, (void*)(-2 * page), 2 * page - back)) << back;
        EXPECT_EQ(UCS_ERR_INVALID_PARAM, reg(&range, (void*)(-back - 1), 1));
    }
    EXPECT_EQ(0u, stats().regions);

    /* The highest page of user addresses, which the kernel reserves */
    if (on_kernel()) {
        EXPECT_EQ(UCS_ERR_IO_ERROR, reg(&range, (void*)(-2 * page), page));
        return;
    }
    for (size_t length : {page, page - 1, 1ul}) {
        ASSERT_EQ(UCS_OK, reg(&range, (void*)(-2 * page), length));
        EXPECT_LE(range.region->address, -2 * page);
        EXPECT_EQ(-page, range.region->address + range.region->length);
        EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range));
        unreg(&range);
    }
}

/* The granule of a stack may include addresses that no mapping can have. On
 * arm64 memory may lie on both sides of that end, and ends at 2^48. */
TEST_F(test_monitor_region, last_of_the_address_space)
{
    const uintptr_t top = 1ul << 47;
    nprdma_range_t range;
    int tried = 0;

    start();
    for (uintptr_t end : {top - page, top + page, 2 * top}) {
        char *last = (char*)end - 2 * page;
        if (mmap(last, 2 * page, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) !=
            last) {
            continue; /* Memory ends elsewhere, or the stack lies there */
        }
        ++tried;
        ASSERT_EQ(UCS_OK, reg(&range, last, 2 * page)) << (void*)last;
        EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
        EXPECT_EQ(3u, bits(&range, last));
        EXPECT_EQ(3u, bits(&range, last + page));
        unreg(&range, 1);
        munmap(last, 2 * page);
    }
    if (tried == 0) {
        GTEST_SKIP() << "nothing can be mapped at these places";
    }
}

/* A leaked registration ends with its monitor. Nothing accesses freed memory:
 * neither the registration's memory, nor, from hooks, the monitor. */
TEST_F(test_monitor_region, closed_with_registrations)
{
    auto ranges = (nprdma_range_t*)mmap(nullptr, page, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(MAP_FAILED, (void*)ranges);
    start();
    char *ptr = map();

    ASSERT_EQ(UCS_OK, reg(&ranges[0], ptr, page));
    ASSERT_EQ(UCS_OK, reg(&ranges[1], ptr, 8 * page));
    ASSERT_EQ(UCS_OK, populate(&ranges[1], NPRDMA_POPULATE_WRITE));
    munmap(ranges, page);
    stop();
    EXPECT_TRUE(attached.empty());

    int before = drains;
    munmap(ptr, 16 * page);
    EXPECT_EQ(before, drains);
    maps.clear();
}

TEST_F(test_monitor_region, idle_ones_go_least_recently_used_first)
{
    size_t granule = params.region_size;
    nprdma_range_t range[4];
    params.max_metadata = 2 * granule / page * 4;
    start();
    char *ptr = map(4 * granule);

    for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(UCS_OK, reg(&range[i], ptr + i * granule, page));
        populate(&range[i], NPRDMA_POPULATE_WRITE);
    }
    /* All are live: the limit applies to idle regions only */
    EXPECT_EQ(4u, stats().regions);

    nprdma_region_t *region[4];
    for (int i : { 2, 0, 3, 1 }) {
        region[i] = range[i].region;
        unreg(&range[i]);
    }
    EXPECT_EQ(4u, stats().idle_regions);

    /* Of the last two, 3 and 1, one is in use again, so region 0 fits the
     * limit */
    ASSERT_EQ(UCS_OK, reg(&range[1], ptr + granule, page));
    EXPECT_EQ(region[1], range[1].region);
    EXPECT_EQ(1u, stats().evicted);
    EXPECT_EQ(0u, attached.count(region[2]));
    EXPECT_EQ(1u, attached.count(region[0]));
    unreg(&range[1]);

    ASSERT_EQ(UCS_OK, reg(&range[3], ptr + 3 * granule, page));
    EXPECT_EQ(1u, stats().evicted);
    unreg(&range[3]);
    ASSERT_EQ(UCS_OK, reg(&range[2], ptr + 2 * granule, page));
    EXPECT_EQ(2u, stats().evicted);
    EXPECT_EQ(3u, stats().regions);
    EXPECT_EQ(5u, stats().created);

    /* The region is new: none of its pages are populated */
    EXPECT_EQ(0u, bits(&range[2], ptr + 2 * granule));
    EXPECT_EQ(3u, bits(&range[1], ptr + granule));
    unreg(&range[2]);
}
