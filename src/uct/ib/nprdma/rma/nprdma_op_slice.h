/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_OP_SLICE_H_
#define UCT_NPRDMA_OP_SLICE_H_

#include "nprdma_rma_types.h"

/*
 * The steps of a slice of an optimistic operation, until it is verified or
 * copied. Then uct_nprdma_op_slice_end() is called.
 */

/* What was found absent, for the probe "suspect" */
enum {
    UCT_NPRDMA_OP_SUSPECT_LINES  = 1,
    UCT_NPRDMA_OP_SUSPECT_STATES = 2,
    UCT_NPRDMA_OP_SUSPECT_LOCAL  = 3
};

/* What the target does, for the probe "assist" */
enum {
    UCT_NPRDMA_OP_ASSIST_POPULATE = 1,
    UCT_NPRDMA_OP_ASSIST_COPY     = 2,
    UCT_NPRDMA_OP_ASSIST_FETCH    = 3
};


/* Start a slice. Its op, address, buffer, length and piece are set. */
void uct_nprdma_op_slice_start(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_op_slice_t *slice);

/* Execute the steps of a slice until it has to wait */
void uct_nprdma_op_slice_run(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_op_slice_t *slice);

/* See nprdma_initiator.c */
uct_completion_t *
uct_nprdma_op_populated(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_rma_reply_t *reply, const void *data,
                        ucs_status_t *status);

#endif
