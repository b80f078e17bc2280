/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_invalidate.h"
#include "nprdma_monitor_int.h"
#include "nprdma_monitor_threads.h"
#include "ucm/reclaim/nprdma_reclaim.h"

#include "nprdma_probe.h"


/* The threads of a monitor, and what they report to it: revoker, reclaimer, and
 * reader of a userfaultfd */


const char *nprdma_reclaim_mode_names[] = {
    [NPRDMA_RECLAIM_OFF]     = "off",
    [NPRDMA_RECLAIM_LOGICAL] = "logical",
    [NPRDMA_RECLAIM_REAL]    = "real",
    [NPRDMA_RECLAIM_SAMPLED] = "sampled",
    [NPRDMA_RECLAIM_LAST]    = NULL
};

const char *nprdma_revoke_mode_names[] = {
    [NPRDMA_REVOKE_NEVER]  = "never",
    [NPRDMA_REVOKE_LAZY]   = "lazy",
    [NPRDMA_REVOKE_STRICT] = "strict",
    [NPRDMA_REVOKE_LAST]   = NULL
};


/* A tick of the revoker clears states as any invalidation does: a hook that
 * finds that bits were cleared by the tick has to wait for the NIC, too */
static void nprdma_monitor_revoke_begin(void *arg)
{
    nprdma_monitor_t *monitor = arg;

    atomic_fetch_add(&monitor->draining, 1);
}

static void nprdma_monitor_revoke_end(void *arg, size_t cleared)
{
    nprdma_monitor_t *monitor = arg;

    if (cleared > 0) {
        atomic_fetch_add(&monitor->count.drains, 1);
        if (monitor->params.drain != NULL) {
            monitor->params.drain(monitor->params.arg);
        }
    }
    atomic_fetch_sub(&monitor->draining, 1);
    nprdma_monitor_count(&monitor->count.invalidated, cleared);
    nprdma_monitor_count(&monitor->count.revoked, cleared);
    NPRDMA_PROBE(revoke, cleared);
}

static const nprdma_revoker_ops_t nprdma_monitor_revoker_ops = {
    .begin = nprdma_monitor_revoke_begin,
    .end   = nprdma_monitor_revoke_end
};

void nprdma_monitor_init_revoker(nprdma_monitor_t *monitor)
{
    nprdma_revoker_t *revoker = &monitor->revoker;

    revoker->regions = &monitor->regions;
    revoker->backend = monitor->params.backend;
    revoker->ops     = &nprdma_monitor_revoker_ops;
    revoker->arg     = monitor;
    revoker->seconds = monitor->params.revoke_tick;
}

static void nprdma_monitor_reclaim_page(void *arg, nprdma_span_t page)
{
    nprdma_monitor_t *monitor = arg;
    size_t cleared;

    cleared = nprdma_monitor_invalidate(monitor, page, nprdma_span(0, 0),
                                        NPRDMA_PAGE_BITS);
    nprdma_monitor_count(&monitor->count.reclaimed, cleared);
}

static ucs_status_t nprdma_monitor_start_reclaimer(nprdma_monitor_t *monitor)
{
    nprdma_reclaim_mode_t mode       = monitor->params.reclaim;
    nprdma_reclaimer_params_t params = {
        .regions   = &monitor->regions,
        .num_bytes = &monitor->state_bytes,
        .rate      = monitor->params.reclaim_rate,
        .seed      = monitor->params.seed,
        .is_real   = (mode == NPRDMA_RECLAIM_REAL),
        .mode      = nprdma_reclaim_mode_names[mode],
        .evict     = nprdma_monitor_reclaim_page,
        .arg       = monitor
    };

    return nprdma_reclaimer_start(&params, &monitor->reclaimer);
}

void nprdma_monitor_stop_threads(nprdma_monitor_t *monitor)
{
    nprdma_revoker_stop(&monitor->revoker);
    if (monitor->reclaimer != NULL) {
        nprdma_reclaimer_stop(monitor->reclaimer);
    }
}

ucs_status_t nprdma_monitor_start_threads(nprdma_monitor_t *monitor)
{
    ucs_status_t status = UCS_OK;

    if ((monitor->params.reclaim == NPRDMA_RECLAIM_LOGICAL) ||
        (monitor->params.reclaim == NPRDMA_RECLAIM_REAL)) {
        status = nprdma_monitor_start_reclaimer(monitor);
    }
    if (status != UCS_OK) {
        nprdma_monitor_stop_threads(monitor);
    }

    return status;
}
