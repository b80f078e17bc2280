/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_MONITOR_INT_H_
#define NPRDMA_MONITOR_INT_H_

#include "nprdma_monitor.h"
#include "nprdma_prereg.h"
#include "ucm/backend/nprdma_backend.h"
#include "ucm/events/nprdma_events.h"
#include "ucm/reclaim/nprdma_revoker.h"
#include "ucm/regions/nprdma_regions.h"

#include <pthread.h>

BEGIN_C_DECLS

/* Threads that can populate at the same time; others wait */
#define NPRDMA_MONITOR_NUM_POPULATES 16


/* A populate in progress, see nprdma_populate.c */
typedef struct nprdma_populate_slot {
    _Atomic uint32_t  active; /* Nonzero: start and end are valid */
    _Atomic uint32_t  claimed;
    _Atomic uintptr_t start;
    _Atomic uintptr_t end;
} nprdma_populate_slot_t;


typedef struct nprdma_monitor_counters {
    _Atomic uint64_t created;
    _Atomic uint64_t preregistered;
    _Atomic uint64_t evicted;
    _Atomic uint64_t populated;
    _Atomic uint64_t populate_ns;
    _Atomic uint64_t faults;
    _Atomic uint64_t invalidated;
    _Atomic uint64_t revoked;
    _Atomic uint64_t reclaimed;
    _Atomic uint64_t events;
    _Atomic uint64_t drains;
    _Atomic uint64_t efaults; /* This and the next ones: of dropped regions */
    _Atomic uint64_t kernel_events;
    _Atomic uint64_t kernel_invalidated;
} nprdma_monitor_counters_t;


struct nprdma_reclaimer;
struct nprdma_uffd;


/* In memory that is all zeros in a forked child */
struct nprdma_monitor {
    uint32_t                  is_owner; /* Zero in a forked child */
    nprdma_monitor_params_t   params;
    nprdma_listener_t         listener;
    nprdma_regions_t          regions;
    pthread_mutex_t           lock; /* Creating and evicting regions. Memory
                                     * hooks never take it. */

    _Atomic uint64_t          clock;       /* +1 when a region becomes idle */
    _Atomic uint64_t          state_bytes; /* Of all regions */
    _Atomic uint64_t          idle_bytes;  /* Of those without a range */
    _Atomic uint32_t          trim;        /* Idle regions exceed the limit */

    _Atomic uint32_t          draining;    /* Invalidations that have not yet
                                            * waited for the NIC */
    _Atomic uint32_t          populating;  /* Active slots */
    nprdma_populate_slot_t    populates[NPRDMA_MONITOR_NUM_POPULATES];

    nprdma_revoker_t          revoker;
    struct nprdma_reclaimer  *reclaimer;   /* This and the next: or NULL */
    nprdma_prereg_t          *prereg;
    struct nprdma_uffd       *uffd;
    nprdma_monitor_counters_t count;
};


static inline void nprdma_monitor_count(_Atomic uint64_t *counter, uint64_t add)
{
    atomic_fetch_add_explicit(counter, add, memory_order_relaxed);
}


/** @return Bytes of the states of a region. */
static inline size_t nprdma_region_state_bytes(const nprdma_region_t *region)
{
    return (region->length >> NPRDMA_PAGE_SHIFT) * sizeof(uint32_t);
}


/**
 * Take pages away from the NIC. When this returns their states are cleared, and
 * no access to them is in progress. For memory hooks.
 *
 * @param [in] taken  Addresses of the pages.
 * @param [in] gone   Part of @a taken whose pages are to be retired.
 * @param [in] bits   NPRDMA_PAGE_xx to clear.
 *
 * @return Number of pages that lost a bit.
 */
size_t nprdma_monitor_invalidate(nprdma_monitor_t *monitor, nprdma_span_t taken,
                                 nprdma_span_t gone, uint32_t bits);


/**
 * As @ref nprdma_monitor_invalidate, for those pages of a span that no live
 * range of the same region covers, in all regions for peers.
 */
void nprdma_monitor_revoke(nprdma_monitor_t *monitor, nprdma_span_t span);


/** @return Nonzero if a thread is populating part of a span. For hooks. */
int nprdma_monitor_is_populating(const nprdma_monitor_t *monitor,
                                 nprdma_span_t span);


/** Connect the revoker to the monitor, whose parameters are set. */
void nprdma_monitor_init_revoker(nprdma_monitor_t *monitor);


/**
 * Start the threads that the parameters of a monitor ask for, all but that of
 * the revoker, which starts with the first registration.
 *
 * @param [in] monitor  Monitor.
 * @param [in] create   Function that creates the region of memory that has been
 *                      mapped; its argument is the monitor.
 *
 * @return UCS_OK or UCS_ERR_NO_MEMORY. Without a userfaultfd, a line is logged.
 */
ucs_status_t nprdma_monitor_start_threads(nprdma_monitor_t *monitor,
                                          nprdma_prereg_func_t create);

/** Stop all threads. Memory hooks may still run. */
void nprdma_monitor_stop_threads(nprdma_monitor_t *monitor);

/** Free what memory hooks use of stopped threads, once no hook can run. */
void nprdma_monitor_free_threads(nprdma_monitor_t *monitor);

END_C_DECLS

#endif
