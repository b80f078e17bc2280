/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_PAGE_TABLE_H_
#define NPRDMA_TEST_PAGE_TABLE_H_

#include <stddef.h>
#include <stdint.h>

/*
 * The emulated IOMMU's table of a region of this process, found by an address
 * that it covers. With it, tests evict pages and hold the NIC and the monitor
 * without involving the transport. The file is C because the table uses C's
 * atomics.
 */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct page_table page_table_t;

enum {
    PAGE_R = 1,
    PAGE_W = 2
};

/* As npemu_gate_point_t */
enum {
    GATE_CHUNK_BEGIN,
    GATE_CHUNK_CHECKED,
    GATE_CHUNK_END,
    GATE_INVALIDATE_START,
    GATE_INVALIDATE_QUIESCED,
    GATE_MAP
};

/* As npemu_fault_t, with an address */
typedef struct page_fault {
    const void *address;    /* Any address in the page */
    uint32_t   views;
    uint32_t   access;
    uint32_t   tear;
    uint32_t   restore;
    uint32_t   from_start;  /* tear counts from the beginning of the access */
} page_fault_t;

typedef struct page_table_stats {
    uint64_t absent_reads;
    uint64_t absent_writes;
    uint64_t efault;
} page_table_stats_t;

/** @return The table of a page of this process, or NULL. */
page_table_t *page_table_find(const void *address);
void page_table_close(page_table_t *table);

/** @return The signature that absent pages show. */
uint64_t page_table_signature(page_table_t *table);

/** @return The state of the page at an address. */
uint32_t page_table_word(page_table_t *table, const void *address);

/** Take a page from the NIC as the monitor does, without a drain. */
void page_table_evict(page_table_t *table, const void *address, uint32_t bits);

/** @return Index of the plan's entry, or -1. */
int page_table_fault(page_table_t *table, const page_fault_t *fault);
int page_table_fault_hits(page_table_t *table, int index);
void page_table_fault_clear(page_table_t *table);

/** Arm a gate. A NULL address means any page. */
void page_table_gate_arm(page_table_t *table, int point, const void *address);
/** @return 0 if a thread is held at the gate within the time. */
int page_table_gate_wait(page_table_t *table, int point, int timeout_ms);
void page_table_gate_release(page_table_t *table, int point);

void page_table_query(page_table_t *table, page_table_stats_t *stats);

#ifdef __cplusplus
}
#endif

#endif
