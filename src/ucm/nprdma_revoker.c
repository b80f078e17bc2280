/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_monitor_int.h"

#include "nprdma_probe.h"
#include <nprdma_thread.h>

#include <ucs/debug/log.h>
#include <ucs/sys/math.h>

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * Revocation in ticks:
 *
 *   a registration ends      its chunks are marked
 *   the next tick            pages of marked chunks that are accessible and
 *                            that no live range covers become *pending*
 *   a registration begins    its pages are not pending any more
 *   the tick after that      pages that are still pending are revoked
 *
 * So a page is revoked between one and two ticks after its last registration
 * has ended. A page that is registered again within a tick is not, whatever
 * happens to its neighbours. No data is kept per registration. Each of these
 * steps holds the lock of the region, so no page of a live range is revoked. If
 * the table of regions changes during a tick, a region may have two at once.
 */


/* Why the next tick examines a chunk */
enum {
    NPRDMA_REVOKER_ENDED   = 1 << 0, /* A range in it has ended */
    NPRDMA_REVOKER_PENDING = 1 << 1  /* It may have pending pages */
};


void nprdma_revoker_end(nprdma_region_obj_t *region, nprdma_pages_t pages)
{
    size_t last = (pages.first + pages.count - 1) / NPRDMA_CHUNK_PAGES;
    size_t chunk;

    for (chunk = pages.first / NPRDMA_CHUNK_PAGES; chunk <= last; ++chunk) {
        region->marks[chunk] |= NPRDMA_REVOKER_ENDED;
    }
    region->is_marked = 1;
}

void nprdma_revoker_begin(nprdma_region_obj_t *region, nprdma_pages_t pages)
{
    nprdma_bits_clear(region->pending, pages.first, pages.first + pages.count);
}


/* ---- a tick ---- */

/* Revoke those of the pages [first, end) that are pending */
NPRDMA_HOOK
static void nprdma_revoker_take(nprdma_sweep_t *sweep,
                                nprdma_region_obj_t *region, size_t first,
                                size_t end)
{
    size_t begin = first;
    size_t next;

    while ((first = nprdma_bits_next(region->pending, first, end, 1)) < end) {
        next = nprdma_bits_next(region->pending, first, end, 0);
        /* Pages that no live range covers are not being populated */
        sweep->cleared += sweep->monitor->params.backend->invalidate(
                &region->super, region->backend_priv, first, next - first,
                NPRDMA_PAGE_BITS, 0);
        first = next;
    }
    nprdma_bits_clear(region->pending, begin, end);
}

/* The pages [first, end) that a live range covers are not pending any more.
 * @return Nonzero if another one is. */
NPRDMA_HOOK
static int nprdma_revoker_spare(nprdma_region_obj_t *region, size_t first,
                                size_t end)
{
    nprdma_range_t *range;
    nprdma_pages_t pages;

    ucs_list_for_each(range, &region->ranges, list) {
        pages = nprdma_region_pages(region,
                                    nprdma_span(range->address,
                                                range->address +
                                                range->length));
        nprdma_bits_clear(region->pending, ucs_max(pages.first, first),
                          ucs_min(pages.first + pages.count, end));
    }
    return nprdma_bits_next(region->pending, first, end, 1) < end;
}

NPRDMA_HOOK
void nprdma_revoker_uncovered(nprdma_sweep_t *sweep,
                              nprdma_region_obj_t *region, size_t first,
                              size_t end)
{
    nprdma_region_lock(region);
    nprdma_bits_set(region->pending, first, end);
    if (nprdma_revoker_spare(region, first, end)) {
        nprdma_revoker_take(sweep, region, first, end);
    }
    nprdma_region_unlock(region);
}

/* Find those of the pages [first, end) that have bits and that no live range
 * covers. @return Nonzero if there is one. */
NPRDMA_HOOK
static int nprdma_revoker_select(nprdma_region_obj_t *region, size_t first,
                                 size_t end)
{
    size_t i;

    for (i = first; i < end; ++i) {
        if (nprdma_page_load(&region->super.states[i]) & NPRDMA_PAGE_BITS) {
            nprdma_bits_set(region->pending, i, i + 1);
        }
    }
    return nprdma_revoker_spare(region, first, end);
}

/*
 * The region is locked meanwhile: a thread that registers one of these pages
 * waits for some microseconds, and then finds that the page has to be
 * populated. A range that ends later marks the chunk again. So pages that are
 * populated after their states were loaded here are found by a later tick.
 */
NPRDMA_HOOK
static void nprdma_revoker_chunk(nprdma_sweep_t *sweep,
                                 nprdma_region_obj_t *region, size_t chunk)
{
    size_t first = chunk * NPRDMA_CHUNK_PAGES;
    size_t end   = ucs_min(first + NPRDMA_CHUNK_PAGES,
                           region->super.length >> NPRDMA_PAGE_SHIFT);
    uint8_t marks;

    nprdma_region_lock(region);
    marks                = region->marks[chunk];
    region->marks[chunk] = 0;
    if (marks & NPRDMA_REVOKER_PENDING) {
        nprdma_revoker_take(sweep, region, first, end);
    }
    if ((marks & NPRDMA_REVOKER_ENDED) &&
        atomic_load(&region->touched[chunk]) &&
        nprdma_revoker_select(region, first, end)) {
        region->marks[chunk] = NPRDMA_REVOKER_PENDING;
        region->is_marked    = 1;
    }
    nprdma_region_unlock(region);
}

/* Not instrumented: ThreadSanitizer does not see the references by which
 * nprdma_regions_foreach() holds regions */
NPRDMA_HOOK
static void nprdma_revoker_region(nprdma_region_obj_t *region, void *arg)
{
    size_t end = 0;
    size_t chunk;

    nprdma_region_lock(region);
    if (region->is_marked) {
        region->is_marked = 0;
        end               = region->num_chunks;
    }
    nprdma_region_unlock(region);

    for (chunk = 0; chunk < end; ++chunk) {
        nprdma_revoker_chunk(arg, region, chunk);
    }
}

NPRDMA_HOOK
static void nprdma_revoker_check(nprdma_region_obj_t *region, void *arg)
{
    int *has_work = arg;

    nprdma_region_lock(region);
    *has_work |= region->is_marked;
    nprdma_region_unlock(region);
}

static int nprdma_revoker_has_work(nprdma_monitor_t *monitor)
{
    int has_work = 0;

    nprdma_regions_foreach(&monitor->regions, nprdma_span(0, UINTPTR_MAX),
                           nprdma_revoker_check, &has_work);
    return has_work;
}

int nprdma_monitor_tick(nprdma_monitor_t *monitor)
{
    nprdma_sweep_t sweep = {
        .monitor = monitor,
        .taken   = nprdma_span(0, UINTPTR_MAX)
    };

    nprdma_sweep_run(&sweep, nprdma_revoker_region);
    nprdma_monitor_count(&monitor->count.revoked, sweep.cleared);
    NPRDMA_PROBE(revoke, sweep.cleared);
    return nprdma_revoker_has_work(monitor);
}


/* ---- the thread ---- */

void nprdma_monitor_sleep(_Atomic uint32_t *stop, double seconds)
{
    struct timespec timeout;

    timeout.tv_sec  = (time_t)seconds;
    timeout.tv_nsec = (long)((seconds - (double)timeout.tv_sec) * 1e9);
    syscall(SYS_futex, stop, FUTEX_WAIT_PRIVATE, 0, &timeout);
}

static void *nprdma_revoker_run(void *arg)
{
    nprdma_monitor_t *monitor = arg;
    nprdma_revoker_t *revoker = &monitor->revoker;

    pthread_setname_np(pthread_self(), "nprdma-revoke");
    while (!atomic_load(&revoker->stop)) {
        /* A thread that marks chunks loads `awake` afterwards. So either this
         * thread sees the mark, or that thread sees 0 and wakes this one; see
         * nprdma_monitor_unregister() */
        atomic_store(&revoker->awake, 0);
        atomic_thread_fence(memory_order_seq_cst);
        if (!nprdma_revoker_has_work(monitor) && !atomic_load(&revoker->stop)) {
            syscall(SYS_futex, &revoker->awake, FUTEX_WAIT_PRIVATE, 0, NULL);
        }
        atomic_store(&revoker->awake, 1);

        do {
            nprdma_monitor_sleep(&revoker->stop, monitor->params.revoke_tick);
        } while (!atomic_load(&revoker->stop) && nprdma_monitor_tick(monitor));
    }

    return NULL;
}

NPRDMA_HOOK
void nprdma_revoker_wake(nprdma_monitor_t *monitor)
{
    if (!atomic_exchange(&monitor->revoker.awake, 1)) {
        syscall(SYS_futex, &monitor->revoker.awake, FUTEX_WAKE_PRIVATE, 1);
    }
}

void nprdma_revoker_start(nprdma_monitor_t *monitor)
{
    nprdma_revoker_t *revoker = &monitor->revoker;
    int ret                   = 0;

    if (atomic_load(&revoker->state) != NPRDMA_REVOKER_NONE) {
        return;
    }

    if (monitor->params.revoke_tick > 0) {
        ret = nprdma_thread_start(&revoker->thread, nprdma_revoker_run,
                                  monitor);
    }
    if (ret == 0) {
        atomic_store(&revoker->state, NPRDMA_REVOKER_STARTED);
    } else {
        ucs_diag("cannot start the thread that revokes pages of registrations "
                 "that have ended (%s): pages are revoked when a registration "
                 "ends, which takes longer", strerror(ret));
        atomic_store(&revoker->state, NPRDMA_REVOKER_BROKEN);
    }
}

void nprdma_revoker_stop(nprdma_monitor_t *monitor)
{
    nprdma_revoker_t *revoker = &monitor->revoker;

    if ((atomic_load(&revoker->state) == NPRDMA_REVOKER_STARTED) &&
        (monitor->params.revoke_tick > 0)) {
        atomic_store(&revoker->stop, 1);
        atomic_store(&revoker->awake, 1);
        syscall(SYS_futex, &revoker->stop, FUTEX_WAKE_PRIVATE, INT_MAX);
        syscall(SYS_futex, &revoker->awake, FUTEX_WAKE_PRIVATE, INT_MAX);
        pthread_join(revoker->thread, NULL);
    }
}
