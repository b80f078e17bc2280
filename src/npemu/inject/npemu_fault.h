/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Fault plans, as the DMA engine obeys them: those that tests put into a table
 * (npemu_iommu.h), and a random one for all that this process accesses.
 */

#ifndef NPEMU_FAULT_H
#define NPEMU_FAULT_H

#include "iommu/npemu_table.h"

/* What the plan has in mind for one access of one page. */
typedef struct {
    uint64_t            page;
    uint32_t            start;   /* first byte of it that is accessed */
    uint32_t            window;
    int                 evict;   /* it is to be evicted... */
    uint32_t            tear;    /* ...at this byte of it */
    uint32_t            restore;
    npemu_fault_entry_t *entry;  /* NULL: the random plan wants it */
} npemu_fault_ticket_t;

/**
 * Begin an access of a page: count it, and see what is planned.
 *
 * @param [in] offset  First byte, from the start of the region.
 * @param [in] window  Bit of the window.
 */
void npemu_fault_begin(npemu_table_t *table, uint64_t offset, uint32_t window,
                       npemu_fault_ticket_t *ticket);

/** The access has come to the tear: evict the page. */
void npemu_fault_evict(npemu_table_t *table, npemu_fault_ticket_t *ticket);

/** End the access: evict what is due, bring back what is due. */
void npemu_fault_end(npemu_table_t *table, npemu_fault_ticket_t *ticket);

/* --- random plan -----------------------------------------------------------*/

/* Nonzero while there is one in this process. */
extern _Atomic int npemu_random_active;

/* NPEMU_DMA_GRANULE: bytes, 0 is as much as possible. */
extern _Atomic uint32_t npemu_dma_granule;

/**
 * Shall the access evict the page?
 *
 * @param [out] ticket  `evict`, `tear` and `restore` are set if so.
 */
void npemu_random_decide(npemu_table_t *table, npemu_fault_ticket_t *ticket);

/**
 * Start another random plan: npemu_fault_random().
 *
 * @return 0; or EINVAL after one line that names what is wrong.
 */
int npemu_random_configure(const char *spec);

/** Read NPEMU_DMA_GRANULE and NPEMU_FAULT. */
void npemu_random_init(void);

#endif
