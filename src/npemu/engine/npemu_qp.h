/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Queue pairs: objects and states. */

#ifndef NPEMU_QP_H
#define NPEMU_QP_H

#include "verbs/npemu_async.h"
#include "fabric/npemu_epoch.h"
#include "fabric/npemu_peer.h"
#include "engine/npemu_rq.h"
#include "engine/npemu_wait.h"
#include "engine/npemu_wqe.h"

struct npemu_cq;
struct npemu_srq;

/* An rnr_retry, IBA 11.6.2: not counted. */
#define NPEMU_RNR_FOREVER 7

/* Why the oldest request of a send queue could not be executed. */
typedef enum {
    NPEMU_RETRY_NONE,
    NPEMU_RETRY_RNR,       /* the target has no receive */
    NPEMU_RETRY_BUSY,      /* a stopped process has a lock of the target's */
    NPEMU_RETRY_TRANSPORT  /* the target does not answer */
} npemu_retry_kind_t;

/* Of the oldest request. */
typedef struct {
    npemu_retry_kind_t kind;
    int                is_written; /* WRITE_WITH_IMM: its data is there */
    uint64_t           next_ns;    /* try again then, and count it */
    uint64_t           end_ns;     /* TRANSPORT: give up then */
    uint64_t           timer_ns;   /* from one try to the next */
    uint32_t           left;       /* RNR: tries left, of the rnr_retry */
    npemu_rq_shm_t     *rq;        /* RNR: the target's, which was empty */
} npemu_retry_t;

typedef struct npemu_qp {
    union {
        struct ibv_qp    qp;
        struct ibv_qp_ex ex;
    } super;
    npemu_proc_t          *proc;
    npemu_qp_shm_t        *shm;
    struct npemu_cq       *send_cq;
    struct npemu_cq       *recv_cq;
    npemu_rq_t            *rq;        /* own_rq or the SRQ's */
    npemu_rq_t            own_rq;
    int                   dying;      /* being destroyed, under proc->lock */
    pthread_mutex_t       control;    /* serialises modify, destroy, flush */

    /* Target of an RC QP, from RTR on */
    npemu_peer_t          *peer;
    npemu_qp_shm_t        *remote;
    uint32_t              remote_index;
    int                   unroutable; /* the address leads nowhere */

    /* Send queue, under sq_lock. Positions count from 0 after RESET:
     * done <= executed <= posted */
    npemu_spin_t          sq_lock;
    int                   sig_all;
    uint32_t              posted;
    uint32_t              executed;
    _Atomic uint32_t      sq_done;    /* completion polled */
    uint32_t              sq_mask;
    size_t                sq_stride;
    uint8_t               *sq;        /* npemu_sq_entry_t, for what must wait */
    npemu_retry_t         retry;
    int                   drain_notify; /* SQD: an event when it is drained */
    npemu_wait_t          wait;       /* in send_cq->waits */

    struct ibv_qp_cap     cap;
    struct ibv_qp_attr    attr;       /* as set by the user */
    npemu_async_count_t   async;
    struct npemu_qp_batch *batch;     /* ibv_wr_*, if asked for */
} npemu_qp_t;

static inline npemu_qp_t *npemu_qp(struct ibv_qp *qp)
{
    return npemu_container_of(qp, npemu_qp_t, super.qp);
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
 * held, completes the request and flushes the send queue after this, so that
 * who sees the completion sees the state. The rest of an RC QP's transition
 * (receive queue, events) is left to the npemu thread.
 */
void npemu_qp_fail(npemu_qp_t *qp);

/**
 * Have the owner of a QP, in any process, tell its user something.
 *
 * @param [in] peer    Its process.
 * @param [in] index   The QP there.
 * @param [in] events  What, NPEMU_EV_QP_*.
 */
void npemu_qp_notify(npemu_proc_t *proc, npemu_peer_t *peer, unsigned index,
                     uint32_t events);

/** The same for a QP of this process. */
void npemu_qp_notify_self(npemu_qp_t *qp, uint32_t events);

/**
 * Mark a QP as failed, in any process.
 *
 * @param [in] peer    Its process.
 * @param [in] index   The QP there.
 * @param [in] events  What its user must be told, NPEMU_EV_QP_*.
 */
void npemu_qp_fail_remote(npemu_proc_t *proc, npemu_peer_t *peer,
                          unsigned index, uint32_t events);

/** Complete all receives of a QP in ERR as flushed. `control` is held. */
void npemu_qp_flush_recv(npemu_qp_t *qp);

/** Handle events that this or other processes set. By the npemu thread. */
void npemu_qp_handle_events(npemu_proc_t *proc);

/** Throw away queues and completions, on the way to RESET or destruction.
 * `control` is held; the state is no longer one that receives. */
void npemu_qp_clear(npemu_qp_t *qp, npemu_quiesce_t scope);

/** Disconnect from the target. */
void npemu_qp_disconnect(npemu_qp_t *qp);

#endif
