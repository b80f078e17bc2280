/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Execution of fault plans by the DMA engine: plans that tests put into a table
 * (npemu_iommu.h), and a random one for all accesses of this process.
 */

#ifndef NPEMU_FAULT_H
#define NPEMU_FAULT_H

#include "iommu/npemu_table.h"

/* What the plan does to one access of one page. */
typedef struct {
    uint64_t            page;
    uint32_t            start;   /* first byte of it that is accessed */
    uint32_t            view;
    int                 evict;   /* nonzero: evict it */
    uint32_t            tear;    /* at this byte of it */
    uint32_t            restore;
    npemu_fault_entry_t *entry;  /* NULL: the random plan evicts it */
} npemu_fault_ticket_t;

/** Begin an access of a page: count it, and look up the plan. */
void npemu_fault_begin(npemu_table_t *table, uint64_t offset, uint32_t view,
                       npemu_fault_ticket_t *ticket);

/** The access has reached `tear`: evict the page. */
void npemu_fault_evict(npemu_table_t *table, npemu_fault_ticket_t *ticket);

/** End the access: evict and restore pages whose time has come. */
void npemu_fault_end(npemu_table_t *table, npemu_fault_ticket_t *ticket);

/* --- random plan -----------------------------------------------------------*/

/* Nonzero while there is one in this process. */
extern _Atomic int npemu_random_active;

/* NPEMU_DMA_GRANULE: bytes, 0 for whole chunks. */
extern _Atomic uint32_t npemu_dma_granule;

/** Decide whether the access evicts the page. `ticket`: `evict` and `tear` are
 * set if so. */
void npemu_random_decide(npemu_fault_ticket_t *ticket);

/** Start another random plan: npemu_fault_random(). Returns 0 or EINVAL. */
int npemu_random_configure(double rate, uint64_t seed);

/** Read NPEMU_DMA_GRANULE, and end any plan. */
void npemu_random_init(void);

#endif
