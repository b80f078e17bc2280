/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What an administrator sees: statistics in debugfs, tracepoints, and the
 * errors that the user gets. (test/edu tests the tracepoints of windows, which
 * need a device.)
 */

#include "kmod_test.h"

#include <sys/mman.h>
#include <unistd.h>

#define NUM_PAGES 64
#define CONTEXTS  "/sys/kernel/debug/nprdma/contexts"
#define LIMITS    "/sys/kernel/debug/nprdma/limits"

/* Causes some of everything that is counted */
static void do_everything(kmod_region_t *region)
{
    struct nprdma_ioc_invalidate arg = {.size = sizeof(arg)};

    kmod_region_create(region, kmod_open(), kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    kmod_populate_all(region, 0, 40, NPRDMA_IOC_POPULATE_WRITE);
    CHECK(madvise(region->memory + 8 * PAGE, 3 * PAGE, MADV_DONTNEED) == 0,
          "%m");
    arg.region  = region->id;
    arg.bits    = NPRDMA_PAGE_R;
    arg.address = (uintptr_t)region->memory;
    arg.length  = 5 * PAGE;
    CHECK_CALL(region->ctx, NPRDMA_IOC_INVALIDATE, &arg, 0);
    CHECK(munmap(region->memory + 50 * PAGE, PAGE) == 0, "%m");
    CHECK_EQ(kmod_populate(region, 50, 1, 0, NULL), EFAULT);
}

/* Whether a file has this line */
static int has_line(const char *path, const char *expected)
{
    FILE *file = fopen(path, "r");
    char line[1024];
    int found = 0;

    CHECK(file != NULL, "%s: %m", path);
    while (!found && (fgets(line, sizeof(line), file) != NULL)) {
        found = !strcmp(line, expected);
    }
    fclose(file);
    if (!found) {
        printf("not in %s: %s", path, expected);
    }
    return found;
}

static void statistics(void)
{
    struct nprdma_ioc_query query = {.size = sizeof(query)};
    struct nprdma_ioc_stats stats;
    kmod_region_t region;
    char line[1024];

    do_everything(&region);
    kmod_stats(region.ctx, region.id, &stats);
    CHECK_EQ(stats.present, 32);
    CHECK_EQ(stats.populated, 40);
    CHECK_EQ(stats.misses, 1);
    CHECK_EQ(stats.invalidated, 3);
    CHECK_EQ(stats.revoked, 5);
    CHECK(stats.events >= 2);

    snprintf(line, sizeof(line), "context tgid %d user 0\n", getpid());
    CHECK(has_line(CONTEXTS, line));
    snprintf(line, sizeof(line),
             "  region %u start %#lx pages %d present 32 registrations 1 "
             "bytes %llu populated 40 retries %llu misses 1 events %llu "
             "invalidated 3 revoked 5\n", region.id, (long)region.memory,
             NUM_PAGES, (unsigned long long)stats.bytes,
             (unsigned long long)stats.retries,
             (unsigned long long)stats.events);
    CHECK(has_line(CONTEXTS, line));

    CHECK_CALL(region.ctx, NPRDMA_IOC_QUERY, &query, 0);
    snprintf(line, sizeof(line),
             "user 0 contexts 1 regions 1 of %llu bytes %llu of %llu\n",
             (unsigned long long)query.max_user_regions,
             (unsigned long long)stats.bytes,
             (unsigned long long)query.max_user_bytes);
    CHECK(has_line(LIMITS, line));
}

/* Of a region, and of the context, which includes ended regions */
static void counters(void)
{
    struct nprdma_ioc_stats arg = {.size = sizeof(arg)};
    int ctx                     = kmod_open();
    kmod_region_t region;
    uint64_t bytes;

    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    kmod_populate_all(&region, 0, 3, 0);
    arg.region = region.id;
    CHECK_CALL(ctx, NPRDMA_IOC_STATS, &arg, 0);
    CHECK_EQ(arg.regions, 1);
    CHECK_EQ(arg.present, 3);
    bytes        = arg.bytes;
    arg.reserved = 1;
    CHECK_CALL(ctx, NPRDMA_IOC_STATS, &arg, EINVAL);
    kmod_stats(ctx, 0, &arg);
    CHECK_EQ(arg.bytes, bytes);
    CHECK_EQ(arg.populated, 3);

    kmod_region_destroy(&region);
    arg.region = region.id;
    CHECK_CALL(ctx, NPRDMA_IOC_STATS, &arg, ENOENT);
    kmod_stats(ctx, 0, &arg);
    CHECK_EQ(arg.regions, 0);
    CHECK_EQ(arg.bytes, 0);
    CHECK_EQ(arg.populated, 3);
    CHECK_EQ(arg.revoked, 3);
}

static void tracepoints(void)
{
    kmod_region_t region;
    uintptr_t start;
    char ids[64];

    if (!kmod_trace_start()) {
        kmod_skip("this kernel does not trace");
    }
    do_everything(&region);
    start = (uintptr_t)region.memory;
    snprintf(ids, sizeof(ids), "tgid=%d region=%u", getpid(), region.id);
    CHECK(kmod_traced("nprdma_populate: %s first=0 pages=40 write=1 "
                      "resident=0 done=40 populated=40 retries=", ids));
    CHECK(kmod_traced("nprdma_invalidate: %s start=%#lx end=%#lx event=", ids,
                      start + 8 * PAGE, start + 11 * PAGE));
    CHECK(kmod_traced("nprdma_miss: %s page=50 ret=-14", ids));
    CHECK(kmod_traced("nprdma_populate: %s first=50 pages=1 write=0 "
                      "resident=0 done=0 populated=0 retries=0 ret=-14", ids));
}

static const kmod_case_t cases[] = {
    {"statistics", statistics},
    {"counters", counters},
    {"tracepoints", tracepoints},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
