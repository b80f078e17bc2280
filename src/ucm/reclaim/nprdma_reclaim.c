/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_reclaim.h"

#include <nprdma_thread.h>

#include <ucs/debug/log.h>

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>


/* Pages go in bursts of this interval, or one by one if they are fewer */
#define NPRDMA_RECLAIM_INTERVAL 1e-3


struct nprdma_reclaimer {
    nprdma_monitor_t *monitor;
    pthread_t         thread;
    _Atomic uint32_t  stop; /* Futex */
    uint64_t          random;
};


/* Finds a populated page, from a random place on */
typedef struct nprdma_reclaim_pick {
    uint64_t  place; /* Pages of all regions still to be passed over */
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

/* As in a hook, where ThreadSanitizer does not see how regions are held */
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

    pick->place = 0; /* The next region, from its first page on */
}

/* @return Nonzero if a page was evicted */
static int nprdma_reclaim_page(nprdma_reclaimer_t *reclaimer)
{
    nprdma_monitor_t *monitor  = reclaimer->monitor;
    nprdma_reclaim_pick_t pick = { .found = 0 };
    nprdma_span_t all          = nprdma_span(0, UINTPTR_MAX);
    uint64_t num_pages         = atomic_load(&monitor->state_bytes) /
                                 sizeof(uint32_t);
    nprdma_span_t page;
    size_t cleared;

    if (num_pages == 0) {
        return 0;
    }

    pick.place = nprdma_reclaim_random(reclaimer) % num_pages;
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
    if (monitor->params.reclaim == NPRDMA_RECLAIM_REAL) {
        nprdma_pagein_evict(pick.address, 1);
    }
    nprdma_events_unblock();
    nprdma_monitor_count(&monitor->count.reclaimed, cleared);
    return 1;
}

static void nprdma_reclaim_sleep(nprdma_reclaimer_t *reclaimer, double seconds)
{
    struct timespec timeout;

    timeout.tv_sec  = (time_t)seconds;
    timeout.tv_nsec = (long)((seconds - (double)timeout.tv_sec) * 1e9);
    syscall(SYS_futex, &reclaimer->stop, FUTEX_WAIT_PRIVATE, 0, &timeout);
}

static void *nprdma_reclaim_run(void *arg)
{
    nprdma_reclaimer_t *reclaimer = arg;
    double rate                   = reclaimer->monitor->params.reclaim_rate;
    double interval               = NPRDMA_RECLAIM_INTERVAL;
    double due                    = 0;

    if (1 / rate > interval) {
        interval = 1 / rate;
    }

    while (!atomic_load(&reclaimer->stop)) {
        nprdma_reclaim_sleep(reclaimer, interval);
        for (due += rate * interval; (due >= 1) &&
                                     !atomic_load(&reclaimer->stop); due -= 1) {
            if (!nprdma_reclaim_page(reclaimer)) {
                due = 0;
                break;
            }
        }
    }

    return NULL;
}

ucs_status_t nprdma_reclaimer_start(nprdma_monitor_t *monitor,
                                    nprdma_reclaimer_t **reclaimer_p)
{
    nprdma_reclaimer_t *reclaimer;
    uint64_t seed;

    reclaimer = calloc(1, sizeof(*reclaimer));
    if (reclaimer == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    seed = monitor->params.seed;
    if ((seed == 0) &&
        (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))) {
        seed = (uint64_t)getpid();
    }

    reclaimer->monitor = monitor;
    reclaimer->random  = seed;

    if (nprdma_thread_start(&reclaimer->thread, nprdma_reclaim_run,
                            reclaimer) != 0) {
        free(reclaimer);
        return UCS_ERR_NO_MEMORY;
    }

    ucs_info("reclaimer evicts %g pages per second (%s), seed %lu",
             monitor->params.reclaim_rate,
             nprdma_reclaim_mode_names[monitor->params.reclaim], seed);
    *reclaimer_p = reclaimer;
    return UCS_OK;
}

void nprdma_reclaimer_stop(nprdma_reclaimer_t *reclaimer)
{
    atomic_store(&reclaimer->stop, 1);
    syscall(SYS_futex, &reclaimer->stop, FUTEX_WAKE_PRIVATE, INT_MAX);
    pthread_join(reclaimer->thread, NULL);
    free(reclaimer);
}
