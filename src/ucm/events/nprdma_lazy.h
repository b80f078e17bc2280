/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_LAZY_H_
#define NPRDMA_LAZY_H_

#include "nprdma_hook.h"

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
 * Lazy unmapping, after Gerofi et al. (doi 10.1145/2966884.2966888): a block
 * that the process unmaps is kept, inaccessible, and given to the next mapping
 * of its size, without page faults. This file has the tables and the policy. It
 * makes no system call itself.
 *
 * A *block* is what one mmap() has made, as long as it is whole and nothing has
 * been done to it that outlives its contents. A *slot* holds a block that is
 * kept. Both are claimed by compare-and-swap: all functions are for memory
 * hooks, and allocate nothing and take no lock. They may run in several threads
 * at once, and in a signal handler that has interrupted one of them.
 *
 * A list of blocks is searched as a whole, because every call that takes memory
 * asks for the blocks that it overlaps. That is one comparison for each block
 * that is mapped.
 */


/** The C library maps each larger block by itself: it may be a buffer */
#define NPRDMA_LAZY_MIN ((size_t)128 * 1024)

/** Bytes that are kept at most */
#define NPRDMA_LAZY_MAX ((size_t)1 << 40)

/** Blocks that are kept at most */
#define NPRDMA_LAZY_NUM_SLOTS 64

/** Blocks that are known at most; others are unmapped as ever */
#define NPRDMA_LAZY_NUM_BLOCKS 1024


/** What became of a block that one of the functions below worked on */
typedef enum nprdma_lazy_result {
    NPRDMA_LAZY_DONE,
    NPRDMA_LAZY_REFUSED, /* It is mapped as before */
    NPRDMA_LAZY_LOST     /* Its addresses have become something else */
} nprdma_lazy_result_t;


/**
 * What the table does to memory. Called in hooks. The slot of a block is
 * claimed meanwhile, so no two calls for one block overlap.
 */
typedef struct nprdma_lazy_ops {
    /**
     * Check that a block is as mmap() has made it, and make it inaccessible.
     *
     * @return NPRDMA_LAZY_DONE or NPRDMA_LAZY_REFUSED.
     */
    nprdma_lazy_result_t (*close)(void *arg, nprdma_span_t block);

    /**
     * Make a closed block accessible, with zeros in every byte.
     *
     * @return NPRDMA_LAZY_DONE; NPRDMA_LAZY_REFUSED if it is to be released;
     *         NPRDMA_LAZY_LOST if it must not be touched any more.
     */
    nprdma_lazy_result_t (*open)(void *arg, nprdma_span_t block);

    /**
     * Unmap a closed block.
     *
     * @return Any; as for @a open.
     */
    nprdma_lazy_result_t (*release)(void *arg, nprdma_span_t block);
} nprdma_lazy_ops_t;


/** The tables. All zeros: empty, and keeps nothing. */
typedef struct nprdma_lazy nprdma_lazy_t;


/** Counters, and what is kept now */
typedef struct nprdma_lazy_stats {
    uint64_t bytes;   /* Kept */
    uint64_t kept;    /* Blocks that were not unmapped */
    uint64_t reused;  /* Of these given to a new mapping */
    uint64_t dropped; /* Of these unmapped later */
    uint64_t tainted; /* Blocks that could not be kept, for what has been done
                       * to them */
} nprdma_lazy_stats_t;


/** @return Bytes of nprdma_lazy_t. */
size_t nprdma_lazy_size(void);


/**
 * Begin to keep blocks. No thread uses the table.
 *
 * @param [out] lazy   Table without kept blocks. Blocks that it knew are
 *                     forgotten, pauses end, and counters stay.
 * @param [in]  limit  Bytes of all kept blocks together. A block of more than
 *                     half of it is not kept.
 * @param [in]  ops    Functions, which stay valid.
 * @param [in]  arg    Their first argument.
 */
void nprdma_lazy_init(nprdma_lazy_t *lazy, size_t limit,
                      const nprdma_lazy_ops_t *ops, void *arg);


/**
 * Report what mmap() has made, if it is of the kind that may be kept. While the
 * table of blocks is full, and for mappings of a size that is never kept, this
 * does nothing but @ref nprdma_lazy_mapped.
 *
 * @param [in] span  Whole pages.
 */
void nprdma_lazy_made(nprdma_lazy_t *lazy, nprdma_span_t span);


/**
 * Report that addresses belong to a new mapping: what was known or kept there
 * is gone without an event. Nothing is released.
 */
void nprdma_lazy_mapped(nprdma_lazy_t *lazy, nprdma_span_t span);


/** Blocks that a span overlaps are not kept any more when they are unmapped. */
void nprdma_lazy_taint(nprdma_lazy_t *lazy, nprdma_span_t span);


/**
 * Release all kept blocks that a span overlaps, or that another thread is about
 * to release there: when this returns the pool has nothing in the span. Called
 * before a call that changes these addresses.
 */
void nprdma_lazy_forget(nprdma_lazy_t *lazy, nprdma_span_t span);


/**
 * A span is about to be unmapped: keep it if it is a block. Releases the blocks
 * that have been kept for longest if it does not fit otherwise.
 *
 * @param [in] span  Whole pages, which the NIC does not access any more.
 *
 * @return Nonzero if there is nothing left to be unmapped.
 */
int nprdma_lazy_keep(nprdma_lazy_t *lazy, nprdma_span_t span);


/**
 * Take the block of a length that was kept last, and open it.
 *
 * @param [in] length  Bytes, whole pages.
 *
 * @return Its address, or 0 if there is none.
 */
uintptr_t nprdma_lazy_reuse(nprdma_lazy_t *lazy, size_t length);


/** Release all kept blocks. @return Their number. */
unsigned nprdma_lazy_drop(nprdma_lazy_t *lazy);


/**
 * Release all kept blocks, and keep none until @ref nprdma_lazy_resume. When
 * this returns there is none. It waits for other threads.
 */
void nprdma_lazy_pause(nprdma_lazy_t *lazy);


/** Undo one @ref nprdma_lazy_pause. */
void nprdma_lazy_resume(nprdma_lazy_t *lazy);


/** @param [out] stats  Filled. They are not read at the same moment. */
void nprdma_lazy_query(nprdma_lazy_t *lazy, nprdma_lazy_stats_t *stats);

END_C_DECLS

#endif
