/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_LAZY_H_
#define NPRDMA_LAZY_H_

#include <ucs/sys/compiler_def.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/* Lazy unmapping, after Gerofi et al. (doi 10.1145/2966884.2966888): a block
 * that the process unmaps is kept, inaccessible, and given to the next mapping
 * of its size, without page faults. The kernel takes the pages of kept blocks
 * when memory is short (MADV_FREE). A UCM handler takes the place of the system
 * call, behind all that nprdma_events.h does before one and before all that it
 * does after one. What leaves the pool goes through the listeners again. */


/* The C library maps each larger block by itself: it may be a buffer */
#define NPRDMA_LAZY_MIN ((size_t)128 * 1024)


typedef struct nprdma_lazy_stats {
    uint64_t bytes;   /* Of blocks that are kept now */
    uint64_t reused;  /* Blocks that were kept and given to a mapping */
    uint64_t dropped; /* Blocks that were kept and unmapped */
} nprdma_lazy_stats_t;


/* Keep blocks that the process unmaps, of `limit` bytes in all; one of more
 * than half of it is not kept. Called behind nprdma_events_add(). While there
 * is a user already, its limit stays. Zero: one line in the log says why
 * nothing is kept. Else it is undone by nprdma_lazy_stop(). */
int nprdma_lazy_start(size_t limit);


/* The last user's call unmaps all that is kept */
void nprdma_lazy_stop(void);


/* Since the first use that has not ended, not all at the same moment */
void nprdma_lazy_query(nprdma_lazy_stats_t *stats);

END_C_DECLS

#endif
