/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PREREG_H_
#define NPRDMA_PREREG_H_

#include "ucm/events/nprdma_hook.h"

#include <ucs/type/status.h>

BEGIN_C_DECLS

/**
 * Pre-registration, after Gerofi et al. (doi 10.1145/2966884.2966888): memory
 * that the process maps gets a region before it is used, so that the first
 * registration finds one. A memory hook must not create regions; it adds the
 * mapping to a queue of fixed size, and a thread creates the region.
 */


typedef struct nprdma_prereg nprdma_prereg_t;


/** Called by the thread, for a range that the process has mapped. */
typedef void (*nprdma_prereg_func_t)(void *arg, nprdma_span_t span);


/**
 * Start the thread.
 *
 * @param [in]  create    Function that creates the region of a range.
 * @param [in]  arg       Its first argument.
 * @param [out] prereg_p  To be stopped and then freed.
 *
 * @return UCS_OK or UCS_ERR_NO_MEMORY.
 */
ucs_status_t nprdma_prereg_start(nprdma_prereg_func_t create, void *arg,
                                 nprdma_prereg_t **prereg_p);

/** Stop the thread. Memory hooks may still call @ref nprdma_prereg_add. */
void nprdma_prereg_stop(nprdma_prereg_t *prereg);

/** Free a stopped @a prereg that no memory hook uses any more. */
void nprdma_prereg_free(nprdma_prereg_t *prereg);

/**
 * Report that memory has been mapped. For memory hooks. Mappings of less than
 * 128 KiB are ignored, and so are all while the queue is full.
 */
void nprdma_prereg_add(nprdma_prereg_t *prereg, nprdma_span_t span);

END_C_DECLS

#endif
