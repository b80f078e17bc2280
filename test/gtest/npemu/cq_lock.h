/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The lock of a completion queue that all processes share, for processes that
 * are to be stopped or killed with it.
 */

#ifndef NPT_CQ_LOCK_H
#define NPT_CQ_LOCK_H

struct ibv_cq;

#ifdef __cplusplus
extern "C" {
#endif

/** Take it, as every producer of a completion does, and ibv_req_notify_cq(). */
void npt_cq_lock(struct ibv_cq *cq);

/** Release it. */
void npt_cq_unlock(struct ibv_cq *cq);

#ifdef __cplusplus
}
#endif

#endif
