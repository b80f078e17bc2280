/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_qp.h"
#include "engine/npemu_cq.h"
#include "engine/npemu_cqp.h"

#include <errno.h>

/* --- failure ---------------------------------------------------------------*/

void npemu_qp_fail_remote(npemu_proc_t *proc, npemu_peer_t *peer,
                          unsigned index, uint32_t events)
{
    if (npemu_qp_shm_fail(peer->shm, index, events)) {
        npemu_peer_wake(proc, peer);
    }
}

void npemu_qp_fail(npemu_qp_t *qp)
{
    npemu_proc_t *proc = qp->proc;
    uint32_t rts       = IBV_QPS_RTS;

    if (qp->super.qp_type == IBV_QPT_UD) {
        atomic_compare_exchange_strong(&qp->shm->state, &rts, IBV_QPS_SQE);
    } else {
        npemu_qp_fail_remote(proc, npemu_peer_self(proc),
                             npemu_qpn_index(qp->super.qp_num), 0);
    }
}

int npemu_qp_flush_one(npemu_qp_t *qp)
{
    npemu_proc_t *proc = qp->proc;
    npemu_cq_t *cq     = qp->recv_cq;
    npemu_rq_entry_t entry;
    npemu_cqe_t *cqe;
    uint8_t *data;
    int limit;

    /* A thread that has not seen the state has posted its receive: see
     * npemu_post_recv() */
    npemu_spin_lock(&qp->rq->lock);
    npemu_spin_unlock(&qp->rq->lock);
    if (npemu_rq_pop(proc, proc->shm, qp->rq->shm, 1, &entry, &limit) !=
        NPEMU_RQ_OK) {
        return 0;
    }

    if (npemu_cqp_begin(proc, proc->shm, cq->shm, NPEMU_CQE_RECV, 1, 0, &cqe,
                        &data) != NPEMU_CQ_OK) {
        npemu_rq_free(qp->rq, entry.index);
        atomic_fetch_or(&cq->shm->events, NPEMU_EV_CQ_ERR);
        atomic_store(&proc->shm->other_events, 1);
        return 1;
    }

    cqe->status     = IBV_WC_WR_FLUSH_ERR;
    cqe->wc_flags   = 0;
    cqe->qpn        = qp->super.qp_num;
    cqe->opcode     = IBV_WC_RECV;
    cqe->byte_len   = 0;
    cqe->imm_data   = 0;
    cqe->src_qp     = 0;
    cqe->vendor_err = 0;
    cqe->index      = entry.index;
    cqe->ud         = (npemu_ud_t){0};
    npemu_cqp_end(npemu_peer_self(proc), cq->shm, cqe, 0);
    return 1;
}

void npemu_qp_flush_late(npemu_qp_t *qp)
{
    pthread_mutex_lock(&qp->control);
    while ((npemu_qp_state(qp) == IBV_QPS_ERR) && npemu_qp_flush_one(qp)) {
    }
    pthread_mutex_unlock(&qp->control);
}

/* --- receive ---------------------------------------------------------------*/

int npemu_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr,
                    struct ibv_recv_wr **bad_wr)
{
    npemu_qp_t *qp = npemu_qp(ibqp);
    enum ibv_qp_state state;
    int ret;

    if (npemu_unlikely(qp->proc != npemu_self())) {
        *bad_wr = wr;
        return NPEMU_ERR_FORKED;
    }

    state = npemu_qp_state(qp);
    if (npemu_unlikely((ibqp->srq != NULL) || (state == IBV_QPS_RESET))) {
        *bad_wr = wr;
        return EINVAL;
    }

    ret = npemu_rq_post(qp->rq, wr, bad_wr);
    /* If the state has changed since it was read, these receives were posted
     * after the flush. The lock under which they were posted orders this load
     * behind them: npemu_qp_flush_one() takes it. */
    if (npemu_unlikely(npemu_qp_state(qp) == IBV_QPS_ERR)) {
        npemu_qp_flush_late(qp);
    }
    return ret;
}
