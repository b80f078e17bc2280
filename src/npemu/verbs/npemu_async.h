/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Asynchronous events: queue, delivery, acknowledgement. */

#ifndef NPEMU_ASYNC_H
#define NPEMU_ASYNC_H

#include "verbs/npemu_context.h"

/* How many events of an object were delivered to the user; the object's own
 * ibv_ structure counts those acknowledged. Under events_lock. */
typedef struct {
    uint32_t delivered;
} npemu_async_count_t;

/** Queue an event about a QP, CQ or SRQ of the user and wake who waits. */
void npemu_async_raise_qp(struct ibv_qp *qp, enum ibv_event_type type);
void npemu_async_raise_cq(struct ibv_cq *cq, enum ibv_event_type type);
void npemu_async_raise_srq(struct ibv_srq *srq, enum ibv_event_type type);

/**
 * Before an object is destroyed: drop its events that are still queued, and
 * wait until the user has acknowledged those it got.
 */
void npemu_async_forget_qp(struct ibv_qp *qp);
void npemu_async_forget_cq(struct ibv_cq *cq);
void npemu_async_forget_srq(struct ibv_srq *srq);

#endif
