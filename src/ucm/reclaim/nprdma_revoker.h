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
 *                            that no live range covers are *doomed*
 *   a registration begins    its pages are not doomed any more
 *   the tick after that      pages that are still doomed are taken
 *
 * So a page goes between one and two ticks after its last registration, and a
 * page that is registered again within a tick stays, whatever its neighbours
 * do. Nothing is kept per registration. Dooming, sparing and taking are done
 * under the lock of the region, so no page of a live range is ever taken.
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


/** Part of a monitor, in zeroed memory. All fields are the revoker's. */
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


/** @return Nonzero if there is no thread, so pages are to be revoked at once. */
static inline int nprdma_revoker_is_broken(const nprdma_revoker_t *revoker)
{
    return atomic_load_explicit(&revoker->state, memory_order_relaxed) ==
           NPRDMA_REVOKER_BROKEN;
}


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
 * Start the thread, unless it has been started before. If it cannot be started,
 * a line is logged once, and @ref nprdma_revoker_is_broken. The caller makes
 * sure that no other thread calls this at the same time. Not for memory hooks.
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
