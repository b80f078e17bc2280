/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_BACKEND_H_
#define NPRDMA_BACKEND_H_

#include "ucm/regions/nprdma_range.h"

#include <ucs/type/status.h>

BEGIN_C_DECLS

/**
 * Who owns the states of the pages of a region and re-points the windows of the
 * NIC: the kernel, or the emulation of it. The monitor decides *when* a page is
 * populated or invalidated; the back end does it, in the order that
 * ARCHITECTURE 3 demands.
 */


/* Pages that are populated at once: one chunk */
#define NPRDMA_POPULATE_BATCH 512


/** What the back end sees of a populate in progress. */
typedef struct nprdma_populate {
    nprdma_region_t *region;
    nprdma_range_t  *range; /* Covers the pages */
    size_t           first; /* Page of the region */
    size_t           count; /* Pages, at most NPRDMA_POPULATE_BATCH */
    unsigned         flags; /* NPRDMA_POPULATE_xx */

    /* The states, and what remember returned, from before it was found that no
     * event blocks the pages */
    uint32_t         words[NPRDMA_POPULATE_BATCH];
    uint32_t         remembered;

    /* Filled by the back end */
    size_t           done;      /* Pages from the first one on that have had
                                 * their bits, or need none: as far as it got */
    uint64_t         populated; /* Pages whose state it set */
    uint64_t         faults;    /* Calls that had the kernel bring pages in */
} nprdma_populate_t;


typedef enum nprdma_gate {
    NPRDMA_GATE_INVALIDATE_START,   /* Nothing cleared yet */
    NPRDMA_GATE_INVALIDATE_QUIESCED /* Drained, before the pages may go */
} nprdma_gate_t;


typedef struct nprdma_backend_stats {
    uint64_t efaults;     /* Pages that the NIC found gone without an event */
    uint64_t events;      /* Of the kernel's memory management, told to it */
    uint64_t invalidated; /* Pages that lost a bit thereby */
} nprdma_backend_stats_t;


typedef struct nprdma_backend {
    const char *name;

    /**
     * Nonzero: the kernel invalidates pages before it takes them, whoever has
     * it do so, and does not end populating what it takes meanwhile. A NIC that
     * goes through the windows needs nothing of memory hooks then. One that
     * goes by addresses, and so has a drain, does: the kernel does not wait for
     * it.
     */
    int         notified;

    /**
     * Get ready for regions of a monitor; undone by close. Both may be NULL.
     *
     * @return UCS_OK, or why there can be no monitor, after one line.
     */
    ucs_status_t (*open)(void);
    void (*close)(void);

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
     * A range that may have been populated is not live any more. May run in
     * memory hooks. May be NULL.
     */
    void (*unregister)(void *priv, nprdma_range_t *range);

    /**
     * Clear bits of the states of pages. The caller drains before it lets go of
     * the pages. Runs in memory hooks: no allocation, no log, no lock.
     *
     * @param [in] bits   NPRDMA_PAGE_xx to clear.
     * @param [in] touch  Nonzero: count absent pages too as changed, because
     *                    somebody is about to populate some of them.
     *
     * @return 0 if nothing can be in flight on the pages; else the number of
     *         pages that lost a bit, at least 1.
     */
    size_t (*invalidate)(nprdma_region_t *region, void *priv, size_t first,
                         size_t count, uint32_t bits, int touch);

    /** @return What populate is to compare besides the words. May be NULL. */
    uint32_t (*remember)(void *priv);

    /**
     * Bring pages in, and only then set their states, each unless it was
     * invalidated since the words were read.
     *
     * @return UCS_OK; UCS_ERR_NO_RESOURCE: some words changed, look again from
     *         the first such page on; UCS_ERR_INVALID_ADDR: a page cannot be
     *         populated, but all before it are; UCS_ERR_TIMED_OUT: pages were
     *         taken away again and again; UCS_ERR_NO_MEMORY.
     */
    ucs_status_t (*populate)(void *priv, nprdma_populate_t *populate);

    /**
     * @return The first page of [first, end) that is present in the process, or
     *         end. Never faults. May be NULL.
     */
    size_t (*next_resident)(const nprdma_region_t *region, void *priv,
                            size_t first, size_t end);

    /**
     * Tell that an invalidation of pages begins, and that it has been drained:
     * where tests can hold it. May be NULL. Runs in memory hooks.
     */
    void (*gate)(nprdma_region_t *region, void *priv, nprdma_gate_t gate,
                 size_t first, size_t count);

    /** Count what happened to the region so far. */
    void (*query)(void *priv, nprdma_backend_stats_t *stats);

    /** Have the NIC ask the kernel what is present, NPRDMA_RECLAIM_SAMPLED. May
     * be NULL: it is told. */
    void (*sample)(nprdma_region_t *region, void *priv, int enable);
} nprdma_backend_t;


/** Emulation: the states are the table of the emulated RNIC's IOMMU. */
extern const nprdma_backend_t nprdma_backend_emulated;

/** The kernel module, for an emulated RNIC: a region's fd shows its states. */
extern const nprdma_backend_t nprdma_backend_kernel;


/* Why the kernel module cannot be used: room for the words */
#define NPRDMA_KERNEL_WHY_MAX 160

/**
 * Find out whether the kernel module can be used by this process.
 *
 * @param [out] why  If not, the reason in words; room for
 *                   NPRDMA_KERNEL_WHY_MAX bytes.
 *
 * @return Nonzero if it can.
 */
int nprdma_kernel_is_usable(char *why);


struct npemu_iommu;

/** @return The IOMMU table behind a region of the emulation, for tests. */
struct npemu_iommu *nprdma_emulated_iommu(const nprdma_region_t *region);

END_C_DECLS

#endif
