/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_REGIONS_H_
#define NPRDMA_REGIONS_H_

#include "nprdma_range.h"
#include "ucm/events/nprdma_hook.h"

#include <ucs/type/status.h>

#include <stdatomic.h>

BEGIN_C_DECLS

/*
 * Table of the regions of a monitor, sorted by address, and the monitor's data
 * of each region.
 *
 * Finding a region takes no lock. There are two copies of the table, and a
 * sequence number that selects the copy for readers. A writer changes the other
 * copy, advances the sequence number, and then changes the first copy. So a
 * reader never waits for a writer. It must not: a reader may be a memory hook
 * in a signal handler that has interrupted the writer. A reader that finds that
 * the sequence number has changed starts again.
 *
 * The memory of region objects is used for nothing else while the table lives.
 * So a pointer that is out of date can be dereferenced. The region is the right
 * one if a reference could be taken and the object then has the right range.
 */


/* For each chunk, the table knows if one of its pages was ever populated */
#define NPRDMA_CHUNK_SHIFT 21
#define NPRDMA_CHUNK_SIZE  ((size_t)1 << NPRDMA_CHUNK_SHIFT)
#define NPRDMA_CHUNK_PAGES (NPRDMA_CHUNK_SIZE >> NPRDMA_PAGE_SHIFT)

/* Limited by file descriptors: each region has one */
#define NPRDMA_REGIONS_MAX 16384

/* Values of refs: the region is being dropped; the object is free */
#define NPRDMA_REGION_DYING 0x80000000u
#define NPRDMA_REGION_FREE  UINT32_MAX


typedef struct nprdma_region_obj {
    nprdma_region_t          super;
    _Atomic uint32_t         refs;       /* Ranges, and threads that use it */
    _Atomic uint32_t         lock;       /* Leaf: num_ranges and ranges */
    uint32_t                 num_ranges;
    ucs_list_link_t          ranges;     /* Live registrations */
    /* A range of it was invalidated: its keys must not open memory that is
     * registered later */
    atomic_int               is_closed;
    _Atomic uint64_t         idle_since; /* Tick of the monitor's clock */
    void                    *backend_priv;
    size_t                   num_chunks;
    atomic_int               has_retired; /* One of its pages ever was */
    int                      is_marked;   /* Under the lock: see marks */

    /* In one block of memory */
    size_t                   info_size;
    /* Bit per page: unmapped since it was registered */
    _Atomic uint64_t        *retired;
    /* Bit per page: retired for ever. Its own bit, because pages are readmitted
     * without a lock. */
    _Atomic uint64_t        *revoked;
    /* Bit per page: to be revoked by the next tick. Changes under the lock. */
    _Atomic uint64_t        *pending;
    _Atomic uint8_t         *touched;     /* Chunks that may be populated */
    /* Per chunk, why the next tick examines it. Under the lock. */
    uint8_t                 *marks;

    struct nprdma_region_obj *next;       /* Free objects */
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
    uint32_t                num_used; /* Objects that were ever in use */
    struct nprdma_regions_memory *memory;
} nprdma_regions_t;


/* It may run in memory hooks */
typedef void (*nprdma_regions_func_t)(nprdma_region_obj_t *region, void *arg);


static inline nprdma_region_obj_t *nprdma_region_obj(nprdma_region_t *region)
{
    return (nprdma_region_obj_t*)region;
}


ucs_status_t nprdma_regions_init(nprdma_regions_t *table);

uint32_t nprdma_regions_count(const nprdma_regions_t *table);

/* All regions have been removed from the table */
void nprdma_regions_cleanup(nprdma_regions_t *table);


/* An object for a region that is not in the table yet, with address and length
 * set. NULL without memory, or if there are NPRDMA_REGIONS_MAX regions. */
nprdma_region_obj_t *
nprdma_regions_alloc(nprdma_regions_t *table, uintptr_t address, size_t length,
                     int is_local);

/* The object is not in the table, and no thread uses it */
void nprdma_regions_free(nprdma_regions_t *table, nprdma_region_obj_t *region);

/* Insert a complete region into the table, with one reference that the caller
 * owns. Calls of this and of nprdma_regions_drop() must be serialised. */
void nprdma_regions_insert(nprdma_regions_t *table,
                           nprdma_region_obj_t *region);


/* A region of a kind that covers [start, end) and is not closed, with a
 * reference; or NULL */
nprdma_region_obj_t *
nprdma_regions_get(nprdma_regions_t *table, uintptr_t start, uintptr_t end,
                   int is_local);

void nprdma_region_put(nprdma_region_obj_t *region);


/* Call a function for each region that overlaps a range, with a reference held.
 * Includes regions that are being dropped. If the table changes meanwhile, the
 * function may be called twice for a region. For memory hooks. */
void nprdma_regions_foreach(nprdma_regions_t *table, nprdma_span_t span,
                            nprdma_regions_func_t func, void *arg);


/* Select the region that has been idle for the longest time, of all or of
 * closed ones, and make sure that nprdma_regions_get() does not return it any
 * more. Only memory hooks may use it until nprdma_regions_drop(), which waits
 * for these. NULL if no region is idle. */
nprdma_region_obj_t *nprdma_regions_take_idle(nprdma_regions_t *table,
                                              int is_closed);

/* Remove the region of nprdma_regions_take_idle(), and wait until no memory
 * hook uses it */
void nprdma_regions_drop(nprdma_regions_t *table, nprdma_region_obj_t *region);


/* A leaf: no other lock is taken while it is held */
void nprdma_region_lock(nprdma_region_obj_t *region);
void nprdma_region_unlock(nprdma_region_obj_t *region);


/* Pages of a region, first and count, that overlap a span; count may be 0 */
typedef struct nprdma_pages {
    size_t first;
    size_t count;
} nprdma_pages_t;

nprdma_pages_t nprdma_region_pages(const nprdma_region_obj_t *region,
                                   nprdma_span_t span);


/* A bit per page. Bits of the pages [first, end) are set or cleared; next is
 * the first page whose bit has a value, or end. For memory hooks. */
void nprdma_bits_set(_Atomic uint64_t *bits, size_t first, size_t end);
void nprdma_bits_clear(_Atomic uint64_t *bits, size_t first, size_t end);
size_t nprdma_bits_next(const _Atomic uint64_t *bits, size_t first, size_t end,
                        int value);


/* Retire pages: they are not mapped any more. A new mapping at the same
 * addresses must not be taken for the registered memory, even if the monitor
 * did not see the call that mapped it. Readmit pages: they are mapped or
 * registered again. For memory hooks. Revoke pages of a closed region: as if
 * they were retired, for ever. */
void nprdma_region_retire(nprdma_region_obj_t *region, nprdma_pages_t pages);
void nprdma_region_readmit(nprdma_region_obj_t *region, nprdma_pages_t pages);
void nprdma_region_revoke(nprdma_region_obj_t *region, nprdma_pages_t pages);

/* Pages before the first one that is retired or revoked */
size_t nprdma_region_not_retired(const nprdma_region_obj_t *region,
                                 nprdma_pages_t pages);

END_C_DECLS

#endif
