/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_REGIONS_H_
#define NPRDMA_REGIONS_H_

#include "nprdma_range.h"
#include "ucm/events/nprdma_events.h"

#include <stdatomic.h>

BEGIN_C_DECLS

/**
 * Table of the regions of a monitor, sorted by address, and what the monitor
 * knows about each of them.
 *
 * Finding a region takes no lock: there are two copies of the table, and a
 * sequence that tells readers which of them to use. A writer changes the other
 * one, advances the sequence, and then changes the first one. So a reader never
 * waits for a writer: it may be a memory hook in a signal handler that has
 * interrupted the writer. A reader whose sequence has changed starts again.
 *
 * The memory of a region's object is never used for anything else than such
 * objects, so a pointer that was read a moment ago can be tried. It is good if
 * a reference could be taken and the object then tells the right range.
 */


/* The unit in which it is known whether a page may have been populated ever */
#define NPRDMA_CHUNK_SHIFT 21
#define NPRDMA_CHUNK_SIZE  ((size_t)1 << NPRDMA_CHUNK_SHIFT)
#define NPRDMA_CHUNK_PAGES (NPRDMA_CHUNK_SIZE >> NPRDMA_PAGE_SHIFT)

/* Each has a file descriptor, so there cannot be very many */
#define NPRDMA_REGIONS_MAX 16384

/* Values of refs: goes away; is an object that stands for no region */
#define NPRDMA_REGION_DYING 0x80000000u
#define NPRDMA_REGION_FREE  UINT32_MAX


typedef struct nprdma_region_obj {
    nprdma_region_t          super;
    _Atomic uint32_t         refs;       /* Ranges, and who looks at it */
    _Atomic uint32_t         lock;       /* Leaf: num_ranges and ranges */
    uint32_t                 num_ranges;
    ucs_list_link_t          ranges;     /* Live registrations */
    _Atomic uint64_t         idle_since; /* Tick of the monitor's clock */
    void                    *backend_priv;
    size_t                   num_chunks;
    _Atomic uint64_t         num_retired;

    /* Of the revoker, under the lock. Chunks [revoke_first, revoke_end) are to
     * be looked at. */
    size_t                   revoke_first;
    size_t                   revoke_end;
    size_t                   num_doomed;  /* Chunks with doomed pages */
    uint32_t                 revoke_tick; /* The last one */

    /* One block of memory: bits per page and, each, a number per chunk */
    size_t                   info_size;
    _Atomic uint64_t        *retired;    /* Bits: not mapped since registered */
    _Atomic uint16_t        *retired_in; /* How many of a chunk's are set */
    _Atomic uint8_t         *touched;    /* Nonzero: may have been populated */
    uint64_t                *doomed;     /* Bits: to be taken from peers */
    uint8_t                 *doomed_in;  /* Nonzero: pages of it are doomed */
    uint8_t                 *ended;      /* Nonzero: a range in it has ended */

    struct nprdma_region_obj *next;      /* Free objects */
} nprdma_region_obj_t;


typedef struct nprdma_regions_entry {
    _Atomic uintptr_t              start;
    _Atomic uintptr_t              end;
    _Atomic uintptr_t              reach; /* Highest end up to this entry */
    nprdma_region_obj_t *_Atomic   region;
} nprdma_regions_entry_t;


/* One of the two copies of the table */
typedef struct nprdma_regions_copy {
    _Atomic uint32_t        count;
    nprdma_regions_entry_t *entries; /* NPRDMA_REGIONS_MAX, mapped as needed */
} nprdma_regions_copy_t;


typedef struct nprdma_regions {
    _Atomic uint32_t        seq;     /* Readers use copy seq % 2 */
    nprdma_regions_copy_t   copies[2];
    nprdma_region_obj_t    *free;    /* Writers only, as the next one */
    struct nprdma_regions_slab *slabs;
} nprdma_regions_t;


/** What @ref nprdma_regions_foreach calls, in hooks too. */
typedef void (*nprdma_regions_func_t)(nprdma_region_obj_t *region, void *arg);


static inline nprdma_region_obj_t *nprdma_region_obj(nprdma_region_t *region)
{
    return (nprdma_region_obj_t*)region;
}


/** Prepare an empty table. @return UCS_OK or UCS_ERR_NO_MEMORY. */
ucs_status_t nprdma_regions_init(nprdma_regions_t *table);

/** @return Number of regions in the table. */
uint32_t nprdma_regions_count(const nprdma_regions_t *table);

/** Free the table, of which all regions have been removed. */
void nprdma_regions_cleanup(nprdma_regions_t *table);


/**
 * Make an object for a region that is not in the table yet: nobody can hold it.
 *
 * @return The object with address and length set, or NULL (no memory, or too
 *         many regions).
 */
nprdma_region_obj_t *
nprdma_regions_alloc(nprdma_regions_t *table, uintptr_t address, size_t length,
                     int is_local);

/** Free an object that is not in the table and that nobody looks at. */
void nprdma_regions_free(nprdma_regions_t *table, nprdma_region_obj_t *region);

/**
 * Insert a complete region into the table, with one reference that is the
 * caller's; and remove it. One caller at a time.
 */
void nprdma_regions_insert(nprdma_regions_t *table,
                           nprdma_region_obj_t *region);
void nprdma_regions_remove(nprdma_regions_t *table,
                           nprdma_region_obj_t *region);


/**
 * Find a region of a kind that covers [start, end), and keep it from going
 * away.
 *
 * @return The region, to be passed to @ref nprdma_region_put; or NULL.
 */
nprdma_region_obj_t *
nprdma_regions_get(nprdma_regions_t *table, uintptr_t start, uintptr_t end,
                   int is_local);

/** Drop a reference. */
void nprdma_region_put(nprdma_region_obj_t *region);


/**
 * Call a function for each region that overlaps a range, with a reference held:
 * also for those that are going away. May call it twice for one, when the table
 * changes meanwhile. For hooks.
 */
void nprdma_regions_foreach(nprdma_regions_t *table, nprdma_span_t span,
                            nprdma_regions_func_t func, void *arg);


/**
 * Take the region that has been idle for the longest time away from those who
 * look for one.
 *
 * @return A region nobody registers any more, and only hooks may look at until
 *         it has been removed (@ref nprdma_regions_drop waits for these); NULL
 *         if all are in use.
 */
nprdma_region_obj_t *nprdma_regions_take_idle(nprdma_regions_t *table);

/** Remove a region that was taken, and wait until no hook looks at it. */
void nprdma_regions_drop(nprdma_regions_t *table, nprdma_region_obj_t *region);


/** The lock of a region: a leaf, held for a moment, nothing else under it. */
void nprdma_region_lock(nprdma_region_obj_t *region);
void nprdma_region_unlock(nprdma_region_obj_t *region);


/* Pages of a region, first and count, that overlap a span; count may be 0 */
typedef struct nprdma_pages {
    size_t first;
    size_t count;
} nprdma_pages_t;

nprdma_pages_t nprdma_region_pages(const nprdma_region_obj_t *region,
                                   nprdma_span_t span);


/**
 * Retire pages: they are not mapped any more, and what gets mapped there
 * without us seeing it must not be taken for them. Readmit: they are mapped, or
 * have been registered again. For hooks.
 */
void nprdma_region_retire(nprdma_region_obj_t *region, nprdma_pages_t pages);
void nprdma_region_readmit(nprdma_region_obj_t *region, nprdma_pages_t pages);

/** @return How many of the pages, from the first one, are not retired. */
size_t nprdma_region_not_retired(const nprdma_region_obj_t *region,
                                 nprdma_pages_t pages);

END_C_DECLS

#endif
