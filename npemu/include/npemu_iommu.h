/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The emulated IOMMU: tables of page states that the emulated NIC obeys on
 * every access; and gates and fault plans, by which tests make pages absent at
 * exact moments.
 *
 * A table belongs to one region of one process. Its descriptor takes the place
 * of the kernel module's dma-buf (ARCHITECTURE 5) as an argument of
 * npemu_reg_dmabuf_mr(): offsets [0, length) are the read view, [length, 2
 * length) the write view, and behind them are the page states, read-only. The
 * memory behind the views is that of the process that created the table.
 *
 * These functions may run in hooks on memory functions. So they neither call
 * malloc() nor map memory through the C library.
 */

#ifndef NPEMU_IOMMU_H
#define NPEMU_IOMMU_H

#include "nprdma_page_state.h"

#include <stddef.h>
#include <stdint.h>

struct ibv_context;

/* The header of the table's file; see npemu_table.h. */
typedef struct npemu_iommu_header npemu_iommu_header_t;

typedef struct npemu_iommu {
    int                  fd;        /* close-on-exec; the caller may close it
                                     * and set this to -1 */
    npemu_iommu_header_t *header;
    nprdma_page_state_t  *states;   /* one word per page, zero at first */
    size_t               num_pages;
} npemu_iommu_t;

typedef struct npemu_iommu_stats {
    uint64_t absent_reads;  /* pages of which an access read the signature */
    uint64_t absent_writes; /* pages to which a write was discarded */
    uint64_t efault;        /* pages marked absent: the kernel had none */
    uint64_t faults;        /* pages evicted by a fault plan */
    uint64_t restored;      /* pages brought back by one */
} npemu_iommu_stats_t;

/**
 * Create a table in which all pages are absent.
 *
 * @param [in]  address    First byte of the region, page aligned.
 * @param [in]  length     Bytes, a multiple of the page size, not 0.
 * @param [in]  signature  Value of each aligned 64-bit word that is read from
 *                         an absent page.
 * @param [out] iommu      The table, until @ref npemu_iommu_destroy.
 *
 * @return 0; EINVAL; EFBIG where files may not be so large (RLIMIT_FSIZE); or
 *         another errno value of memfd_create(), ftruncate() or mmap().
 */
int npemu_iommu_create(uint64_t address, size_t length, uint64_t signature,
                       npemu_iommu_t *iommu);

/**
 * Close and unmap a table. MRs on it that still exist, and accesses under way,
 * find all pages absent.
 */
void npemu_iommu_destroy(npemu_iommu_t *iommu);

/**
 * Make pages absent in views. The pages themselves may be taken only after
 * @ref npemu_iommu_drain has returned as well. May be called in hooks.
 *
 * Bits are set by nprdma_page_change(), with the word as it was before the page
 * was brought in: it fails if a NIC or another thread has changed the word
 * since.
 *
 * @param [in] first  First page.
 * @param [in] count  Pages.
 * @param [in] bits   Views, NPRDMA_PAGE_BITS for both.
 * @param [in] touch  Nonzero: also change the words of pages that had none of
 *                    the bits, so that page-ins that began before the call
 *                    fail. This is implied once a fault plan has evicted a page
 *                    of the table, since the plan may bring it back.
 *
 * @return 0 if no access can be under way that saw one of the bits set, so that
 *         no drain is due; else the number of pages that lost bits, at least 1.
 *         Once a NIC has marked a page of the table absent it is at least 1:
 *         another NIC may still be accessing such a page. Of two threads that
 *         invalidate the same page the second may get 0, and must drain all the
 *         same.
 */
size_t npemu_iommu_invalidate(npemu_iommu_t *iommu, size_t first, size_t count,
                              uint32_t bits, int touch);

/**
 * Wait until no access to this process' tables, by any process of the fabric,
 * is under way that may have seen states of before the call: as an IOTLB flush
 * with drain does. Does not wait for an access of the calling thread itself,
 * nor for dead processes. A process that makes no progress is logged. May be
 * called in hooks on memory functions: it allocates nothing and takes no lock.
 *
 * @param [in] context  An open device of this process. Returns at once if the
 *                      parent of this process has opened it.
 */
void npemu_iommu_drain(struct ibv_context *context);

/** Read the counters of a table. */
void npemu_iommu_query(const npemu_iommu_t *iommu,
                       npemu_iommu_stats_t *stats);

/* --- gates -----------------------------------------------------------------*/

/*
 * Points at which a test can hold a thread that works on a certain page. The
 * NIC passes the first three with each chunk of an access, the monitor the
 * others.
 */
typedef enum {
    NPEMU_GATE_CHUNK_BEGIN,        /* no state read: a drain passes */
    NPEMU_GATE_CHUNK_CHECKED,      /* states read, none moved: a drain waits */
    NPEMU_GATE_CHUNK_END,          /* moved: a drain passes */
    NPEMU_GATE_INVALIDATE_START,   /* nothing cleared yet */
    NPEMU_GATE_INVALIDATE_QUIESCED,/* drained, before the page may go */
    NPEMU_GATE_MAP,                /* brought in, before bits are set */
    NPEMU_GATE_LAST
} npemu_gate_point_t;

#define NPEMU_GATE_ANY_PAGE UINT64_MAX

/**
 * Hold the next thread that reaches a point with a page, until it is released.
 * There is one gate per table and point; arming it again releases the thread
 * that it holds.
 *
 * @param [in] header  The table.
 * @param [in] point   Where.
 * @param [in] page    Page index, or NPEMU_GATE_ANY_PAGE.
 */
void npemu_gate_arm(npemu_iommu_header_t *header, npemu_gate_point_t point,
                    uint64_t page);

/**
 * Wait until a thread is held.
 *
 * @param [in] timeout_ms  Milliseconds, negative: for ever.
 *
 * @return 0, or ETIMEDOUT.
 */
int npemu_gate_wait(npemu_iommu_header_t *header, npemu_gate_point_t point,
                    int timeout_ms);

/** Disarm a gate, and release the thread that it holds. */
void npemu_gate_release(npemu_iommu_header_t *header,
                        npemu_gate_point_t point);

/**
 * Pass a point; the monitor calls this. Costs one load unless a gate is armed.
 * A thread that is held continues if the process that armed the gate has
 * died.
 *
 * @param [in] first  First page that is worked on.
 * @param [in] count  Pages.
 */
void npemu_gate_pass(npemu_iommu_header_t *header, npemu_gate_point_t point,
                     uint64_t first, uint64_t count);

/* --- fault plan ------------------------------------------------------------*/

#define NPEMU_FAULT_MAX 64 /* entries per table */

/*
 * "On the nth access to the page, evict it." An access is all that one work
 * request does in one page through one view, whatever the NIC's granule is.
 * It counts if the page is present. The plan changes the state only: the page
 * itself stays, so that no data is lost.
 */
typedef struct npemu_fault {
    uint64_t page;    /* index */
    uint32_t views; /* which accesses count: NPRDMA_PAGE_R, _W or both */
    uint32_t access;  /* the nth of these evicts it, from 1 */
    uint32_t tear;    /* bytes of the page, from its start, that are present
                       * for this access; NPRDMA_PAGE_SIZE: it is evicted
                       * afterwards */
    uint32_t restore; /* the page becomes present again at the end of the kth
                       * access, counted from the one that evicts it; 0: it
                       * does not */
    uint32_t from_start; /* nonzero: `tear` counts from the first byte that the
                       * access touches in the page, as packets do, and the end
                       * of the page is the limit */
} npemu_fault_t;

/**
 * Add an entry to the plan of a table. It counts accesses from now on and
 * evicts once.
 *
 * @return Index of the entry; -1 if there are too many, or it is invalid (page
 *         outside of the table, no view, access 0, tear > NPRDMA_PAGE_SIZE).
 */
int npemu_fault_add(npemu_iommu_header_t *header, const npemu_fault_t *fault);

/** Drop all entries. Pages that they evicted stay absent. */
void npemu_fault_clear(npemu_iommu_header_t *header);

/** 1 if the entry has evicted its page, else 0. */
int npemu_fault_hits(npemu_iommu_header_t *header, int index);

/**
 * Evict pages at random on accesses by this process, to its own pages and to
 * those of others. Call it while no request is being executed.
 *
 * @param [in] context  An open device.
 * @param [in] rate     Probability per access of a page, 0 to 1; 0: off.
 * @param [in] seed     Equal seeds evict on the same accesses.
 *
 * @return 0; EINVAL for any other rate; EPERM in a forked child.
 */
int npemu_fault_random(struct ibv_context *context, double rate, uint64_t seed);

#endif
