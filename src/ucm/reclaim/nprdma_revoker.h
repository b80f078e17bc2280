/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_REVOKER_H_
#define NPRDMA_REVOKER_H_

#include "ucm/backend/nprdma_backend.h"
#include "ucm/regions/nprdma_regions.h"

#include <pthread.h>

BEGIN_C_DECLS

/**
 * The revoker takes pages away from peers some time after their last
 * registration has ended (NPRDMA_REVOKE_LAZY). It works in ticks:
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
 * steps holds the lock of the region, so no page of a live range is revoked.
 */


/* State of the thread */
enum {
    NPRDMA_REVOKER_NONE,   /* Not started yet */
    NPRDMA_REVOKER_RUNS,
    NPRDMA_REVOKER_BROKEN, /* Could not be started: pages are revoked at once */
    NPRDMA_REVOKER_DRIVEN  /* Not wanted: a test calls nprdma_revoker_tick() */
};


/** What the revoker reports to the monitor, once per tick. */
typedef struct nprdma_revoker_ops {
    /** States will be cleared. */
    void (*begin)(void *arg);

    /** @a cleared pages have lost bits: wait for the NIC unless it is 0. */
    void (*end)(void *arg, size_t cleared);
} nprdma_revoker_ops_t;


/** Part of a monitor. The monitor sets the fields before `thread`; the others
 * are zero at first. */
typedef struct nprdma_revoker {
    nprdma_regions_t           *regions;
    const nprdma_backend_t     *backend;
    const nprdma_revoker_ops_t *ops;
    void                       *arg;     /* Of ops */
    double                      seconds; /* Of a tick; 0: there is no thread */
    pthread_t                   thread;
    _Atomic uint32_t            state;   /* NPRDMA_REVOKER_xx */
    _Atomic uint32_t            awake;   /* Futex: 0 while there is no work */
    _Atomic uint32_t            stop;    /* Futex */
    _Atomic uint32_t            ticks;
} nprdma_revoker_t;


/** @return Nonzero if @ref nprdma_revoker_start has not been called yet. */
static inline int nprdma_revoker_is_new(const nprdma_revoker_t *revoker)
{
    return atomic_load_explicit(&revoker->state, memory_order_relaxed) ==
           NPRDMA_REVOKER_NONE;
}


/** @return Nonzero if there is no thread, so pages are to be revoked at
 *         once. */
static inline int nprdma_revoker_is_broken(const nprdma_revoker_t *revoker)
{
    return atomic_load_explicit(&revoker->state, memory_order_relaxed) ==
           NPRDMA_REVOKER_BROKEN;
}


/**
 * A range of a region for peers begins: its pages are not pending any more. The
 * caller holds the lock of the region.
 */
void nprdma_revoker_begin(nprdma_region_obj_t *region, nprdma_pages_t pages);


/**
 * A range of a region for peers has ended: the next tick examines its pages.
 * The caller holds the lock of the region. Neither allocates nor waits.
 */
void nprdma_revoker_end(nprdma_region_obj_t *region, nprdma_pages_t pages);


/**
 * Start the thread, unless it has been started before. If that fails, one line
 * is logged, and @ref nprdma_revoker_is_broken returns nonzero from then on.
 * The caller serialises calls. Not for memory hooks.
 */
void nprdma_revoker_start(nprdma_revoker_t *revoker);

/** Stop the thread, if there is one. */
void nprdma_revoker_stop(nprdma_revoker_t *revoker);

/** Wake the thread. The caller holds no lock. For memory hooks. */
void nprdma_revoker_wake(nprdma_revoker_t *revoker);

/**
 * Do one tick. The thread calls this, or a test if there is no thread.
 *
 * @return Nonzero if work is left for the next ticks.
 */
int nprdma_revoker_tick(nprdma_revoker_t *revoker);

END_C_DECLS

#endif
