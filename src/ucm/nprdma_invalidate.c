/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_monitor_int.h"

#include "nprdma_probe.h"

/* Page-out, in the order of ARCHITECTURE 3. All of this runs in memory hooks:
 * no allocation, no log, no lock. */


NPRDMA_HOOK
static void nprdma_sweep_gate(nprdma_sweep_t *sweep,
                              nprdma_region_obj_t *region,
                              nprdma_invalidate_step_t step)
{
    const nprdma_backend_t *backend = sweep->monitor->params.backend;
    nprdma_pages_t pages;

    if (backend->gate != NULL) {
        pages = nprdma_region_pages(region, sweep->taken);
        backend->gate(&region->super, region->backend_priv, step, pages.first,
                      pages.count);
    }
}

/* Invalidate pages of one chunk. While a thread is populating some of them, the
 * count of absent pages advances, too: that thread has copied the words, and
 * finds that they differ. */
NPRDMA_HOOK
static void nprdma_sweep_chunk(nprdma_sweep_t *sweep,
                               nprdma_region_obj_t *region, size_t first,
                               size_t end)
{
    uintptr_t start = region->super.address;
    nprdma_span_t span;

    span.start      = start + (first << NPRDMA_PAGE_SHIFT);
    span.end        = start + (end << NPRDMA_PAGE_SHIFT);
    sweep->cleared += sweep->monitor->params.backend->invalidate(
            &region->super, region->backend_priv, first, end - first,
            sweep->bits, nprdma_monitor_is_populating(sweep->monitor, span));
}

NPRDMA_HOOK
static void
nprdma_sweep_pages(nprdma_sweep_t *sweep, nprdma_region_obj_t *region,
                   nprdma_pages_t pages,
                   void (*func)(nprdma_sweep_t *sweep,
                                nprdma_region_obj_t *region, size_t first,
                                size_t end))
{
    size_t end = pages.first + pages.count;
    size_t first, next;

    for (first = pages.first; first < end; first = next) {
        next = (first | (NPRDMA_CHUNK_PAGES - 1)) + 1;
        if (next > end) {
            next = end;
        }

        /* In a chunk that was never populated the states are not read: reading
         * them would allocate memory for them */
        if (atomic_load(&region->touched[first / NPRDMA_CHUNK_PAGES])) {
            func(sweep, region, first, next);
        }
    }
}

NPRDMA_HOOK
static void nprdma_sweep_region(nprdma_region_obj_t *region, void *arg)
{
    nprdma_sweep_t *sweep = arg;
    nprdma_pages_t pages  = nprdma_region_pages(region, sweep->taken);

    if (pages.count == 0) {
        return;
    }

    sweep->found = 1;
    nprdma_sweep_gate(sweep, region, NPRDMA_INVALIDATE_START);
    nprdma_region_retire(region, nprdma_region_pages(region, sweep->gone));
    nprdma_sweep_pages(sweep, region, pages, nprdma_sweep_chunk);
}

static void nprdma_sweep_uncovered(nprdma_region_obj_t *region, void *arg)
{
    nprdma_sweep_t *sweep = arg;
    nprdma_pages_t pages  = nprdma_region_pages(region, sweep->taken);

    /* A local region has no keys that could be revoked */
    if (region->super.is_local || (pages.count == 0)) {
        return;
    }

    sweep->found = 1;
    nprdma_sweep_gate(sweep, region, NPRDMA_INVALIDATE_START);
    if (atomic_load(&region->is_closed)) {
        /* Also pages that a live range covers, and for good: peers that have
         * its key can do with the target's software */
        nprdma_region_revoke(region, pages);
        nprdma_sweep_pages(sweep, region, pages, nprdma_sweep_chunk);
    } else {
        nprdma_sweep_pages(sweep, region, pages, nprdma_revoker_uncovered);
    }
}

NPRDMA_HOOK
static void nprdma_sweep_quiesced(nprdma_region_obj_t *region, void *arg)
{
    nprdma_sweep_t *sweep = arg;

    if (nprdma_region_pages(region, sweep->taken).count > 0) {
        nprdma_sweep_gate(sweep, region, NPRDMA_INVALIDATE_QUIESCED);
    }
}

NPRDMA_HOOK
void nprdma_sweep_run(nprdma_sweep_t *sweep, nprdma_regions_func_t func)
{
    nprdma_monitor_t *monitor = sweep->monitor;

    atomic_fetch_add(&monitor->draining, 1);
    nprdma_regions_foreach(&monitor->regions, sweep->taken, func, sweep);

    /* If no bit was cleared, no access can be in progress, unless another
     * thread has just cleared the bits and is still waiting for the NIC */
    if ((sweep->cleared > 0) ||
        (sweep->found && (atomic_load(&monitor->draining) > 1))) {
        if (monitor->params.drain != NULL) {
            nprdma_monitor_count(&monitor->count.drains, 1);
            monitor->params.drain(monitor->params.arg);
        }
    }

    if (sweep->found) {
        nprdma_regions_foreach(&monitor->regions, sweep->taken,
                               nprdma_sweep_quiesced, sweep);
    }

    atomic_fetch_sub(&monitor->draining, 1);
    nprdma_monitor_count(&monitor->count.invalidated, sweep->cleared);
    NPRDMA_PROBE(invalidate, sweep->taken.start,
                 sweep->taken.end - sweep->taken.start, sweep->cleared);
}

NPRDMA_HOOK
static size_t nprdma_sweep_by(nprdma_monitor_t *monitor, nprdma_span_t taken,
                              nprdma_span_t gone, uint32_t bits,
                              nprdma_regions_func_t func)
{
    nprdma_sweep_t sweep;

    sweep.monitor = monitor;
    sweep.taken   = taken;
    sweep.gone    = gone;
    sweep.bits    = bits;
    sweep.cleared = 0;
    sweep.found   = 0;
    nprdma_sweep_run(&sweep, func);
    return sweep.cleared;
}

NPRDMA_HOOK
size_t nprdma_monitor_invalidate(nprdma_monitor_t *monitor, nprdma_span_t taken,
                                 nprdma_span_t gone, uint32_t bits)
{
    return nprdma_sweep_by(monitor, taken, gone, bits, nprdma_sweep_region);
}

void nprdma_monitor_revoke(nprdma_monitor_t *monitor, nprdma_span_t span)
{
    nprdma_monitor_count(&monitor->count.revoked,
                         nprdma_sweep_by(monitor, span, nprdma_span(0, 0),
                                         NPRDMA_PAGE_BITS,
                                         nprdma_sweep_uncovered));
}

static void nprdma_sweep_dying(nprdma_region_obj_t *region, void *arg)
{
    if (atomic_load(&region->refs) & NPRDMA_REGION_DYING) {
        nprdma_sweep_region(region, arg);
    }
}

void nprdma_monitor_revoke_dying(nprdma_monitor_t *monitor, nprdma_span_t span)
{
    nprdma_sweep_by(monitor, span, nprdma_span(0, 0), NPRDMA_PAGE_BITS,
                    nprdma_sweep_dying);
}
