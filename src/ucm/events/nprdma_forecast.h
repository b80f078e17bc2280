/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_FORECAST_H_
#define NPRDMA_FORECAST_H_

#include "nprdma_hook.h"

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
 * Which new memory an operation will fill. A program that maps a buffer for
 * each message, receives into it and unmaps it has all page faults of the
 * buffer while the peer waits. The transport learns of the buffer only when the
 * message has come. But the length of a mapping tells: if the last blocks of
 * this length were all filled by operations, so will be the next one. Its pages
 * can come in while the process has nothing else to do. This file has the table
 * and the policy, and makes no system call that changes memory.
 *
 * A *block* is what one mmap() has made, as long as it is whole. A block is
 * *filled* if an operation of this process was to write to nearly all of it. A
 * new block is *expected* to be filled if
 *  - the last NPRDMA_FORECAST_STREAK blocks of its length that were unmapped
 *    had been filled, and
 *  - it, with other expected blocks and filled ones that are mapped now, is not
 *    more memory than the filled blocks that were mapped at some time. So a
 *    wrong forecast never takes more memory than the program has used before.
 * Memory that was made accessible to peers is not judged: it is a buffer to
 * send from. If it was expected, another block may be in its place.
 *
 * Nothing here allocates or takes a lock, and all may run in several threads at
 * once. Functions that report something are for memory hooks, too, and may run
 * in a signal handler that has interrupted one of the others.
 */


/** The C library maps each larger block by itself: it may be a buffer */
#define NPRDMA_FORECAST_MIN ((size_t)128 * 1024)

/** Blocks in a row that were filled */
#define NPRDMA_FORECAST_STREAK 4

/** Bytes that are brought in at once: some 20 us; a huge page is one piece */
#define NPRDMA_FORECAST_PIECE ((size_t)64 * 1024)

/** Blocks that are known at most; nothing is expected of others */
#define NPRDMA_FORECAST_NUM_BLOCKS 64

/** Lengths that are remembered at most; a new one replaces another */
#define NPRDMA_FORECAST_NUM_LENGTHS 8


/** The table. All zeros: empty. */
typedef struct nprdma_forecast nprdma_forecast_t;


/** Part of a block that is to be brought in */
typedef struct nprdma_forecast_piece {
    nprdma_span_t span;
    nprdma_span_t block; /* All of it */
    unsigned      index; /* Of the block in the table, and its word there */
    uintptr_t     word;
} nprdma_forecast_piece_t;


/** Counters, and what is known now */
typedef struct nprdma_forecast_stats {
    uint64_t expected;       /* Blocks that were expected to be filled */
    uint64_t unused;         /* Of these unmapped without that */
    uint64_t expected_bytes; /* Of blocks that are not filled yet */
    uint64_t filled_bytes;   /* Of blocks that are filled, and mapped */
} nprdma_forecast_stats_t;


/** @return Bytes of nprdma_forecast_t. */
size_t nprdma_forecast_size(void);


/**
 * Report a new mapping. What was known of its addresses is forgotten.
 *
 * @param [in] span      Whole pages.
 * @param [in] is_plain  Nonzero: private anonymous memory, for reading and
 *                       writing, at an address that the kernel has chosen, and
 *                       without flags. Only that can be expected to be filled.
 */
void nprdma_forecast_mapped(nprdma_forecast_t *forecast, nprdma_span_t span,
                            int is_plain);


/**
 * Report that memory is about to be taken from the process. When this returns,
 * no thread is bringing in pages there: what comes to these addresses next, for
 * example a file, is left alone. This waits for such a thread, which does not
 * allocate meanwhile, for at most 5 s: it may wait for a page fault that a
 * thread of the program has to resolve (userfaultfd).
 *
 * @param [in] taken  Addresses whose pages go. Blocks there are forgotten.
 * @param [in] gone   Part of it that is unmapped. Only a block that is exactly
 *                    this shows whether blocks of its length are filled.
 */
void nprdma_forecast_taken(nprdma_forecast_t *forecast, nprdma_span_t taken,
                           nprdma_span_t gone);


/** Report that an operation of this process will write to @a span. Blocks are
 * known from the first such report on. */
void nprdma_forecast_filled(nprdma_forecast_t *forecast, nprdma_span_t span);


/** Report that @a span has become accessible to peers. */
void nprdma_forecast_shown(nprdma_forecast_t *forecast, nprdma_span_t span);


/**
 * Find out what is to be brought in next. Costs one load if there is nothing.
 *
 * @param [out] piece  At most NPRDMA_FORECAST_PIECE bytes.
 *
 * @return Nonzero if there is something. It may be unmapped at any time, until
 *         @ref nprdma_forecast_begin.
 */
int nprdma_forecast_peek(nprdma_forecast_t *forecast,
                         nprdma_forecast_piece_t *piece);


/**
 * Begin to bring a piece in. Until @ref nprdma_forecast_end hooks of other
 * threads that take its block wait, so this thread must not allocate.
 *
 * @param [in] piece  Of @ref nprdma_forecast_peek.
 *
 * @return Zero if the block is gone, or another thread has it: do nothing.
 */
int nprdma_forecast_begin(nprdma_forecast_t *forecast,
                          const nprdma_forecast_piece_t *piece);


/**
 * The piece of @ref nprdma_forecast_begin has been brought in.
 *
 * @param [in] is_done  Zero: this has failed. The rest of the block is left to
 *                      the operation.
 */
void nprdma_forecast_end(nprdma_forecast_t *forecast,
                         const nprdma_forecast_piece_t *piece, int is_done);


/** @param [out] stats  Filled. They are not read at the same moment. */
void nprdma_forecast_query(nprdma_forecast_t *forecast,
                           nprdma_forecast_stats_t *stats);

END_C_DECLS

#endif
