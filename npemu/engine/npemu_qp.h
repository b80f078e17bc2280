/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Queue pairs as the engine executes them. */

#ifndef NPEMU_QP_H
#define NPEMU_QP_H

#include "engine/npemu_rq.h"
#include "engine/npemu_wait.h"
#include "fabric/npemu_peer.h"

struct npemu_cq;

typedef struct npemu_qp {
    struct ibv_qp         super;
    npemu_proc_t          *proc;
    npemu_qp_shm_t        *shm;
    struct npemu_cq       *send_cq;
    struct npemu_cq       *recv_cq;
    npemu_rq_t            *rq;        /* own_rq or the SRQ's */
    npemu_rq_t            own_rq;
    int                   dying;      /* not created yet, or being destroyed;
                                       * under proc->lock */
    pthread_mutex_t       control;    /* serialises modify, destroy, flush */

    /* Target of an RC QP, from RTR on */
    npemu_peer_t          *peer;
    npemu_qp_shm_t        *remote;
    uint32_t              remote_index;
    int                   unroutable; /* no process has the address */
    int                   is_orphan;  /* the process is gone: no peer */

    /* Send queue, under sq_lock. Positions count from 0 after RESET:
     * done <= executed <= posted */
    npemu_spin_t          sq_lock;
    int                   sig_all;
    int                   is_wired;   /* NPEMU_LINK: requests wait for the
                                       * wire */
    uint32_t              posted;
    uint32_t              executed;
    uint32_t              admitted;   /* before it: on the wire, or done */
    uint32_t              fetched;    /* end of the last RDMA READ or atomic
                                       * that is on the wire, or `executed` */
    _Atomic uint32_t      sq_done;    /* completion polled */
    uint32_t              sq_mask;
    size_t                sq_stride;
    uint8_t               *sq;        /* npemu_sq_entry_t, for what must wait */
    const npemu_cqe_t     *next_cqe;  /* of the target, probably: to prefetch */
    npemu_wait_t          wait;       /* for a retry, in send_cq->waits */

    struct ibv_qp_cap     cap;
    struct ibv_qp_attr    attr;       /* as set by the user */
    uint32_t              async_delivered; /* events, under events_lock */
} npemu_qp_t;

static inline npemu_qp_t *npemu_qp(struct ibv_qp *qp)
{
    return npemu_container_of(qp, npemu_qp_t, super);
}

static inline enum ibv_qp_state npemu_qp_state(npemu_qp_t *qp)
{
    return atomic_load_explicit(&qp->shm->state, memory_order_acquire);
}

/** ibv_post_recv of this device. */
int npemu_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
                    struct ibv_recv_wr **bad_wr);

/**
 * The send queue has failed: RC to ERR, UD to SQE. The caller, with sq_lock
 * held, publishes the completion of the request and flushes the send queue
 * after this, so that a program that sees the completion sees the state. The
 * npemu thread does the rest of an RC QP's transition (receive queue, events).
 */
void npemu_qp_fail(npemu_qp_t *qp);

/** Mark a QP as failed, in any process. */
void npemu_qp_fail_remote(npemu_proc_t *proc, npemu_peer_t *peer,
                          unsigned index, uint32_t events);

/** Complete the oldest receive of a QP in ERR as flushed. Returns 1, or 0 if
 * there is none left. */
int npemu_qp_flush_one(npemu_qp_t *qp);

/** Complete as flushed what comes to the receive queue of a QP in ERR when that
 * has been flushed. */
void npemu_qp_flush_late(npemu_qp_t *qp);

#endif
