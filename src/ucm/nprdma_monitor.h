/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_MONITOR_H_
#define NPRDMA_MONITOR_H_

#include "ucm/regions/nprdma_range.h"

#include <ucs/type/status.h>

BEGIN_C_DECLS

/**
 * The memory monitor knows, page by page, what of this process's memory the NIC
 * may touch, and takes a page away from the NIC before the kernel takes it from
 * the process. It pins nothing. Why that is safe is in doc/monitor.md.
 *
 * Words: a *region* is a range of the address space for which the NIC has
 * memory regions that never change; it is larger than most buffers, so that
 * registering a buffer is a lookup. A *range* is a live registration in a
 * region: only its pages are ever made accessible to the NIC. A page's *state*
 * is one 32-bit word: bit 0, the NIC may read the page; bit 1, it may write it;
 * the rest counts changes and never goes back.
 *
 * A region is either for peers or *local*: for the buffers of operations that
 * this process itself begins. A page is populated in each kind by itself, so
 * memory that was never registered for peers has no bit where a key of a peer
 * leads to.
 */


typedef struct nprdma_monitor nprdma_monitor_t;


/** Whether pages are evicted on purpose, to see the rare cases often. */
typedef enum nprdma_reclaim_mode {
    NPRDMA_RECLAIM_OFF,
    NPRDMA_RECLAIM_LOGICAL, /* The state only: the page stays where it is */
    NPRDMA_RECLAIM_REAL,    /* The state, then MADV_PAGEOUT */
    NPRDMA_RECLAIM_SAMPLED, /* None; the NIC asks the kernel what is present */
    NPRDMA_RECLAIM_LAST
} nprdma_reclaim_mode_t;


/** Names of the modes, with a NULL at the end. */
extern const char *nprdma_reclaim_mode_names[];


/**
 * When pages that no live registration for peers covers any more are taken from
 * them. Deregistration with invalidation does it at once in any case.
 */
typedef enum nprdma_revoke_mode {
    NPRDMA_REVOKE_NEVER,  /* When the kernel takes them, or the region goes */
    NPRDMA_REVOKE_LAZY,   /* Within two ticks, by a thread */
    NPRDMA_REVOKE_STRICT, /* Before the registration has ended */
    NPRDMA_REVOKE_LAST
} nprdma_revoke_mode_t;


/** Names of the modes, with a NULL at the end. */
extern const char *nprdma_revoke_mode_names[];


/* What makes regions and pages: see nprdma_backend.h */
struct nprdma_backend;


typedef struct nprdma_monitor_params {
    /* Who owns the state of the pages: nprdma_backend_xx */
    const struct nprdma_backend *backend;

    /* Bytes by which regions are aligned: a power of two, at least 2 MiB */
    size_t                       region_size;

    /* Bytes of state that regions without a live registration may hold; the
     * least recently used one goes first */
    size_t                       max_metadata;

    /* Nonzero: memory that the process maps gets its region ahead of use */
    int                          prereg;

    /* Nonzero: learn from a userfaultfd too of what bypasses libc; a warning if
     * there is none */
    int                          uffd;

    nprdma_revoke_mode_t         revoke;
    double                       revoke_tick;  /* Seconds; 0: there is no
                                                * thread, and a test calls
                                                * nprdma_monitor_tick() */

    nprdma_reclaim_mode_t        reclaim;
    double                       reclaim_rate; /* Pages per second */
    uint64_t                     seed;         /* Of the reclaimer; 0: random */

    /* Wait until the NIC has finished what it was doing when this was called.
     * Called in memory hooks: must not allocate, log, or take a lock under
     * which anybody does. NULL: the back end does it. */
    void (*drain)(void *arg);

    /* Make what belongs to a new region (memory regions of the NIC), leave it
     * in region->priv. Called in nprdma_monitor_register(), or on the thread
     * that registers ahead, with no lock held that a memory hook takes.
     * UCS_ERR_EXCEEDS_LIMIT: called again if an idle region could be dropped;
     * with any other error there is none. May close region->fd and set it to -1
     * when it succeeds: the monitor does not need it. */
    ucs_status_t (*attach)(void *arg, nprdma_region_t *region);

    /* Undo attach: no range of the region is live, all states are absent.
     * Called in nprdma_monitor_register() and nprdma_monitor_destroy(), or on
     * the thread that registers ahead. */
    void (*detach)(void *arg, nprdma_region_t *region);

    void                        *arg; /* Passed to the three functions above */
} nprdma_monitor_params_t;


typedef struct nprdma_monitor_stats {
    uint64_t regions;       /* Regions there are */
    uint64_t idle_regions;  /* Of these without a live registration */
    uint64_t state_bytes;   /* State arrays of all regions */
    uint64_t ranges;        /* Live registrations */
    uint64_t created;       /* Regions ever made */
    uint64_t preregistered; /* Of these ahead of use */
    uint64_t evicted;       /* Regions dropped, being idle */
    uint64_t populated;     /* Pages made accessible to the NIC */
    uint64_t populate_ns;   /* Time that took in all, lookups of states included
                             * when there was anything to do */
    uint64_t faults;        /* Calls that had the kernel bring pages in */
    uint64_t invalidated;   /* Pages taken away from the NIC */
    uint64_t revoked;       /* Of these since no registration covered them */
    uint64_t reclaimed;     /* Of these by the reclaimer */
    uint64_t events;        /* Events that took something away */
    uint64_t drains;        /* Waits for the NIC */
    uint64_t efaults;       /* Pages that the NIC found gone without an event */
    uint64_t kernel_events; /* Events that the kernel module was told of */
    uint64_t kernel_invalidated; /* Pages it took away from the NIC thereby */
} nprdma_monitor_stats_t;


/**
 * Create a monitor.
 *
 * @param [in]  params     Copied.
 * @param [out] monitor_p  To be given to @ref nprdma_monitor_destroy.
 *
 * @return UCS_OK; UCS_ERR_INVALID_PARAM after one line that names the
 *         parameter; UCS_ERR_UNSUPPORTED if the memory events cannot be had
 *         (switched off by UCX_MEM_EVENTS=n, or hooks refused): without them
 *         nothing is safe; UCS_ERR_NO_MEMORY.
 */
ucs_status_t nprdma_monitor_create(const nprdma_monitor_params_t *params,
                                   nprdma_monitor_t **monitor_p);


/**
 * Destroy a monitor and its regions. In a child made by fork() this only
 * forgets them: they are the parent's.
 *
 * @param [in] monitor  Monitor that no thread uses. Live registrations end,
 *                      after a warning that tells how many there were: their
 *                      memory is not accessed, and they must not be passed to
 *                      @ref nprdma_monitor_unregister any more.
 */
void nprdma_monitor_destroy(nprdma_monitor_t *monitor);


/**
 * Register a range: find a region that covers it or create one. Touches and
 * populates nothing; the memory need not even be mapped yet. Where there is
 * one, this makes no system call, and takes no lock but the region's own to
 * enter the range.
 *
 * Not for memory hooks.
 *
 * @param [in]  monitor  Monitor.
 * @param [in]  address  First byte.
 * @param [in]  length   Bytes, at least one.
 * @param [out] range    Memory of the caller, which stays in place until
 *                       @ref nprdma_monitor_unregister. Ranges may overlap.
 *
 * @return UCS_OK; UCS_ERR_INVALID_PARAM if the range is empty, wraps around, or
 *         ends in the last page of the address space;
 *         UCS_ERR_UNSUPPORTED in a forked child; UCS_ERR_NO_MEMORY,
 *         UCS_ERR_EXCEEDS_LIMIT (too many regions, or regions have a quarter of
 *         the file descriptors, or there are none), UCS_ERR_OUT_OF_RANGE (files
 *         may not be so large) or what attach returned if there is no region
 *         and none could be made.
 */
ucs_status_t nprdma_monitor_register(nprdma_monitor_t *monitor,
                                     uintptr_t address, size_t length,
                                     nprdma_range_t *range);


/**
 * As @ref nprdma_monitor_register, for the buffer of an operation of this
 * process. The region is local: the NIC reaches the pages for its own side of
 * work requests, and no key of a peer leads to them.
 */
ucs_status_t nprdma_monitor_register_local(nprdma_monitor_t *monitor,
                                           uintptr_t address, size_t length,
                                           nprdma_range_t *range);


/**
 * End a registration. How long the pages stay accessible to the NIC, ready for
 * the next registration, is a parameter of the monitor; not at all, if they are
 * invalidated here, or were to be by one that ended earlier. Never allocates,
 * so it may be called from the memory hooks of a registration cache.
 *
 * @param [in] monitor     Monitor.
 * @param [in] range       Live range that nobody populates any more.
 * @param [in] invalidate  Nonzero: as NPRDMA_REVOKE_STRICT has it always, take
 *                         every page that no other live range for peers covers
 *                         away from them, in all regions; when this
 *                         returns the NIC does not touch them any more, and
 *                         will not before they are registered again. Pages
 *                         that another one covers follow when no range does.
 */
void nprdma_monitor_unregister(nprdma_monitor_t *monitor, nprdma_range_t *range,
                               int invalidate);


/**
 * Make pages accessible to the NIC, bringing them in where the process does not
 * have them. What is accessible already costs no system call.
 *
 * Never blocks on anything but the kernel's page faults. May race with every
 * other call and every event: a page that goes away meanwhile is not marked.
 *
 * @param [in] monitor  Monitor.
 * @param [in] range    Live range.
 * @param [in] address  First byte, inside of @a range.
 * @param [in] length   Bytes; whole pages are populated, also where they stick
 *                      out of the range.
 * @param [in] flags    NPRDMA_POPULATE_xx. A page that is populated for writing
 *                      can be read as well. With NPRDMA_POPULATE_RESIDENT pages
 *                      that are not present are left alone, and so are those
 *                      that would have to be copied in order to be written.
 *
 * @return UCS_OK: every page had the bit (with NPRDMA_POPULATE_RESIDENT: as
 *         many as could be). UCS_ERR_INVALID_ADDR: a page is not mapped,
 *         protected, or behind the end of its file, or was unmapped after it
 *         was registered; those before it are populated. UCS_ERR_BUSY: a page
 *         is being unmapped right now, or taken again and again; the caller
 *         drops what the unmapping thread may wait for (nprdma_reg_get())
 *         and tries again.
 *         UCS_ERR_NO_MEMORY: the kernel module has none, or its limits.
 *         UCS_ERR_OUT_OF_RANGE: not inside of @a range. UCS_ERR_UNSUPPORTED:
 *         forked child.
 */
ucs_status_t
nprdma_monitor_populate(nprdma_monitor_t *monitor, nprdma_range_t *range,
                        uintptr_t address, size_t length, unsigned flags);


/**
 * One tick of NPRDMA_REVOKE_LAZY: what its thread does, for tests that drive a
 * monitor without one (nprdma_monitor_params_t::revoke_tick is 0).
 *
 * @return Nonzero if something is left to be done by the next ticks.
 */
int nprdma_monitor_tick(nprdma_monitor_t *monitor);


/**
 * @param [in]  monitor  Monitor.
 * @param [out] stats    Filled; the numbers need not be of one moment.
 */
void nprdma_monitor_query(nprdma_monitor_t *monitor,
                          nprdma_monitor_stats_t *stats);

END_C_DECLS

#endif
