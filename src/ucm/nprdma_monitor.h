/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_MONITOR_H_
#define NPRDMA_MONITOR_H_

#include "ucm/events/nprdma_hook.h"
#include "ucm/events/nprdma_lazy.h"
#include "ucm/regions/nprdma_range.h"

#include <ucs/type/status.h>

BEGIN_C_DECLS

/*
 * The memory monitor controls, page by page, which memory of this process the
 * NIC may access. It takes a page away from the NIC before the kernel takes it
 * from the process. It pins no memory. doc/monitor.md explains why this is
 * safe. Addresses that stay, and pages behind them that go, are the idea of
 * NP-RDMA (arXiv 2310.11062). Regions before their first use are that of Gerofi
 * et al. (doi 10.1145/2966884.2966888).
 *
 * A *region* is a range of the address space for which the NIC has memory
 * regions that never change. It is larger than most buffers, so registering a
 * buffer is a lookup. A *range* is a live registration in a region: only its
 * pages are ever made accessible to the NIC. The *state* of a page is one
 * 32-bit word. Bit 0: the NIC may read the page. Bit 1: it may write the page.
 * The other bits count the changes of the word, and the count never goes back.
 *
 * A region is either for peers or *local*, that is, for the buffers of
 * operations that this process starts. Each kind has states of its own. So
 * memory that was never registered for peers has no bits in the regions that
 * the keys of peers refer to.
 */


typedef struct nprdma_monitor nprdma_monitor_t;


/* Test aid: pages are evicted on purpose, so that rare cases occur often. */
typedef enum nprdma_reclaim_mode {
    NPRDMA_RECLAIM_OFF,
    NPRDMA_RECLAIM_LOGICAL, /* The state only: the page stays where it is */
    NPRDMA_RECLAIM_REAL,    /* The state, then MADV_PAGEOUT */
    NPRDMA_RECLAIM_LAST
} nprdma_reclaim_mode_t;


/* With a NULL at the end */
extern const char *nprdma_reclaim_mode_names[];


/* When pages are revoked, that is, taken away from peers, after the last live
 * registration for peers that covered them has ended. Deregistration with
 * invalidation revokes them at once in every mode. */
typedef enum nprdma_revoke_mode {
    NPRDMA_REVOKE_NEVER,  /* When the kernel takes them, or with the region */
    NPRDMA_REVOKE_LAZY,   /* Within two ticks, by a thread */
    NPRDMA_REVOKE_STRICT, /* Before unregistering returns */
    NPRDMA_REVOKE_LAST
} nprdma_revoke_mode_t;


/* With a NULL at the end */
extern const char *nprdma_revoke_mode_names[];


/* See nprdma_backend.h */
struct nprdma_backend;


typedef struct nprdma_monitor_params {
    /* Owner of the states of the pages: nprdma_backend_xx */
    const struct nprdma_backend *backend;

    /* The NIC, where a back end re-points views of it: its PCI address, such
     * as "0000:03:00.0"; else NULL. Used during nprdma_monitor_create()
     * only. */
    const char                  *device;

    /* Buffer of NPRDMA_BACKEND_WHY_MAX bytes, filled with the reason if the
     * back end cannot be used. May be NULL if it has no open. */
    char                        *why;

    /* Bytes by which regions are aligned: a power of two, at least 2 MiB */
    size_t                       region_size;

    /* Bytes of states that regions without a live registration may hold; the
     * least recently used region is dropped first */
    size_t                       max_metadata;

    /* Bytes of memory that the process unmaps and this keeps for its next
     * mappings; 0: none. The first monitor of a process with it decides. */
    size_t                       lazy_limit;

    nprdma_revoke_mode_t         revoke;
    /* Seconds; 0: no thread is started, a test calls nprdma_monitor_tick() */
    double                       revoke_tick;

    nprdma_reclaim_mode_t        reclaim;
    double                       reclaim_rate; /* Pages per second; 0: none */
    uint64_t                     seed;         /* Of the reclaimer; 0: random */

    /* Wait until the NIC has completed the accesses that were in progress when
     * this was called. Called in memory hooks: must not allocate, log, or take
     * a lock under which any thread does. NULL: the back end drains. */
    void (*drain)(void *arg);

    /* Create the memory regions of the NIC for a new region, and store them in
     * region->priv. Called in nprdma_monitor_register(), with no lock held that
     * a memory hook takes. After UCS_ERR_EXCEEDS_LIMIT it is called again if an
     * idle region could be dropped; after UCS_ERR_INVALID_PARAM with a smaller
     * region if that covers the buffer; any other error is final. On success it
     * may close region->fd and set it to -1: the monitor does not need it. */
    ucs_status_t (*attach)(void *arg, nprdma_region_t *region);

    /* Undo attach. No range of the region is live, and all pages are absent.
     * Called in nprdma_monitor_register() and nprdma_monitor_destroy(). */
    void (*detach)(void *arg, nprdma_region_t *region);

    void                        *arg; /* Passed to the three functions above */
} nprdma_monitor_params_t;


typedef struct nprdma_monitor_stats {
    uint64_t regions;       /* Regions that exist now */
    uint64_t idle_regions;  /* Of these without a live registration */
    uint64_t state_bytes;   /* State arrays of all regions */
    uint64_t ranges;        /* Live registrations */
    uint64_t created;       /* Regions created since the beginning */
    uint64_t evicted;       /* Regions dropped because they were idle */
    uint64_t populated;     /* Pages made accessible to the NIC */
    /* Total time of that. Includes lookups of states, unless all pages had
     * their bits already */
    uint64_t populate_ns;
    uint64_t pageins;       /* System calls that brought pages in */
    uint64_t invalidated;   /* Pages taken away from the NIC */
    uint64_t revoked;       /* Of these because no registration covered them */
    uint64_t reclaimed;     /* Of these by the reclaimer */
    uint64_t events;        /* Memory events that took pages away */
    uint64_t drains;        /* Waits for the NIC */
    uint64_t kernel_events; /* Notifications that the kernel module received */
    uint64_t kernel_invalidated; /* Pages that it invalidated for these */
    nprdma_lazy_stats_t lazy;    /* Of the process */
} nprdma_monitor_stats_t;


/* Create a monitor, to be given to nprdma_monitor_destroy(). The parameters are
 * copied. UCS_ERR_UNSUPPORTED: memory events are not available (switched off by
 * UCX_MEM_EVENTS=n, or hooks cannot be installed), and no access by the NIC is
 * safe without them; UCS_ERR_NO_DEVICE: the back end cannot be used. */
ucs_status_t nprdma_monitor_create(const nprdma_monitor_params_t *params,
                                   nprdma_monitor_t **monitor_p);


/* Destroy a monitor, which no thread uses, and its regions. A warning reports
 * the number of registrations that are still live. They end: their ranges are
 * not accessed, and must not be unregistered any more. In a child made by
 * fork() this only frees the memory of the child: the regions are the
 * parent's. */
void nprdma_monitor_destroy(nprdma_monitor_t *monitor);


/* Register a range, of at least one byte: find a region that covers it, or
 * create one. Accesses and populates no memory: it need not even be mapped yet.
 * If there is a region, this makes no system call and takes only the lock of
 * that region. `range` is memory of the caller, which stays in place until
 * nprdma_monitor_unregister(). Ranges may overlap. Not for memory hooks.
 *
 * UCS_ERR_INVALID_PARAM: the range is empty, wraps around, or ends in the last
 * page of the address space; UCS_ERR_UNSUPPORTED: in a forked child. If a
 * region has to be created: UCS_ERR_NO_MEMORY; UCS_ERR_EXCEEDS_LIMIT (too many
 * regions, or they use a quarter of the file descriptors, or there is no
 * descriptor); UCS_ERR_OUT_OF_RANGE (RLIMIT_FSIZE); or the error of attach. */
ucs_status_t nprdma_monitor_register(nprdma_monitor_t *monitor,
                                     uintptr_t address, size_t length,
                                     nprdma_range_t *range);


/* The same for the buffer of an operation of this process. The region is local:
 * only local scatter/gather entries of work requests refer to it, and peers
 * have no key of it. */
ucs_status_t nprdma_monitor_register_local(nprdma_monitor_t *monitor,
                                           uintptr_t address, size_t length,
                                           nprdma_range_t *range);


/* End a registration that no thread populates. Parameter `revoke` of the
 * monitor says how long its pages stay accessible to the NIC, ready for the
 * next registration. Never allocates, so the memory hooks of a registration
 * cache may call it.
 *
 * `invalidate`: a peer may use its key after this returns. Revoke all pages of
 * the range at once, and close its region: for peers that have its keys, the
 * NIC does not access them any more, even if they are registered again, which
 * creates another region. For other live ranges in these pages only software is
 * left. */
void nprdma_monitor_unregister(nprdma_monitor_t *monitor, nprdma_range_t *range,
                               int invalidate);


/* Make pages of a range accessible to the NIC. Pages that are not present in
 * the process are brought in. Pages that are accessible already cost no system
 * call.
 *
 * Waits only for page faults. May race with every other call and every event: a
 * page that is taken away meanwhile does not get its bits. */
ucs_status_t
nprdma_monitor_populate(nprdma_monitor_t *monitor, nprdma_range_t *range,
                        uintptr_t address, size_t length, unsigned flags);


/* Revoke pages for peers at once: in each region for them, all pages of a
 * closed region, which are retired, and those pages of another one that no live
 * range of it covers. Their bits are cleared when this returns, and no access
 * to them is in progress. */
void nprdma_monitor_revoke(nprdma_monitor_t *monitor, nprdma_span_t span);


/* Do one tick of NPRDMA_REVOKE_LAZY, in place of its thread. For tests whose
 * monitor has no thread (nprdma_monitor_params_t::revoke_tick is 0). Nonzero if
 * work is left for the next ticks. */
int nprdma_monitor_tick(nprdma_monitor_t *monitor);


/* The counters are not read at the same moment */
void nprdma_monitor_query(nprdma_monitor_t *monitor,
                          nprdma_monitor_stats_t *stats);


/* Count pages and their events from zero again: what the monitor has done so
 * far was not for the application. Regions are counted as before. Called before
 * other threads use the monitor. */
void nprdma_monitor_restart_stats(nprdma_monitor_t *monitor);


/* In a child after fork(), before it calls any other function of src/ucm:
 * release the locks that are not held during fork(). They protect what is
 * opened once per process, and a child opens its own. For a handler of
 * pthread_atfork() of the caller. */
void nprdma_monitor_forked(void);

END_C_DECLS

#endif
