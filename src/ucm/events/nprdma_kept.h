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
 * What leaves the pool goes through the listeners again. The kernel takes the
 * pages of kept blocks when memory is short (MADV_FREE), so nothing watches for
 * that.
 */


/**
 * Keep blocks that the process unmaps. Called behind nprdma_events_add(). While
 * there is a user already, its limit stays.
 *
 * @param [in] limit  Bytes of all kept blocks; at least 256 KiB.
 *
 * @return UCS_OK, to be undone by @ref nprdma_kept_stop. Else nothing is kept,
 *         and one line in the log says why: UCS_ERR_UNSUPPORTED in a process
 *         with a sanitizer that follows the addresses of memory, if UCM does
 *         not report mmap() and munmap(), or if the kernel does not let memory
 *         be kept; UCS_ERR_NO_MEMORY.
 */
ucs_status_t nprdma_kept_start(size_t limit);


/** End the use. The last user's call unmaps all that is kept. */
void nprdma_kept_stop(void);


/** Unmap all kept blocks. Never allocates. @return Their number. */
unsigned nprdma_kept_drop(void);


/** @param [out] stats  All zeros if nothing has been kept in this process. */
void nprdma_kept_query(nprdma_lazy_stats_t *stats);

END_C_DECLS

#endif
