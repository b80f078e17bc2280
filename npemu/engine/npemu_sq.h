/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Send queues: posting, order, retries, completion. */

#ifndef NPEMU_SQ_H
#define NPEMU_SQ_H

#include "engine/npemu_qp.h"

/** ibv_post_send of this device. */
int npemu_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                    struct ibv_send_wr **bad_wr);

/** Execute requests that wait, as far as possible. sq_lock is held. */
void npemu_sq_run(npemu_qp_t *qp);

/** Allocate and free the memory for waiting requests. Returns 0 or ENOMEM. The
 * send CQ exists before and after. */
int npemu_sq_init(npemu_qp_t *qp);
void npemu_sq_cleanup(npemu_qp_t *qp);

/** Complete all waiting requests as flushed. sq_lock is held. */
void npemu_sq_flush(npemu_qp_t *qp);

/** Discard all waiting requests, and reset positions. sq_lock is held. */
void npemu_sq_reset(npemu_qp_t *qp);

/** Execute what was posted while the queue was drained (SQD to RTS). */
void npemu_sq_resume(npemu_qp_t *qp);

/**
 * Has the oldest request been begun, and not completed? It is retried, in SQD
 * as well: a send queue is drained when it is done. sq_lock is held.
 */
static inline int npemu_sq_is_begun(const npemu_qp_t *qp)
{
    return npemu_wait_is_begun(&qp->wait);
}

#endif
