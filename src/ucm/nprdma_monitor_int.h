/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_MONITOR_INT_H_
#define NPRDMA_MONITOR_INT_H_

#include "nprdma_monitor.h"
#include "ucm/backend/nprdma_backend.h"
#include "ucm/events/nprdma_events.h"
#include "ucm/regions/nprdma_regions.h"

#include <pthread.h>

BEGIN_C_DECLS

/* Threads that can populate at the same time; others wait */
#define NPRDMA_MONITOR_NUM_POPULATES 16


/* A populate in progress, see nprdma_populate.c */
typedef struct nprdma_populate_call {
    _Atomic uint32_t  active; /* Nonzero: start and end are valid */
    _Atomic uint32_t  claimed;
    _Atomic uintptr_t start;
    _Atomic uintptr_t end;
} nprdma_populate_call_t;


/* Thread that takes pages away from peers some time after their last
 * registration has ended (NPRDMA_REVOKE_LAZY), see nprdma_revoker.c */
typedef struct nprdma_revoker {
    pthread_t        thread;
    _Atomic uint32_t state; /* NPRDMA_REVOKER_xx */
    _Atomic uint32_t awake; /* Futex: 0 while there is no work */
    _Atomic uint32_t stop;  /* Futex */
} nprdma_revoker_t;

enum {
    NPRDMA_REVOKER_NONE, /* Starts with the first registration for peers */
    NPRDMA_REVOKER_STARTED,
    NPRDMA_REVOKER_BROKEN /* Could not be: pages are revoked at once */
};


/* Thread that evicts populated pages at random, see nprdma_reclaim.c */
typedef struct nprdma_reclaimer {
    pthread_t        thread;
    int              is_started;
    _Atomic uint32_t stop;   /* Futex */
    uint64_t         random;
} nprdma_reclaimer_t;


/* In memory that is all zeros in a forked child */
struct nprdma_monitor {
    uint32_t                  is_owner; /* Zero in a forked child */
    nprdma_monitor_params_t   params;
    nprdma_listener_t         listener;
    nprdma_regions_t          regions;
    /* Creating and evicting regions. Memory hooks never take it. */
    pthread_mutex_t           lock;

    _Atomic uint64_t          clock;       /* +1 when a region becomes idle */
    _Atomic uint64_t          state_bytes; /* Of all regions */
    _Atomic uint64_t          idle_bytes;  /* Of those without a range */
    _Atomic uint32_t          trim;        /* Idle regions exceed the limit */

    /* Invalidations that have not yet waited for the NIC */
    _Atomic uint32_t          draining;
    _Atomic uint32_t          populating;  /* Active calls */
    nprdma_populate_call_t    populates[NPRDMA_MONITOR_NUM_POPULATES];

    nprdma_revoker_t          revoker;
    nprdma_reclaimer_t        reclaimer;
    int                       has_hooks;   /* Listens to them */
    int                       has_lazy;    /* Uses the pool of the process */
    /* Those that only grow; what the kernel has counted, of dropped regions */
    nprdma_monitor_stats_t    count;
};


/* Pages that are being taken away, see nprdma_invalidate.c */
typedef struct nprdma_sweep {
    nprdma_monitor_t *monitor;
    nprdma_span_t     taken;
    nprdma_span_t     gone;
    uint32_t          bits;
    size_t            cleared; /* Pages that lost a bit; 1 if not known */
    int               found;   /* There was a region */
} nprdma_sweep_t;


NPRDMA_HOOK
static inline void nprdma_monitor_count(uint64_t *counter, uint64_t add)
{
    __atomic_fetch_add(counter, add, __ATOMIC_RELAXED);
}


static inline size_t nprdma_region_state_bytes(const nprdma_region_t *region)
{
    return (region->length >> NPRDMA_PAGE_SHIFT) * sizeof(uint32_t);
}


/* A thread is populating part of a span. For hooks. */
int nprdma_monitor_is_populating(const nprdma_monitor_t *monitor,
                                 nprdma_span_t span);


/* Call a function, which clears bits and counts that in the sweep, for each
 * region that has a part of the sweep's `taken`. Then wait for the NIC. For
 * memory hooks. */
void nprdma_sweep_run(nprdma_sweep_t *sweep, nprdma_regions_func_t func);

/* Take pages away from the NIC; `gone`, a part of `taken`, is retired as well.
 * When this returns their bits NPRDMA_PAGE_xx are cleared, and no access to
 * them is in progress. For memory hooks. Returns the number of pages that lost
 * a bit. */
size_t nprdma_monitor_invalidate(nprdma_monitor_t *monitor, nprdma_span_t taken,
                                 nprdma_span_t gone, uint32_t bits);

/* As nprdma_monitor_invalidate(), for regions that are being dropped: others in
 * the same memory keep their pages */
void nprdma_monitor_revoke_dying(nprdma_monitor_t *monitor, nprdma_span_t span);


/* A range of a region for peers begins, or has ended. The caller holds the lock
 * of the region. Neither allocates nor waits. */
void nprdma_revoker_begin(nprdma_region_obj_t *region, nprdma_pages_t pages);
void nprdma_revoker_end(nprdma_region_obj_t *region, nprdma_pages_t pages);

/* Revoke those pages [first, end) of a chunk that no live range covers */
void nprdma_revoker_uncovered(nprdma_sweep_t *sweep,
                              nprdma_region_obj_t *region, size_t first,
                              size_t end);

/* Start the thread, unless it has been started before. If that fails, one line
 * is logged. The caller serialises calls. Not for memory hooks. */
void nprdma_revoker_start(nprdma_monitor_t *monitor);

/* Memory hooks may still run */
void nprdma_revoker_stop(nprdma_monitor_t *monitor);

/* The caller holds no lock. For memory hooks. */
void nprdma_revoker_wake(nprdma_monitor_t *monitor);


/* If the parameters ask for it, start the reclaimer. Its seed is logged. */
ucs_status_t nprdma_reclaimer_start(nprdma_monitor_t *monitor);

void nprdma_reclaimer_stop(nprdma_monitor_t *monitor);

/* Sleep for some seconds, or until `stop` is set and woken */
void nprdma_monitor_sleep(_Atomic uint32_t *stop, double seconds);

END_C_DECLS

#endif
