/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_KEPT_H_
#define NPRDMA_KEPT_H_

#include "nprdma_hook.h"
#include "nprdma_lazy.h"

#include <ucs/type/status.h>

BEGIN_C_DECLS

/**
 * The pool of blocks that this process has unmapped: lazy unmapping, after
 * Gerofi et al. (doi 10.1145/2966884.2966888), whose policy is in
 * nprdma_lazy.h. A UCM handler takes the place of the system call, behind all
 * that nprdma_events.h does before one and before all that it does after one.
 * What leaves the pool goes through the listeners again.
 */


typedef struct nprdma_kept_params {
    size_t limit;    /* Bytes of all kept blocks; at least 256 KiB */
    int    is_open;  /* Nonzero: blocks stay accessible while they are kept */
    size_t max_huge; /* Bytes of the longest block of huge pages;
                      * UCS_MEMUNITS_AUTO: as nprdma_pace.h finds;
                      * UCS_MEMUNITS_INF: all */
    double age;      /* Seconds after which a block that nothing uses is
                      * unmapped */
} nprdma_kept_params_t;


/**
 * Keep blocks that the process unmaps, until memory is short or they are old.
 * Called behind nprdma_events_add(). While there is a user already, its
 * parameters stay.
 *
 * @param [in] params  Copied.
 *
 * @return UCS_OK, to be undone by @ref nprdma_kept_stop. Else nothing is kept,
 *         and one line in the log says why: UCS_ERR_UNSUPPORTED in a process
 *         with a sanitizer that follows the addresses of memory, if UCM does
 *         not report mmap() and munmap(), or if the kernel does not let memory
 *         be kept; UCS_ERR_NO_RESOURCE without a thread (nprdma_pressure.h);
 *         UCS_ERR_NO_MEMORY.
 */
ucs_status_t nprdma_kept_start(const nprdma_kept_params_t *params);


/** End the use. The last user's call unmaps all that is kept. */
void nprdma_kept_stop(void);


/**
 * Unmap kept blocks. Never allocates.
 *
 * @param [in] seconds  Those that have been kept for this time at least.
 *
 * @return Number of blocks.
 */
unsigned nprdma_kept_drop(double seconds);


/** @return Nonzero if kept blocks may be accessible. For hooks. */
int nprdma_kept_is_open(void);


/** @param [out] stats  All zeros if nothing has been kept in this process. */
void nprdma_kept_query(nprdma_lazy_stats_t *stats);

END_C_DECLS

#endif
