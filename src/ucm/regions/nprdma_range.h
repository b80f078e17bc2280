/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_RANGE_H_
#define NPRDMA_RANGE_H_

#include <nprdma_page_state.h>

#include <ucs/datastruct/list.h>
#include <ucs/sys/compiler_def.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/* Regions and ranges, as the monitor shows them to its users and to its back
 * ends. nprdma_monitor.h has the words. */


/* A region. The monitor sets all fields but `priv`; users only read them. */
typedef struct nprdma_region {
    uintptr_t                  address;   /* Of the first byte, page aligned */
    size_t                     length;    /* Bytes, whole pages */
    /* Offsets: [0, length) read view, [length, 2 * length) write view, then the
     * states */
    int                        fd;
    /* Each 64-bit word of an absent page; one per process */
    uint64_t                   signature;
    const nprdma_page_state_t *states;    /* One word per page */
    /* For operations of this process: no peer gets a key of it */
    int                        is_local;
    /* No memory hook retires its pages: the back end does */
    int                        has_no_hooks;
    void                      *priv;      /* Set by the user in attach */
} nprdma_region_t;


/* A live registration, embedded in an object of the caller. The monitor sets
 * all fields; users may read `region`, `address` and `length`. */
typedef struct nprdma_range {
    ucs_list_link_t  list;
    nprdma_region_t *region;  /* Covers the whole of the range */
    uintptr_t        address; /* As registered, not rounded */
    size_t           length;
    uint32_t         backend; /* Used by the back end; 0 at first */
} nprdma_range_t;


/* How pages are populated. */
enum {
    NPRDMA_POPULATE_WRITE    = 1 << 0, /* For reading and writing by the NIC */
    NPRDMA_POPULATE_RESIDENT = 1 << 1  /* Only present pages: no page faults */
};


/* Pages that `length` bytes, at least one, lie in */
static inline size_t nprdma_region_num_pages(uintptr_t address, size_t length)
{
    return ((address + length - 1) >> NPRDMA_PAGE_SHIFT) -
           (address >> NPRDMA_PAGE_SHIFT) + 1;
}


static inline size_t
nprdma_region_page_index(const nprdma_region_t *region, uintptr_t address)
{
    return (address - region->address) >> NPRDMA_PAGE_SHIFT;
}


/* Copy the states of the local pages of an operation before it is posted
 * (ARCHITECTURE 3, local side). Zero unless every page has the bits
 * NPRDMA_PAGE_xx: then the caller populates the pages and calls this again. */
static inline int
nprdma_region_snapshot(const nprdma_region_t *region, uintptr_t address,
                       size_t length, uint32_t bits, uint32_t *copy)
{
    size_t index = nprdma_region_page_index(region, address);
    size_t count = nprdma_region_num_pages(address, length);

    return (nprdma_page_load_all(&region->states[index], count, copy) & bits) ==
           bits;
}


/* After the completion was polled, check that no page was taken away since
 * nprdma_region_snapshot() of the same bytes. Exact, because the state of a
 * page changes before the page is taken. */
static inline int
nprdma_region_unchanged(const nprdma_region_t *region, uintptr_t address,
                        size_t length, const uint32_t *copy)
{
    size_t index = nprdma_region_page_index(region, address);
    size_t count = nprdma_region_num_pages(address, length);

    return nprdma_page_equal_all(&region->states[index], count, copy);
}

END_C_DECLS

#endif
