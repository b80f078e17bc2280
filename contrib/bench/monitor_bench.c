/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What the memory monitor costs, without a transport: the line monitor of
 * contrib/bench compiles it with the libraries of a build tree. Prints `name
 * value unit`.
 */

#include "bench.h"

#include <ucm/backend/nprdma_backend.h>
#include <ucm/nprdma_invalidate.h>
#include <ucm/nprdma_monitor.h>

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE ((size_t)NPRDMA_PAGE_SIZE)
#define MIB  ((size_t)1 << 20)
#define GIB  ((size_t)1 << 30)

static nprdma_monitor_t *monitor;

static void check(ucs_status_t status, const char *what)
{
    CHECK(status == UCS_OK, "%s failed: %d", what, status);
}

static void report(const char *name, double value, const char *unit)
{
    printf("%-44s %10.1f %s\n", name, value, unit);
}

static ucs_status_t attach(void *arg, nprdma_region_t *region)
{
    return UCS_OK;
}

static void detach(void *arg, nprdma_region_t *region)
{
}

static void drain(void *arg)
{
}

static void create_revoking(size_t region_size, nprdma_revoke_mode_t revoke)
{
    nprdma_monitor_params_t params = {
        .backend      = &nprdma_backend_emulated,
        .region_size  = region_size,
        .max_metadata = GIB,
        .revoke       = revoke,
        .revoke_tick  = 0.04,
        .drain        = drain,
        .attach       = attach,
        .detach       = detach
    };

    check(nprdma_monitor_create(&params, &monitor), "nprdma_monitor_create");
}

static void create(size_t region_size)
{
    create_revoking(region_size, NPRDMA_REVOKE_NEVER);
}

/* 2 MiB aligned */
static char *map(size_t size)
{
    char *area = map_small_pages(size + 2 * MIB);

    return (char*)(((uintptr_t)area + 2 * MIB - 1) & ~(2 * MIB - 1));
}

static void reg(nprdma_range_t *range, const char *ptr, size_t length)
{
    check(nprdma_monitor_register(monitor, (uintptr_t)ptr, length, range),
          "nprdma_monitor_register");
}

/*
 * Registrations of a buffer that a region covers already, here and there in
 * memory. @return ns for one and its end, the best of many batches.
 */
static double lookup_ns(const char *ptr, size_t length, size_t stride,
                        unsigned num_places)
{
    double best = 1e9;
    nprdma_range_t range;
    unsigned batch, i;
    double took;

    for (batch = 0; batch < 1000; ++batch) {
        took = now_ns();
        for (i = 0; i < 1000; ++i) {
            reg(&range, ptr + (i * 7919u % num_places) * stride, length);
            nprdma_monitor_unregister(monitor, &range, 0);
        }
        took = (now_ns() - took) / 1000;
        best = (took < best) ? took : best;
    }
    return best;
}

static void bench_lookup(unsigned num_regions)
{
    size_t granule = 2 * MIB;
    nprdma_range_t *held;
    char name[64], *ptr;
    unsigned i;

    create(granule);
    ptr  = map(num_regions * granule);
    held = calloc(num_regions, sizeof(*held));
    for (i = 0; i < num_regions; ++i) {
        reg(&held[i], ptr + i * granule, PAGE);
    }

    snprintf(name, sizeof(name), "register+unregister, hit, %u regions",
             num_regions);
    report(name, lookup_ns(ptr + 64, 64 * 1024, granule, num_regions), "ns");

    for (i = 0; i < num_regions; ++i) {
        nprdma_monitor_unregister(monitor, &held[i], 0);
    }
    nprdma_monitor_destroy(monitor);
    free(held);
    munmap(ptr, num_regions * granule);
}

static void bench_sizes(void)
{
    char *ptr = map(GIB);
    nprdma_range_t range;
    double start;

    create(256 * MIB);
    start = now_ns();
    reg(&range, ptr, GIB);
    report("first register of 1 GiB untouched", now_ns() - start, "ns");
    nprdma_monitor_unregister(monitor, &range, 0);

    report("register+unregister, hit, 1 GiB", lookup_ns(ptr, GIB, 0, 1), "ns");
    nprdma_monitor_destroy(monitor);
    munmap(ptr, GIB);
}

/* The best of some turns. With `revoke`, the range is revoked and registered
 * anew before each. */
static void populate(nprdma_range_t *range, unsigned flags, const char *name,
                     unsigned turns, int revoke)
{
    char *ptr     = (char*)range->address;
    size_t length = range->length;
    double best   = 0;
    double took, start;
    unsigned i;

    for (i = 0; i < turns; ++i) {
        if (revoke) {
            nprdma_monitor_unregister(monitor, range, 0);
            nprdma_monitor_revoke(monitor, nprdma_span((uintptr_t)ptr,
                                                       (uintptr_t)ptr +
                                                       length));
            reg(range, ptr, length);
        }
        start = now_ns();
        check(nprdma_monitor_populate(monitor, range, range->address,
                                      range->length, flags), name);
        took = now_ns() - start;
        if ((i == 0) || (took < best)) {
            best = took;
        }
    }
    report(name, best / (range->length / PAGE), "ns/page");
}

static void bench_populate(void)
{
    size_t size = 64 * MIB;
    char *ptr   = map(size);
    nprdma_range_t range;
    uint32_t *copy;
    double start;

    create(256 * MIB);
    reg(&range, ptr, size);
    populate(&range, NPRDMA_POPULATE_RESIDENT, "resident only, none is", 9, 0);
    populate(&range, NPRDMA_POPULATE_WRITE, "fresh pages, for write", 1, 0);
    populate(&range, NPRDMA_POPULATE_WRITE, "populated already", 99, 0);
    populate(&range, NPRDMA_POPULATE_RESIDENT, "resident pages, for read", 9,
             1);
    populate(&range, 0, "present pages, for read, with madvise", 9, 1);
    populate(&range, NPRDMA_POPULATE_WRITE, "present pages, for write", 9, 1);

    copy  = malloc(MIB / PAGE * sizeof(*copy));
    start = now_ns();
    nprdma_region_snapshot(range.region, (uintptr_t)ptr, MIB, NPRDMA_PAGE_R,
                           copy);
    if (!nprdma_region_unchanged(range.region, (uintptr_t)ptr, MIB, copy)) {
        fprintf(stderr, "monitor_bench: pages were evicted meanwhile\n");
    }
    report("snapshot and compare, 1 MiB", now_ns() - start, "ns");
    free(copy);

    nprdma_monitor_unregister(monitor, &range, 0);
    nprdma_monitor_destroy(monitor);
    munmap(ptr, size);
}

/* @return ns of an munmap() by libc, or without any hook: the best of many */
static double unmap_ns(size_t size, int raw)
{
    double best = 1e9;
    double took;
    void *ptr;
    int i;

    for (i = 0; i < 20000; ++i) {
        ptr   = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        took = now_ns();
        if (raw) {
            syscall(SYS_munmap, ptr, size);
        } else {
            munmap(ptr, size);
        }
        took = now_ns() - took;
        best = (took < best) ? took : best;
    }
    return best;
}

static void bench_events(void)
{
    size_t size = 64 * MIB;
    char *ptr   = map(size);
    nprdma_range_t range;
    double start;

    create(256 * MIB);
    report("munmap of 16 KiB, raw system call", unmap_ns(4 * PAGE, 1), "ns");
    report("munmap of 16 KiB, no region there", unmap_ns(4 * PAGE, 0), "ns");
    reg(&range, ptr, size);
    check(nprdma_monitor_populate(monitor, &range, (uintptr_t)ptr, size,
                                  NPRDMA_POPULATE_WRITE), "populate");
    start = now_ns();
    nprdma_monitor_unregister(monitor, &range, 1);
    report("invalidate", (now_ns() - start) / (size / PAGE), "ns/page");
    nprdma_monitor_destroy(monitor);
    munmap(ptr, size);
}

/* What a message costs: its registration, what is resident, and the end */
static void bench_revoke(nprdma_revoke_mode_t mode, size_t size)
{
    char *ptr   = map(size);
    double best = 1e9;
    char name[64];
    nprdma_range_t range;
    double took;
    int i;

    memset(ptr, 1, size);
    create_revoking(256 * MIB, mode);
    for (i = 0; i < 20000; ++i) {
        took = now_ns();
        reg(&range, ptr, size);
        check(nprdma_monitor_populate(monitor, &range, (uintptr_t)ptr, size,
                                      NPRDMA_POPULATE_RESIDENT), "populate");
        nprdma_monitor_unregister(monitor, &range, 0);
        took = now_ns() - took;
        best = (took < best) ? took : best;
    }
    snprintf(name, sizeof(name), "message of %zu KiB, revoked: %s", size / 1024,
             nprdma_revoke_mode_names[mode]);
    report(name, best, "ns");
    nprdma_monitor_destroy(monitor);
    munmap(ptr, size);
}

/* A region of each kind, without what the NIC has of it */
static void bench_kinds(void)
{
    char *ptr = map(4 * PAGE);
    nprdma_range_t peers, local;
    nprdma_monitor_stats_t stats;
    double start, middle;

    create(256 * MIB);
    start = now_ns();
    reg(&peers, ptr, PAGE);
    middle = now_ns();
    check(nprdma_monitor_register_local(monitor, (uintptr_t)ptr, PAGE, &local),
          "nprdma_monitor_register_local");
    report("first region, for peers", middle - start, "ns");
    report("second one, local", now_ns() - middle, "ns");
    nprdma_monitor_query(monitor, &stats);
    report("states of both, if all were touched",
           (double)stats.state_bytes / 1024, "KiB");
    nprdma_monitor_unregister(monitor, &peers, 0);
    nprdma_monitor_unregister(monitor, &local, 0);
    nprdma_monitor_destroy(monitor);
    munmap(ptr, 4 * PAGE);
}

int main(void)
{
    nprdma_revoke_mode_t mode;

    bench_lookup(1);
    bench_lookup(100);
    bench_lookup(1000);
    bench_sizes();
    bench_populate();
    bench_events();
    bench_kinds();
    for (mode = NPRDMA_REVOKE_NEVER; mode < NPRDMA_REVOKE_LAST; ++mode) {
        bench_revoke(mode, 64 * 1024);
        bench_revoke(mode, MIB);
    }
    return 0;
}
