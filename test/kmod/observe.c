/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What an administrator sees: statistics in debugfs, and those of calls. */

#include "kmod_test.h"

#define NUM_PAGES 64
#define DEBUGFS   "/sys/kernel/debug/nprdma/"

/* Causes some of everything that is counted */
static void do_everything(kmod_region_t *region)
{
    struct nprdma_ioc_invalidate arg = {.size = sizeof(arg)};

    kmod_region(region, NUM_PAGES);
    kmod_populate_all(region, 0, 40, WRITE);
    kmod_take(region, 8, 3);
    arg.region  = region->id;
    arg.bits    = NPRDMA_PAGE_R;
    arg.address = (uintptr_t)region->memory;
    arg.length  = 5 * PAGE;
    CHECK_CALL(region->ctx, NPRDMA_IOC_INVALIDATE, &arg, 0);
    CHECK_OK(munmap(region->memory + 50 * PAGE, PAGE));
    CHECK_EQ(kmod_populate(region, 50, 1, 0, NULL), EFAULT);
}

/* Of a region, and of the context, which includes ended regions */
KMOD_CASE(observe, statistics)
{
    struct nprdma_ioc_stats stats, all;
    kmod_region_t region;

    do_everything(&region);
    stats = kmod_stats(region.ctx, region.id);
    CHECK_EQ(stats.present, 32);
    CHECK_EQ(stats.populated, 40);
    CHECK_EQ(stats.misses, 1);
    CHECK_EQ(stats.invalidated, 3);
    CHECK_EQ(stats.revoked, 5);
    CHECK(stats.events >= 2);
    CHECK(kmod_has_line(DEBUGFS "contexts", "context tgid %d user 0\n",
                        getpid()));
    CHECK(kmod_has_line(DEBUGFS "contexts",
                        "  region %u start %#lx pages %d present 32 "
                        "registrations 1 bytes %llu populated 40 retries %llu "
                        "misses 1 events %llu invalidated 3 revoked 5\n",
                        region.id, (long)region.memory, NUM_PAGES,
                        (unsigned long long)stats.bytes,
                        (unsigned long long)stats.retries,
                        (unsigned long long)stats.events));
    all = kmod_stats(region.ctx, 0);
    CHECK_EQ(all.regions, 1);
    CHECK_EQ(all.bytes, stats.bytes);
    CHECK(kmod_has_line(DEBUGFS "limits",
                        "user 0 contexts 1 regions 1 of %llu bytes %llu of "
                        "%llu\n", (unsigned long long)
                        kmod_query(region.ctx).max_user_regions,
                        (unsigned long long)stats.bytes, (unsigned long long)
                        kmod_query(region.ctx).max_user_bytes));

    kmod_region_destroy(&region);
    CHECK_CALL(region.ctx, NPRDMA_IOC_STATS, &stats, ENOENT);
    all = kmod_stats(region.ctx, 0);
    CHECK_EQ(all.regions, 0);
    CHECK_EQ(all.bytes, 0);
    CHECK_EQ(all.populated, 40);
    CHECK_EQ(all.revoked, 5 + 32);
}
