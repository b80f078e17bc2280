/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_reclaim.h"
#include "ucm/access/nprdma_pagein.h"
#include "ucm/events/nprdma_events.h"

#include <nprdma_thread.h>

#include <ucs/debug/log.h>

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>


/* Seconds between two bursts of pages; longer if a burst were less than one */
#define NPRDMA_RECLAIM_INTERVAL 1e-3


struct nprdma_reclaimer {
    nprdma_reclaimer_params_t params;
    pthread_t                 thread;
    _Atomic uint32_t          stop; /* Futex */
    uint64_t                  random;
};


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
static int nprdma_reclaim_page(nprdma_reclaimer_t *reclaimer)
{
    const nprdma_reclaimer_params_t *params = &reclaimer->params;
    nprdma_reclaim_pick_t pick              = { .found = 0 };
    nprdma_span_t all                       = nprdma_span(0, UINTPTR_MAX);
    uint64_t num_pages                      = atomic_load(params->num_bytes) /
                                              sizeof(uint32_t);
    nprdma_span_t page;

    if (num_pages == 0) {
        return 0;
    }

    pick.place = nprdma_reclaim_random(reclaimer) % num_pages;
    nprdma_regions_foreach(params->regions, all, nprdma_reclaim_pick, &pick);
    if (!pick.found) {
        pick.place = 0;
        nprdma_regions_foreach(params->regions, all, nprdma_reclaim_pick,
                               &pick);
    }
    if (!pick.found) {
        return 0;
    }

    page = nprdma_span(pick.address, pick.address + NPRDMA_PAGE_SIZE);
    nprdma_events_block(page);
    params->evict(params->arg, page);
    if (params->is_real) {
        nprdma_pagein_evict(pick.address, 1);
    }
    nprdma_events_unblock();
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
    double rate                   = reclaimer->params.rate;
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

ucs_status_t nprdma_reclaimer_start(const nprdma_reclaimer_params_t *params,
                                    nprdma_reclaimer_t **reclaimer_p)
{
    nprdma_reclaimer_t *reclaimer;
    uint64_t seed;

    reclaimer = calloc(1, sizeof(*reclaimer));
    if (reclaimer == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    seed = params->seed;
    if ((seed == 0) &&
        (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))) {
        seed = (uint64_t)getpid();
    }

    reclaimer->params = *params;
    reclaimer->random = seed;

    if (nprdma_thread_start(&reclaimer->thread, nprdma_reclaim_run,
                            reclaimer) != 0) {
        free(reclaimer);
        return UCS_ERR_NO_MEMORY;
    }

    ucs_info("reclaimer evicts %g pages per second (%s), seed %lu",
             params->rate, params->mode, seed);
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
