/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_revoker.h"

#include <nprdma_thread.h>

#include <ucs/debug/log.h>

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>


#define NPRDMA_REVOKER_BITS  64u
#define NPRDMA_REVOKER_WORDS (NPRDMA_CHUNK_PAGES / NPRDMA_REVOKER_BITS)


/* State of a tick */
typedef struct nprdma_revoker_pass {
    const nprdma_backend_t *backend;
    uint32_t                tick;
    size_t                  cleared; /* Pages that lost a bit */
    int                     left;    /* There is work for the next tick */
} nprdma_revoker_pass_t;


/* ---- marks; the lock of the region is held ---- */

/* Let the next tick examine the chunks [first, end) */
static void
nprdma_revoker_mark(nprdma_region_obj_t *region, size_t first, size_t end)
{
    if (region->revoke_first == region->revoke_end) {
        region->revoke_first = first;
        region->revoke_end   = end;
        return;
    }

    if (first < region->revoke_first) {
        region->revoke_first = first;
    }
    if (end > region->revoke_end) {
        region->revoke_end = end;
    }
}

void nprdma_revoker_end(nprdma_region_obj_t *region, nprdma_pages_t pages)
{
    size_t first = pages.first / NPRDMA_CHUNK_PAGES;
    size_t last  = (pages.first + pages.count - 1) / NPRDMA_CHUNK_PAGES;

    memset(&region->ended[first], 1, last + 1 - first);
    nprdma_revoker_mark(region, first, last + 1);
}

/* Clear the bits of pages [first, end), counted from the first of the chunk */
NPRDMA_HOOK
static void nprdma_revoker_keep(uint64_t *pending, size_t first, size_t end)
{
    uint64_t mask;
    size_t low;

    for (low = first & ~(size_t)(NPRDMA_REVOKER_BITS - 1); low < end;
         low += NPRDMA_REVOKER_BITS) {
        mask = UINT64_MAX;
        if (first > low) {
            mask &= UINT64_MAX << (first - low);
        }
        if (end < low + NPRDMA_REVOKER_BITS) {
            mask &= ~(UINT64_MAX << (end - low));
        }
        pending[low / NPRDMA_REVOKER_BITS] &= ~mask;
    }
}

/* Clear the bits of those pages of a chunk that are among @a pages */
NPRDMA_HOOK
static void nprdma_revoker_keep_in(uint64_t *pending, size_t chunk,
                                   nprdma_pages_t pages)
{
    size_t start = chunk * NPRDMA_CHUNK_PAGES;
    size_t first = (pages.first > start) ? pages.first - start : 0;
    size_t end   = pages.first + pages.count;

    if (end <= start) {
        return;
    }

    end = (end - start < NPRDMA_CHUNK_PAGES) ? end - start : NPRDMA_CHUNK_PAGES;
    if (first < end) {
        nprdma_revoker_keep(pending, first, end);
    }
}

void nprdma_revoker_begin(nprdma_region_obj_t *region, nprdma_pages_t pages)
{
    size_t chunk = pages.first / NPRDMA_CHUNK_PAGES;
    size_t last  = (pages.first + pages.count - 1) / NPRDMA_CHUNK_PAGES;

    for (; (region->num_pending > 0) && (chunk <= last); ++chunk) {
        if (region->pending_in[chunk]) {
            nprdma_revoker_keep_in(
                    &region->pending[chunk * NPRDMA_REVOKER_WORDS], chunk,
                    pages);
        }
    }
}


/* ---- a tick ---- */

/* @return Number of consecutive pending pages from page @a first of the
 *         chunk */
NPRDMA_HOOK
static size_t nprdma_revoker_run_length(const uint64_t *pending, size_t first)
{
    size_t page = first;

    while ((page < NPRDMA_CHUNK_PAGES) &&
           ((pending[page / NPRDMA_REVOKER_BITS] >>
             (page % NPRDMA_REVOKER_BITS)) & 1)) {
        ++page;
    }

    return page - first;
}

/*
 * Revoke the pending pages of a chunk. The region is locked meanwhile: a thread
 * that registers one of them waits for some microseconds, and then finds that
 * the page has to be populated.
 */
NPRDMA_HOOK
static void nprdma_revoker_take(nprdma_revoker_pass_t *pass,
                                nprdma_region_obj_t *region, size_t chunk)
{
    uint64_t *pending = &region->pending[chunk * NPRDMA_REVOKER_WORDS];
    size_t start     = chunk * NPRDMA_CHUNK_PAGES;
    size_t page, count;

    nprdma_region_lock(region);
    if (!region->pending_in[chunk]) {
        goto out;
    }

    for (page = 0; page < NPRDMA_CHUNK_PAGES; page += count + 1) {
        count = nprdma_revoker_run_length(pending, page);
        if (count > 0) {
            /* Pages that no live range covers are not being populated */
            pass->cleared += pass->backend->invalidate(
                    &region->super, region->backend_priv, start + page, count,
                    NPRDMA_PAGE_BITS, 0);
        }
    }

    memset(pending, 0, NPRDMA_REVOKER_WORDS * sizeof(*pending));
    region->pending_in[chunk] = 0;
    --region->num_pending;
out:
    nprdma_region_unlock(region);
}

/* Find the pages of a chunk that have bits and that no live range covers */
NPRDMA_HOOK
static void nprdma_revoker_select(nprdma_revoker_pass_t *pass,
                                  nprdma_region_obj_t *region, size_t chunk)
{
    size_t first     = chunk * NPRDMA_CHUNK_PAGES;
    size_t num_pages = region->super.length >> NPRDMA_PAGE_SHIFT;
    uint64_t pending[NPRDMA_REVOKER_WORDS] = { 0 };
    nprdma_range_t *range;
    nprdma_span_t span;
    int marked;
    size_t i;

    /* A range that ends from now on marks the chunk again. So pages that are
     * populated after their states were loaded here are found by a later
     * tick. */
    nprdma_region_lock(region);
    marked               = region->ended[chunk];
    region->ended[chunk] = 0;
    nprdma_region_unlock(region);
    if (!marked || !atomic_load(&region->touched[chunk])) {
        return;
    }

    for (i = 0; (i < NPRDMA_CHUNK_PAGES) && (first + i < num_pages); ++i) {
        if (nprdma_page_load(&region->super.states[first + i]) &
            NPRDMA_PAGE_BITS) {
            pending[i / NPRDMA_REVOKER_BITS] |= (uint64_t)1 <<
                                                (i % NPRDMA_REVOKER_BITS);
        }
    }

    nprdma_region_lock(region);
    ucs_list_for_each(range, &region->ranges, list) {
        span.start = range->address;
        span.end   = range->address + range->length;
        nprdma_revoker_keep_in(pending, chunk,
                               nprdma_region_pages(region, span));
    }

    for (i = 0; (i < NPRDMA_REVOKER_WORDS) && (pending[i] == 0); ++i) {
    }
    if (i < NPRDMA_REVOKER_WORDS) {
        memcpy(&region->pending[chunk * NPRDMA_REVOKER_WORDS], pending,
               sizeof(pending));
        region->pending_in[chunk] = 1;
        ++region->num_pending;
        nprdma_revoker_mark(region, chunk, chunk + 1);
        pass->left = 1;
    }
    nprdma_region_unlock(region);
}

/* Not instrumented: ThreadSanitizer does not see the references by which
 * nprdma_regions_foreach() holds regions */
NPRDMA_HOOK
static void nprdma_revoker_region(nprdma_region_obj_t *region, void *arg)
{
    nprdma_revoker_pass_t *pass = arg;
    size_t chunk = 0;
    size_t end   = 0;

    nprdma_region_lock(region);
    if (region->revoke_tick != pass->tick) {
        /* Only once per tick: pages that become pending here are revoked by the
         * next tick at the earliest */
        chunk                = region->revoke_first;
        end                  = region->revoke_end;
        region->revoke_tick  = pass->tick;
        region->revoke_first = 0;
        region->revoke_end   = 0;
    }
    nprdma_region_unlock(region);

    for (; chunk < end; ++chunk) {
        nprdma_revoker_take(pass, region, chunk);
        nprdma_revoker_select(pass, region, chunk);
    }
}

NPRDMA_HOOK
static void nprdma_revoker_check(nprdma_region_obj_t *region, void *arg)
{
    nprdma_revoker_pass_t *pass = arg;

    nprdma_region_lock(region);
    pass->left |= region->revoke_first < region->revoke_end;
    nprdma_region_unlock(region);
}

int nprdma_revoker_tick(nprdma_revoker_t *revoker)
{
    nprdma_revoker_pass_t pass = { .backend = revoker->backend };
    nprdma_span_t all          = nprdma_span(0, UINTPTR_MAX);

    pass.tick = atomic_fetch_add(&revoker->ticks, 1) + 1;
    revoker->ops->begin(revoker->arg);
    nprdma_regions_foreach(revoker->regions, all, nprdma_revoker_region, &pass);
    revoker->ops->end(revoker->arg, pass.cleared);

    nprdma_regions_foreach(revoker->regions, all, nprdma_revoker_check, &pass);
    return pass.left;
}


/* ---- the thread ---- */

static int nprdma_revoker_has_work(nprdma_revoker_t *revoker)
{
    nprdma_revoker_pass_t pass = { .backend = revoker->backend };

    nprdma_regions_foreach(revoker->regions, nprdma_span(0, UINTPTR_MAX),
                           nprdma_revoker_check, &pass);
    return pass.left;
}

static void nprdma_revoker_sleep(nprdma_revoker_t *revoker)
{
    double seconds = revoker->seconds;
    struct timespec timeout;

    timeout.tv_sec  = (time_t)seconds;
    timeout.tv_nsec = (long)((seconds - (double)timeout.tv_sec) * 1e9);
    syscall(SYS_futex, &revoker->stop, FUTEX_WAIT_PRIVATE, 0, &timeout);
}

static void *nprdma_revoker_run(void *arg)
{
    nprdma_revoker_t *revoker = arg;

    while (!atomic_load(&revoker->stop)) {
        /* A thread that marks chunks loads `awake` afterwards. So either this
         * thread sees the mark, or that thread sees 0 and wakes this one; see
         * nprdma_monitor_unregister() */
        atomic_store(&revoker->awake, 0);
        atomic_thread_fence(memory_order_seq_cst);
        if (!nprdma_revoker_has_work(revoker) && !atomic_load(&revoker->stop)) {
            syscall(SYS_futex, &revoker->awake, FUTEX_WAIT_PRIVATE, 0, NULL);
        }
        atomic_store(&revoker->awake, 1);

        do {
            nprdma_revoker_sleep(revoker);
        } while (!atomic_load(&revoker->stop) && nprdma_revoker_tick(revoker));
    }

    return NULL;
}

NPRDMA_HOOK
void nprdma_revoker_wake(nprdma_revoker_t *revoker)
{
    if (!atomic_exchange(&revoker->awake, 1)) {
        syscall(SYS_futex, &revoker->awake, FUTEX_WAKE_PRIVATE, 1);
    }
}

void nprdma_revoker_start(nprdma_revoker_t *revoker)
{
    int ret;

    if (atomic_load(&revoker->state) != NPRDMA_REVOKER_NONE) {
        return;
    }

    if (revoker->seconds == 0) {
        atomic_store(&revoker->state, NPRDMA_REVOKER_DRIVEN);
        return;
    }

    atomic_store(&revoker->stop, 0);
    ret = nprdma_thread_start(&revoker->thread, nprdma_revoker_run, revoker);
    if (ret == 0) {
        pthread_setname_np(revoker->thread, "nprdma-revoke");
        atomic_store(&revoker->state, NPRDMA_REVOKER_RUNS);
    } else {
        ucs_diag("cannot start the thread that revokes pages of registrations "
                 "that have ended (%s): pages are revoked when a registration "
                 "ends, which takes longer", strerror(ret));
        atomic_store(&revoker->state, NPRDMA_REVOKER_BROKEN);
    }
}

void nprdma_revoker_stop(nprdma_revoker_t *revoker)
{
    if (atomic_load(&revoker->state) != NPRDMA_REVOKER_RUNS) {
        return;
    }

    atomic_store(&revoker->stop, 1);
    atomic_store(&revoker->awake, 1);
    syscall(SYS_futex, &revoker->stop, FUTEX_WAKE_PRIVATE, INT_MAX);
    syscall(SYS_futex, &revoker->awake, FUTEX_WAKE_PRIVATE, INT_MAX);
    pthread_join(revoker->thread, NULL);
    atomic_store(&revoker->state, NPRDMA_REVOKER_NONE);
}
