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

#endif
