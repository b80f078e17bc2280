/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_BACKEND_H_
#define NPRDMA_BACKEND_H_

#include "ucm/regions/nprdma_range.h"

#include <ucs/type/status.h>

BEGIN_C_DECLS

/* A back end owns the states of the pages of a region, and re-points the
 * views of the NIC. It is the kernel module or its emulation. The monitor
 * decides *when* a page is populated or invalidated; the back end does it, in
 * the order of ARCHITECTURE 3. */


/* Most pages of one call of populate: one chunk */
#define NPRDMA_POPULATE_BATCH 512


/* Bytes of a reason in words, terminating zero included */
#define NPRDMA_BACKEND_WHY_MAX 320


/* Arguments and results of populate */
typedef struct nprdma_populate {
    nprdma_region_t *region;
    nprdma_range_t  *range; /* Covers the pages */
    size_t           first; /* Page of the region */
    size_t           count; /* Pages, at most NPRDMA_POPULATE_BATCH */
    unsigned         flags; /* NPRDMA_POPULATE_xx */

    /* The states, and the result of get_revocations, from before the monitor
     * checked that no event blocks the pages */
    uint32_t         words[NPRDMA_POPULATE_BATCH];
    uint32_t         revocations;

    /* Filled by the back end */
    /* Pages, from the first one, that had their bits at some time or were
     * skipped */
    size_t           done;
    uint64_t         populated; /* Pages whose state it set */
    uint64_t         pageins;   /* System calls that brought pages in */
} nprdma_populate_t;


/* Steps of an invalidation at which tests can suspend it */
typedef enum nprdma_invalidate_step {
    NPRDMA_INVALIDATE_START,   /* No state is cleared yet */
    NPRDMA_INVALIDATE_QUIESCED /* Drained; the pages are still mapped */
} nprdma_invalidate_step_t;


typedef struct nprdma_backend_stats {
    uint64_t events;      /* Notifications of the kernel's memory management */
    uint64_t invalidated; /* Pages that lost a bit for these */
} nprdma_backend_stats_t;


typedef struct nprdma_backend {
    const char *name;

    /* Nonzero: the kernel invalidates pages before it takes them, whatever the
     * cause, and pages that it takes during a populate do not get their bits.
     * So no memory hooks are needed for a NIC that accesses memory through the
     * views. They are for one that accesses virtual addresses, which therefore
     * has a drain: the kernel does not wait for it. */
    int         notified;

    /* Something of a region holds a file descriptor until it ends */
    int         has_descriptors;

    /* Prepare for the regions of a monitor on a device, as in
     * nprdma_monitor_params_t; undone by close. Both may be NULL. `why` has
     * NPRDMA_BACKEND_WHY_MAX bytes for the reason of UCS_ERR_NO_DEVICE: no
     * monitor is possible. Logs nothing, because the caller may have another
     * back end. */
    ucs_status_t (*open)(const char *device, char *why);
    void (*close)(void);

    /* Create the file descriptor and the states, all absent, of a region, whose
     * address and length are set; fd, signature and states are filled. *priv_p
     * is passed to other functions. UCS_ERR_EXCEEDS_LIMIT: descriptors, or
     * limits of the kernel module. Errors are logged. */
    ucs_status_t (*region_create)(nprdma_region_t *region, void **priv_p);

    /* The states are not used any more */
    void (*region_destroy)(nprdma_region_t *region, void *priv);

    /* A range begins: what is mapped there now is what it means, so pages that
     * the back end has retired are readmitted. For regions that have no hooks.
     * May be NULL. */
    void (*readmit)(void *priv, nprdma_range_t *range, size_t first,
                    size_t count);

    /* A range has ended; it may have been populated. May run in memory hooks.
     * May be NULL. */
    void (*unregister)(void *priv, nprdma_range_t *range);

    /* Clear bits NPRDMA_PAGE_xx of the states of pages. The caller waits for
     * the NIC before the pages may be taken. Runs in memory hooks: no
     * allocation, no log, no lock. `touch`: advance the count of absent pages
     * too, because another thread is about to populate some of them. Returns
     * the number of pages that lost a bit; at least 1 if the caller has to wait
     * for the NIC. */
    size_t (*invalidate)(nprdma_region_t *region, void *priv, size_t first,
                         size_t count, uint32_t bits, int touch);

    /* A number that populate compares, too. May be NULL. */
    uint32_t (*get_revocations)(void *priv);

    /* Bring pages in, and then set the states of those pages that were not
     * invalidated since the words were read. UCS_ERR_NO_RESOURCE: some words
     * have changed, try again from the first such page; UCS_ERR_INVALID_ADDR: a
     * page cannot be populated, but all before it are; UCS_ERR_TIMED_OUT: pages
     * were taken away repeatedly. */
    ucs_status_t (*populate)(void *priv, nprdma_populate_t *populate);

    /* Report that an invalidation begins, and that it has been drained. Tests
     * can suspend it there. May be NULL. Runs in memory hooks. */
    void (*gate)(nprdma_region_t *region, void *priv,
                 nprdma_invalidate_step_t step, size_t first, size_t count);

    /* May be NULL: nothing is counted */
    void (*query)(void *priv, nprdma_backend_stats_t *stats);
} nprdma_backend_t;


/* The states are the table of the emulated NIC's IOMMU */
extern const nprdma_backend_t nprdma_backend_emulated;

/* Kernel module, with an emulated NIC: the fd of a region maps its states */
extern const nprdma_backend_t nprdma_backend_kernel;

/* Kernel module, with a device whose views it re-points: the fd of a region
 * is a dma-buf. Invalidating flushes the IOMMU, which drains the device. */
extern const nprdma_backend_t nprdma_backend_device;


struct npemu_iommu;

/* The IOMMU table behind a region of the emulation, for tests */
struct npemu_iommu *nprdma_emulated_iommu(const nprdma_region_t *region);

END_C_DECLS

#endif
