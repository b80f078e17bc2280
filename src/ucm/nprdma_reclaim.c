/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_monitor_int.h"
#include "ucm/access/nprdma_pagein.h"

#include <nprdma_thread.h>

#include <ucs/debug/log.h>
#include <ucs/sys/math.h>

#include <limits.h>
#include <linux/futex.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The reclaimer evicts populated pages at random. So operations meet absent
 * pages often, which is rare on a machine with enough memory. The choice of
 * pages is a function of the seed and of the pages populated at that moment. */


/* Seconds between two bursts of pages; longer if a burst were less than one */
#define NPRDMA_RECLAIM_INTERVAL 1e-3


/* Search for a populated page, which begins at a random page */
typedef struct nprdma_reclaim_pick {
    uint64_t  place; /* Pages of regions that are still to be skipped */
    uintptr_t address;
    int       found;
} nprdma_reclaim_pick_t;


/* splitmix64 (Steele, Lea, Flood) */
static uint64_t nprdma_reclaim_random(nprdma_reclaimer_t *reclaimer)
{
    uint64_t z = (reclaimer->random += 0x9e3779b97f4a7c15ull);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Not instrumented: ThreadSanitizer does not see the references by which
 * nprdma_regions_foreach() holds regions */
NPRDMA_HOOK
static void nprdma_reclaim_pick(nprdma_region_obj_t *region, void *arg)
{
    nprdma_reclaim_pick_t *pick = arg;
    size_t num_pages            = region->super.length >> NPRDMA_PAGE_SHIFT;
    size_t page;

    if (pick->found) {
        return;
    }

    if (pick->place >= num_pages) {
        pick->place -= num_pages;
        return;
    }

    for (page = pick->place; page < num_pages; ++page) {
        if (!atomic_load(&region->touched[page / NPRDMA_CHUNK_PAGES])) {
            page |= NPRDMA_CHUNK_PAGES - 1;
        } else if (nprdma_page_load(&region->super.states[page]) &
                   NPRDMA_PAGE_BITS) {
            pick->address = region->super.address + (page << NPRDMA_PAGE_SHIFT);
            pick->found   = 1;
            return;
        }
    }

    pick->place = 0; /* Continue with the first page of the next region */
}

/* @return Nonzero if a page was evicted */
static int nprdma_reclaim_page(nprdma_monitor_t *monitor)
{
    nprdma_reclaim_pick_t pick = { .found = 0 };
    nprdma_span_t all          = nprdma_span(0, UINTPTR_MAX);
    uint64_t num_pages         = atomic_load(&monitor->state_bytes) /
                                 sizeof(uint32_t);
    nprdma_span_t page;
    size_t cleared;

    if (num_pages == 0) {
        return 0;
    }

    pick.place = nprdma_reclaim_random(&monitor->reclaimer) % num_pages;
    nprdma_regions_foreach(&monitor->regions, all, nprdma_reclaim_pick, &pick);
    if (!pick.found) {
        pick.place = 0;
        nprdma_regions_foreach(&monitor->regions, all, nprdma_reclaim_pick,
                               &pick);
    }
    if (!pick.found) {
        return 0;
    }

    page = nprdma_span(pick.address, pick.address + NPRDMA_PAGE_SIZE);
    nprdma_events_block(page);
    cleared = nprdma_monitor_invalidate(monitor, page, nprdma_span(0, 0),
                                        NPRDMA_PAGE_BITS);
    nprdma_monitor_count(&monitor->count.reclaimed, cleared);
    if (monitor->params.reclaim == NPRDMA_RECLAIM_REAL) {
        nprdma_pagein_evict(pick.address, 1);
    }
    nprdma_events_unblock();
    return 1;
}

static void *nprdma_reclaim_run(void *arg)
{
    nprdma_monitor_t *monitor = arg;
    _Atomic uint32_t *stop    = &monitor->reclaimer.stop;
    double rate               = monitor->params.reclaim_rate;
    double interval           = ucs_max(NPRDMA_RECLAIM_INTERVAL, 1 / rate);
    double due                = 0;

    while (!atomic_load(stop)) {
        nprdma_monitor_sleep(stop, interval);
        for (due += rate * interval; (due >= 1) && !atomic_load(stop);
             due -= 1) {
            if (!nprdma_reclaim_page(monitor)) {
                due = 0;
                break;
            }
        }
    }

    return NULL;
}

ucs_status_t nprdma_reclaimer_start(nprdma_monitor_t *monitor)
{
    nprdma_reclaimer_t *reclaimer = &monitor->reclaimer;
    nprdma_reclaim_mode_t mode    = monitor->params.reclaim;
    uint64_t seed                 = monitor->params.seed;

    if ((mode == NPRDMA_RECLAIM_OFF) || !(monitor->params.reclaim_rate > 0)) {
        return UCS_OK;
    }

    if ((seed == 0) && (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))) {
        seed = (uint64_t)getpid();
    }

    reclaimer->random = seed;
    if (nprdma_thread_start(&reclaimer->thread, nprdma_reclaim_run, monitor) !=
        0) {
        return UCS_ERR_NO_MEMORY;
    }

    reclaimer->is_started = 1;
    ucs_info("reclaimer evicts %g pages per second (%s), seed %lu",
             monitor->params.reclaim_rate, nprdma_reclaim_mode_names[mode],
             seed);
    return UCS_OK;
}

void nprdma_reclaimer_stop(nprdma_monitor_t *monitor)
{
    nprdma_reclaimer_t *reclaimer = &monitor->reclaimer;

    if (reclaimer->is_started) {
        atomic_store(&reclaimer->stop, 1);
        syscall(SYS_futex, &reclaimer->stop, FUTEX_WAKE_PRIVATE, INT_MAX);
        pthread_join(reclaimer->thread, NULL);
    }
}
