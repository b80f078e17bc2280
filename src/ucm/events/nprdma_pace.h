/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PACE_H_
#define NPRDMA_PACE_H_

#include "nprdma_hook.h"

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
 * Whether to zero blocks of huge pages pays. The kernel zeroes each huge page
 * just before the program writes to it, so this memory is in the cache then. A
 * kept block is zeroed as a whole. That takes less time while all buffers of
 * the program, and of others that share the cache, fit into it, and more
 * otherwise. How fast a block is zeroed tells which it is: a buffer that has
 * left the cache takes many times as long.
 *
 * No system call, no lock. For memory hooks, in several threads at once: then a
 * report may get lost.
 */


/** Zeroing is slow if it takes longer than this factor times zeroing in the
 * cache. Measured with an AMD EPYC: at 3 to 4, kept blocks took less time than
 * new ones; at 7, as much or more. */
#define NPRDMA_PACE_SLOW 6

/** Reports in a row before one counts: the scheduler may cause slow ones, and
 * buffers are not in the cache at first */
#define NPRDMA_PACE_ROW 8

/** Milliseconds for which a limit holds: the cache may get free */
#define NPRDMA_PACE_PAUSE 10000


/** All zeros: nothing is known, and all blocks are worth it. Atomic. */
typedef struct nprdma_pace {
    uint64_t hot;   /* Nanoseconds per MiB in the cache; 0: unknown */
    size_t   limit; /* Bytes that are slow; 0: none */
    uint64_t until; /* End of the limit, milliseconds */
    uint32_t slow;  /* Reports in a row */
} nprdma_pace_t;


/** @return Nonzero if the time in the cache is known. */
int nprdma_pace_has_hot(nprdma_pace_t *pace);


/** Report how long it takes to zero memory that is in the cache; the least
 * counts. */
void nprdma_pace_hot(nprdma_pace_t *pace, size_t length, uint64_t ns);


/**
 * Report how long it took to zero a block.
 *
 * @param [in] length  Bytes, above 0.
 * @param [in] ns      Nanoseconds.
 * @param [in] now     Milliseconds of any clock that does not go back.
 */
void nprdma_pace_zeroed(nprdma_pace_t *pace, size_t length, uint64_t ns,
                        uint64_t now);


/** @return Nonzero if keeping a block of huge pages of that length pays. */
int nprdma_pace_is_worth_it(nprdma_pace_t *pace, size_t length, uint64_t now);

END_C_DECLS

#endif
