/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_OPT_SLICE_H_
#define UCT_NPRDMA_OPT_SLICE_H_

#include "nprdma_rma_types.h"

/*
 * The life of a slice of an optimistic operation, until it is verified or
 * copied: then uct_nprdma_opt_slice_end() is called.
 */

/** Begin with a slice that has its op, address, buffer, length and piece. */
void uct_nprdma_opt_slice_start(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_opt_slice_t *slice);

/**
 * Go on with a slice, filled as for uct_nprdma_opt_slice_start(). Its data has
 * been read once, as its operation did without a slice, and is to be scanned.
 */
void uct_nprdma_opt_slice_resume(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_opt_slice_t *slice);

/** Do the next step of a slice, and what follows until it has to wait. */
void uct_nprdma_opt_slice_run(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_opt_slice_t *slice);

/** Reply to a populate request; see nprdma_rma_reply.c. */
uct_completion_t *
uct_nprdma_opt_populated(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_wait_t *wait, const void *data,
                         ucs_status_t *status);

#endif
