/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The engine: executes one work request on the initiator's CPU. */

#ifndef NPEMU_SEND_H
#define NPEMU_SEND_H

#include "engine/npemu_qp.h"
#include "engine/npemu_wqe.h"

typedef enum {
    NPEMU_EXEC_DONE,   /* completed with `status` */
    NPEMU_EXEC_RNR,    /* the target has no receive, nothing was done */
    NPEMU_EXEC_BUSY,   /* a stopped process holds a lock, nothing was done */
    NPEMU_EXEC_RETRY,  /* the target does not answer, nothing was done */
    NPEMU_EXEC_ATTACH, /* the target's process must be attached first */
    NPEMU_EXEC_MAP     /* a table of the target must be attached first: not
                        * returned by npemu_send_exec() */
} npemu_exec_t;

/** Execute a work request. Must not be called inside an epoch. `qp`: QP it was
 * posted to, with its send queue locked. `status`: With NPEMU_EXEC_DONE, status
 * of the completion. `length`: bytes moved into local memory, for the
 * completion. */
npemu_exec_t npemu_send_exec(npemu_qp_t *qp, const npemu_wqe_t *wqe,
                             enum ibv_wc_status *status, uint32_t *length);

#endif
