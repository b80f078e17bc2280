/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_REVOKER_H_
#define NPRDMA_REVOKER_H_

#include "ucm/nprdma_monitor_int.h"

BEGIN_C_DECLS

/**
 * The revoker takes pages away from peers some time after their last
 * registration has ended (NPRDMA_REVOKE_LAZY). It works in ticks:
 *
 *   a registration ends      its chunks are marked
 *   the next tick            pages of marked chunks that are accessible and
 *                            that no live range covers are *doomed*
 *   a registration begins    its pages are not doomed any more
 *   the tick after that      pages that are still doomed are taken
 *
 * So a page goes between one and two ticks after its last registration, and a
 * page that is registered again within a tick stays, whatever its neighbours
 * do. Nothing is kept per registration. Dooming, sparing and taking are done
 * under the lock of the region, so no page of a live range is ever taken.
 */


/* Where the thread is */
enum {
    NPRDMA_REVOKER_NONE,   /* Not started yet */
    NPRDMA_REVOKER_RUNS,
    NPRDMA_REVOKER_BROKEN, /* None to be had: pages go at once */
    NPRDMA_REVOKER_DRIVEN  /* None wanted: somebody calls the tick */
};


/**
 * A range of a region for peers begins. Its pages are spared. The caller holds
 * the region's lock.
 */
void nprdma_revoker_begin(nprdma_region_obj_t *region, nprdma_pages_t pages);


/**
 * A range of a region for peers has ended: have its pages looked at. The caller
 * holds the region's lock. Neither allocates nor waits.
 */
void nprdma_revoker_end(nprdma_region_obj_t *region, nprdma_pages_t pages);


/**
 * Start the thread, if there is none yet. Where there is none to be had, pages
 * are revoked where registrations end, after one line that says so. Not for
 * memory hooks.
 */
void nprdma_revoker_start(nprdma_monitor_t *monitor);

/** Stop the thread, if there is one. */
void nprdma_revoker_stop(nprdma_monitor_t *monitor);

/** Have the thread look; may be called with no lock held only. For hooks. */
void nprdma_revoker_wake(nprdma_monitor_t *monitor);


/** @return Whether the end of a registration revokes its pages at once. */
static inline int nprdma_revoker_is_strict(const nprdma_monitor_t *monitor)
{
    return (monitor->params.revoke == NPRDMA_REVOKE_STRICT) ||
           ((monitor->params.revoke == NPRDMA_REVOKE_LAZY) &&
            (atomic_load_explicit(&monitor->revoker.state,
                                  memory_order_relaxed) ==
             NPRDMA_REVOKER_BROKEN));
}

END_C_DECLS

#endif
