/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_BACKEND_H_
#define NPRDMA_BACKEND_H_

#include "nprdma_monitor.h"

BEGIN_C_DECLS

/**
 * Who owns the states of the pages of a region and re-points the windows of the
 * NIC: the kernel, or the emulation of it. The monitor decides *when* a page is
 * populated or invalidated; the back end does it, in the order that
 * ARCHITECTURE 3 demands.
 */


/** What the back end sees of a populate in progress. */
typedef struct nprdma_populate {
    nprdma_region_t *region;
    size_t           first; /* Page of the region */
    size_t           count; /* Pages, at most NPRDMA_POPULATE_BATCH */
    unsigned         flags; /* NPRDMA_POPULATE_xx */

    /* Filled by the back end */
    uint64_t         populated; /* Pages whose state it set */
    uint64_t         faults;    /* Calls that had the kernel bring pages in */
} nprdma_populate_t;


/* Pages that are populated at once */
#define NPRDMA_POPULATE_BATCH 512


typedef struct nprdma_backend {
    const char *name;

    /**
     * Make the file descriptor and the states, all absent, of a region.
     *
     * @param [inout] region  address and length are set; fd, signature and
     *                        states are filled.
     * @param [out]   priv_p  Of the back end, passed to the other functions.
     *
     * @return UCS_OK, UCS_ERR_NO_MEMORY, UCS_ERR_EXCEEDS_LIMIT (descriptors) or
     *         UCS_ERR_IO_ERROR, after one line.
     */
    ucs_status_t (*region_create)(nprdma_region_t *region, void **priv_p);

    /** Free what region_create made. Nobody looks at the states any more. */
    void (*region_destroy)(nprdma_region_t *region, void *priv);

    /**
     * Clear bits of the states of pages. The caller drains before it lets go of
     * the pages. Runs in memory hooks: no allocation, no log, no lock.
     *
     * @param [in] bits   NPRDMA_PAGE_xx to clear.
     * @param [in] touch  Nonzero: count absent pages too as changed, because
     *                    somebody is about to populate some of them.
     *
     * @return Number of pages that lost a bit.
     */
    size_t (*invalidate)(nprdma_region_t *region, void *priv, size_t first,
                         size_t count, uint32_t bits, int touch);

    /**
     * Bring pages in and set their states, unless their words changed since
     * this was called.
     *
     * @return UCS_OK; UCS_ERR_NO_RESOURCE: some words changed, look again;
     *         UCS_ERR_INVALID_ADDR: a page cannot be populated, those before it
     *         are (or are UCS_ERR_NO_RESOURCE cases, found at the next try).
     */
    ucs_status_t (*populate)(void *priv, nprdma_populate_t *populate);

    /** Point of a test in an invalidation, see the gates of the emulated RNIC. */
    void (*gate)(nprdma_region_t *region, void *priv, int point, size_t first,
                 size_t count);

    /** @return Pages of the region that the NIC found gone without an event. */
    uint64_t (*efaults)(const nprdma_region_t *region, void *priv);

    /** Have the NIC ask the kernel what is present, NPRDMA_RECLAIM_SAMPLED. */
    void (*sample)(nprdma_region_t *region, void *priv, int enable);
} nprdma_backend_t;


/** Emulation: the states are the table of the emulated RNIC's IOMMU. */
extern const nprdma_backend_t nprdma_backend_emulated;


struct npemu_iommu;

/** @return The IOMMU table behind a region of the emulation, for tests. */
struct npemu_iommu *nprdma_emulated_iommu(const nprdma_region_t *region);

END_C_DECLS

#endif
