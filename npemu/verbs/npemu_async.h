/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Asynchronous events: queue, delivery, acknowledgement. An object counts the
 * events that were delivered (`async_delivered`), and its ibv_ structure those
 * that were acknowledged.
 */

#ifndef NPEMU_ASYNC_H
#define NPEMU_ASYNC_H

#include "verbs/npemu_context.h"

/** Queue an event about a QP, CQ or SRQ and wake the threads that wait for
 * events. */
void npemu_async_raise_qp(struct ibv_qp *qp, enum ibv_event_type type);
void npemu_async_raise_cq(struct ibv_cq *cq, enum ibv_event_type type);
void npemu_async_raise_srq(struct ibv_srq *srq, enum ibv_event_type type);

/**
 * Before an object is destroyed: discard its queued events, and wait until the
 * program has acknowledged those that were delivered.
 */
void npemu_async_forget_qp(struct ibv_qp *qp);
void npemu_async_forget_cq(struct ibv_cq *cq);
void npemu_async_forget_srq(struct ibv_srq *srq);

#endif
