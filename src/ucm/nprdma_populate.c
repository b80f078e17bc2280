/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_monitor_int.h"
#include "ucm/access/nprdma_pagein.h"

#include <sched.h>
#include <time.h>

/*
 * Page-in: the state of a page is set only if the page was not taken away since
 * it was brought in. No lock ensures that, since memory hooks must not wait for
 * a populate. The order of steps ensures it:
 *
 *   populate                              memory hook
 *   1. publish the pages to be populated  1. block the range
 *   2. copy their words                   2. if a thread populates part of the
 *   3. drop the pages from the first         range, change the words of
 *      blocked one on                        absent pages, too
 *   4. bring the other pages in           3. drain
 *   5. set each word that has not         4. the system call
 *      changed since step 2               5. unblock the range
 *
 * All steps are sequentially consistent. If step 1 of populate is before step 2
 * of the hook, the hook changes the word. If it does so before step 2 of
 * populate, step 3 of populate finds the block, or the system call has
 * returned. If it does so after step 2 of populate, step 5 of populate fails.
 * If step 1 of populate is after step 2 of the hook, step 3 of populate finds
 * the block.
 *
 * This holds for each page separately, so a page that is taken away does not
 * delay the others. A page that had its bits at some time is done, even if it
 * has lost them again. The next try begins at the first page that is not done.
 * So each try makes progress, unless this very page was taken or is blocked.
 */


/* Tries without progress, if the page is taken away repeatedly. More than 64:
 * the kernel module counts revocations per 64 pages, not per page. */
#define NPRDMA_POPULATE_TRIES 128

/* Polls of a page that is blocked before UCS_ERR_BUSY. Few, since the caller
 * may hold a resource that the unmapping thread waits for. */
#define NPRDMA_POPULATE_BUSY_POLLS 64


NPRDMA_HOOK
int nprdma_monitor_is_populating(const nprdma_monitor_t *monitor,
                                 nprdma_span_t span)
{
    const nprdma_populate_call_t *call;
    unsigned i;

    if (atomic_load(&monitor->populating) == 0) {
        return 0;
    }

    for (i = 0; i < NPRDMA_MONITOR_NUM_POPULATES; ++i) {
        call = &monitor->populates[i];
        if (atomic_load(&call->active) &&
            (atomic_load(&call->start) < span.end) &&
            (atomic_load(&call->end) > span.start)) {
            return 1;
        }
    }

    return 0;
}

static nprdma_populate_call_t *
nprdma_populate_begin(nprdma_monitor_t *monitor, nprdma_span_t span)
{
    nprdma_populate_call_t *call;
    unsigned i;

    for (i = 0;; i = (i + 1) % NPRDMA_MONITOR_NUM_POPULATES) {
        call = &monitor->populates[i];
        if (!atomic_exchange(&call->claimed, 1)) {
            break;
        }

        if (i == NPRDMA_MONITOR_NUM_POPULATES - 1) {
            sched_yield(); /* Every call ends in finite time */
        }
    }

    atomic_store(&call->start, span.start);
    atomic_store(&call->end, span.end);
    atomic_store(&call->active, 1);
    atomic_fetch_add(&monitor->populating, 1);
    return call;
}

static void
nprdma_populate_end(nprdma_monitor_t *monitor, nprdma_populate_call_t *call)
{
    atomic_fetch_sub(&monitor->populating, 1);
    atomic_store(&call->active, 0);
    atomic_store(&call->claimed, 0);
}

static void nprdma_populate_get_revocations(const nprdma_monitor_t *monitor,
                                            const nprdma_region_obj_t *region,
                                            nprdma_populate_t *populate)
{
    const nprdma_backend_t *backend = monitor->params.backend;

    nprdma_page_load_all(&region->super.states[populate->first],
                         populate->count, populate->words);
    if (backend->get_revocations != NULL) {
        populate->revocations = backend->get_revocations(region->backend_priv);
    }
}

/* Populate the pages before the first one that is retired */
static ucs_status_t
nprdma_populate_free(nprdma_monitor_t *monitor, nprdma_region_obj_t *region,
                     nprdma_pages_t pages, nprdma_populate_t *populate)
{
    ucs_status_t status = UCS_OK;

    /* A retired page counts as not mapped */
    populate->count = nprdma_region_not_retired(region, pages);
    if (populate->count > 0) {
        status = monitor->params.backend->populate(region->backend_priv,
                                                   populate);
    }

    return ((status == UCS_OK) && (populate->count < pages.count)) ?
           UCS_ERR_INVALID_ADDR : status;
}

/* Try once to populate pages of one chunk. UCS_OK: the first populate->done
 * pages are done. */
static ucs_status_t
nprdma_populate_try(nprdma_monitor_t *monitor, nprdma_region_obj_t *region,
                    nprdma_pages_t pages, nprdma_populate_t *populate)
{
    ucs_status_t status = UCS_ERR_BUSY;
    nprdma_populate_call_t *call;
    nprdma_span_t span;

    span.start = region->super.address + (pages.first << NPRDMA_PAGE_SHIFT);
    span.end   = span.start + (pages.count << NPRDMA_PAGE_SHIFT);

    call = nprdma_populate_begin(monitor, span);
    atomic_store(&region->touched[pages.first / NPRDMA_CHUNK_PAGES], 1);
    populate->first = pages.first;
    populate->count = pages.count;
    populate->done  = 0;
    nprdma_populate_get_revocations(monitor, region, populate);

    pages.count = (nprdma_events_blocked(span.start, span.end) - span.start) >>
                  NPRDMA_PAGE_SHIFT;
    if (pages.count > 0) {
        status = nprdma_populate_free(monitor, region, pages, populate);
    }

    nprdma_populate_end(monitor, call);
    return status;
}

static uint64_t nprdma_populate_time(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (uint64_t)1000000000 + now.tv_nsec;
}

static ucs_status_t
nprdma_populate_retry(nprdma_monitor_t *monitor, nprdma_region_obj_t *region,
                      nprdma_pages_t pages, nprdma_populate_t *populate)
{
    unsigned tries    = 0;
    unsigned polls    = 0;
    ucs_status_t status;

    while (pages.count > 0) {
        status       = nprdma_populate_try(monitor, region, pages, populate);
        pages.first += populate->done;
        pages.count -= populate->done;
        if (populate->done > 0) {
            tries = polls = 0;
        }

        if (status == UCS_ERR_NO_RESOURCE) {
            if (++tries == NPRDMA_POPULATE_TRIES) {
                return UCS_ERR_BUSY;
            }
        } else if (status == UCS_ERR_TIMED_OUT) {
            return UCS_ERR_BUSY; /* The kernel module has retried enough */
        } else if (status == UCS_ERR_BUSY) {
            if (++polls == NPRDMA_POPULATE_BUSY_POLLS) {
                return UCS_ERR_BUSY;
            }
            sched_yield();
        } else if (status != UCS_OK) {
            return status;
        }
    }

    return UCS_OK;
}

static ucs_status_t
nprdma_populate_chunk(nprdma_monitor_t *monitor, nprdma_region_obj_t *region,
                      nprdma_pages_t pages, nprdma_populate_t *populate)
{
    uint64_t start = nprdma_populate_time();
    ucs_status_t status;

    populate->populated = 0;
    populate->pageins   = 0;
    status = nprdma_populate_retry(monitor, region, pages, populate);

    nprdma_monitor_count(&monitor->count.populated, populate->populated);
    nprdma_monitor_count(&monitor->count.pageins, populate->pageins);
    nprdma_monitor_count(&monitor->count.populate_ns,
                         nprdma_populate_time() - start);
    return status;
}

/* @return Number of pages, from the first one, that have the bits already */
static size_t
nprdma_populate_present(const nprdma_region_obj_t *region, nprdma_pages_t pages,
                        uint32_t bits)
{
    const nprdma_page_state_t *states = region->super.states + pages.first;
    size_t i;

    if (!atomic_load_explicit(&region->touched[pages.first /
                                               NPRDMA_CHUNK_PAGES],
                              memory_order_relaxed)) {
        return 0;
    }

    for (i = 0; i < pages.count; ++i) {
        if ((atomic_load_explicit(&states[i], memory_order_relaxed) & bits) !=
            bits) {
            break;
        }
    }

    return i;
}

/* If only resident pages are wanted, skip pages of chunks that have none
 * without reading their states: reading them would allocate memory for them */
static size_t nprdma_populate_skip(nprdma_region_obj_t *region, size_t first,
                                   size_t end)
{
    return atomic_load_explicit(&region->touched[first / NPRDMA_CHUNK_PAGES],
                                memory_order_relaxed) ?
           first :
           first + nprdma_pagein_next(region->super.address +
                                      (first << NPRDMA_PAGE_SHIFT),
                                      end - first);
}

/* Stops at the first page that cannot be populated */
static ucs_status_t
nprdma_populate_pages(nprdma_monitor_t *monitor, nprdma_region_obj_t *region,
                      nprdma_pages_t pages, nprdma_populate_t *populate)
{
    int resident        = !!(populate->flags & NPRDMA_POPULATE_RESIDENT);
    uint32_t bits       = (populate->flags & NPRDMA_POPULATE_WRITE) ?
                          NPRDMA_PAGE_BITS : NPRDMA_PAGE_R;
    ucs_status_t result = UCS_OK;
    size_t end          = pages.first + pages.count;
    nprdma_pages_t chunk;
    ucs_status_t status;
    size_t next;

    for (chunk.first = pages.first; chunk.first < end; chunk.first = next) {
        if (resident) {
            chunk.first = nprdma_populate_skip(region, chunk.first, end);
            if (chunk.first == end) {
                break;
            }
        }

        next         = (chunk.first | (NPRDMA_CHUNK_PAGES - 1)) + 1;
        next         = (next > end) ? end : next;
        chunk.count  = next - chunk.first;
        chunk.first += nprdma_populate_present(region, chunk, bits);
        chunk.count  = next - chunk.first;
        if (chunk.count == 0) {
            continue;
        }

        status = nprdma_populate_chunk(monitor, region, chunk, populate);
        if ((status == UCS_OK) || resident) {
            continue;
        }

        if (status == UCS_ERR_INVALID_ADDR) {
            return status;
        }

        result = status;
    }

    return result;
}

static int nprdma_populate_is_inside(const nprdma_range_t *range,
                                     uintptr_t address, size_t length)
{
    return (address >= range->address) &&
           (address - range->address <= range->length) &&
           (length <= range->length - (address - range->address));
}

ucs_status_t
nprdma_monitor_populate(nprdma_monitor_t *monitor, nprdma_range_t *range,
                        uintptr_t address, size_t length, unsigned flags)
{
    nprdma_region_obj_t *region = nprdma_region_obj(range->region);
    nprdma_populate_t populate;

    if (!monitor->is_owner) {
        return UCS_ERR_UNSUPPORTED;
    }

    if (!nprdma_populate_is_inside(range, address, length)) {
        return UCS_ERR_OUT_OF_RANGE;
    }

    if (length == 0) {
        return UCS_OK;
    }

    populate.region = &region->super;
    populate.range  = range;
    populate.flags  = flags;
    return nprdma_populate_pages(monitor, region,
                                 nprdma_region_pages(region,
                                                     nprdma_span(address,
                                                                 address +
                                                                 length)),
                                 &populate);
}
