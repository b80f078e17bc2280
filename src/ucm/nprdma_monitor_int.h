/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_MONITOR_INT_H_
#define NPRDMA_MONITOR_INT_H_

#include "nprdma_monitor_types.h"
#include "ucm/backend/nprdma_backend.h"
#include "ucm/events/nprdma_events.h"
#include "ucm/reclaim/nprdma_revoker.h"
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


typedef struct nprdma_monitor_counters {
    _Atomic uint64_t created;
    _Atomic uint64_t evicted;
    _Atomic uint64_t populated;
    _Atomic uint64_t populate_ns;
    _Atomic uint64_t pageins;
    _Atomic uint64_t invalidated;
    _Atomic uint64_t revoked;
    _Atomic uint64_t reclaimed;
    _Atomic uint64_t events;
    _Atomic uint64_t drains;
    _Atomic uint64_t kernel_events; /* From here on: of dropped regions */
    _Atomic uint64_t kernel_invalidated;
} nprdma_monitor_counters_t;


struct nprdma_reclaimer;


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
    struct nprdma_reclaimer  *reclaimer;   /* Or NULL */
    int                       has_lazy;    /* Uses the pool of the process */
    nprdma_monitor_counters_t count;
    /* What nprdma_monitor_query() leaves out: see
     * nprdma_monitor_restart_stats() */
    nprdma_monitor_stats_t    before;
};


static inline void nprdma_monitor_count(_Atomic uint64_t *counter, uint64_t add)
{
    atomic_fetch_add_explicit(counter, add, memory_order_relaxed);
}


static inline size_t nprdma_region_state_bytes(const nprdma_region_t *region)
{
    return (region->length >> NPRDMA_PAGE_SHIFT) * sizeof(uint32_t);
}

END_C_DECLS

#endif
