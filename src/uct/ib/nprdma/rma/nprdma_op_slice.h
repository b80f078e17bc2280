/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_OP_SLICE_H_
#define UCT_NPRDMA_OP_SLICE_H_

#include "nprdma_rma_types.h"

/*
 * The steps of a slice of an optimistic operation, until it is verified or
 * copied. Then uct_nprdma_op_slice_end() is called.
 */

/**
 * Start a slice. Its op, address, buffer, length and piece are set.
 *
 * @param [in] iface  Interface.
 * @param [in] slice  Slice.
 */
void uct_nprdma_op_slice_start(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_op_slice_t *slice);

/**
 * Continue with a slice, set up as for uct_nprdma_op_slice_start(). Its
 * operation has already read the data once. Scans the data first.
 *
 * @param [in] iface  Interface.
 * @param [in] slice  Slice.
 */
void uct_nprdma_op_slice_resume(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_op_slice_t *slice);

/**
 * Execute the steps of a slice until it has to wait.
 *
 * @param [in] iface  Interface.
 * @param [in] slice  Slice.
 */
void uct_nprdma_op_slice_run(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_op_slice_t *slice);

/** Handle the reply to a POPULATE; see nprdma_rma_reply.c. */
uct_completion_t *
uct_nprdma_op_populated(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_rma_wait_t *wait, const void *data,
                        ucs_status_t *status);

#endif
