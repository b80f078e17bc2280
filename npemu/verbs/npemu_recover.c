/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_recover.h"
#include "engine/npemu_cq.h"
#include "engine/npemu_port.h"
#include "engine/npemu_sq.h"
#include "fabric/npemu_epoch.h"
#include "fabric/npemu_event_fd.h"
#include "verbs/npemu_async.h"
#include "verbs/npemu_channel.h"
#include "verbs/npemu_srq.h"

static int npemu_recover_qp_is_done(void *arg, uint32_t index)
{
    npemu_qp_t *qp = arg;

    return npemu_cq_refers(qp->recv_cq, qp->super.qp_num, index);
}

static int npemu_recover_srq_is_done(void *arg, uint32_t index)
{
    npemu_srq_t *srq   = arg;
    npemu_proc_t *proc = srq->rq.proc;
    npemu_qp_t *qp;
    unsigned i;

    for (i = 0; i < NPEMU_MAX_QPS; ++i) {
        qp = atomic_load(&proc->qps[i]);
        if ((qp != NULL) && (qp->rq == &srq->rq) &&
            npemu_recover_qp_is_done(qp, index)) {
            return 1;
        }
    }
    return 0;
}

/* End a QP's connection to a process that is gone: what was posted fails, and
 * its reference, which keeps descriptors and the mapping of the arena, is
 * returned. NULL if the QP has no such connection. */
static npemu_peer_t *npemu_recover_orphan(npemu_qp_t *qp)
{
    npemu_peer_t *peer;

    npemu_spin_lock(&qp->sq_lock);
    peer = qp->peer;
    if ((peer != NULL) && npemu_peer_is_alive(peer)) {
        peer = NULL;
    }
    if (peer != NULL) {
        npemu_wait_cancel(&qp->wait); /* it may name a queue of the process */
        npemu_sq_run(qp);
        qp->peer      = NULL;
        qp->remote    = NULL;
        qp->is_orphan = 1;
    }
    npemu_spin_unlock(&qp->sq_lock);
    return peer;
}

static void npemu_recover_orphans(npemu_proc_t *proc)
{
    npemu_peer_t *peer;
    npemu_qp_t *qp;
    unsigned i;

    for (i = 0; i < NPEMU_MAX_QPS; ++i) {
        if (atomic_load(&proc->qps[i]) == NULL) {
            continue;
        }

        peer = NULL;
        pthread_mutex_lock(&proc->lock);
        qp = atomic_load(&proc->qps[i]);
        if ((qp != NULL) && !qp->dying) {
            peer = npemu_recover_orphan(qp);
        }
        pthread_mutex_unlock(&proc->lock);
        if (peer != NULL) {
            npemu_peer_put(proc, peer); /* it may wait, so without the lock */
        }
    }
}

/* Raise one event, which a dead process may not have raised, and signal those
 * not taken yet again: it may have raised one and died before it signalled. */
static void npemu_recover_events(npemu_cq_t *cq)
{
    npemu_channel_t *channel = npemu_channel(cq->super.channel);
    uint32_t raised;

    pthread_mutex_lock(&channel->lock);
    raised = atomic_fetch_add(&cq->shm->raised, 1) + 1;
    for (; raised != cq->taken; --raised) {
        npemu_event_fd_signal(channel->event, channel->event->signal_fd);
    }
    pthread_mutex_unlock(&channel->lock);
}

void npemu_recover(npemu_proc_t *proc)
{
    npemu_link_t *link;
    npemu_cq_t *cq;
    npemu_qp_t *qp;
    npemu_srq_t *srq;
    unsigned i;

    /* Two processes that close the device would wait for each other */
    if (atomic_load(&proc->slot->ready) == 0) {
        return;
    }

    npemu_port_recover(proc);
    pthread_mutex_lock(&proc->lock);
    for (i = 0; i < NPEMU_MAX_QPS; ++i) {
        qp = atomic_load(&proc->qps[i]);
        if ((qp != NULL) && !qp->dying && (qp->rq == &qp->own_rq)) {
            npemu_rq_recover(qp->rq, npemu_recover_qp_is_done, qp);
            npemu_qp_flush_late(qp);
        }
    }
    for (link = proc->srqs.next; link != &proc->srqs; link = link->next) {
        srq = npemu_container_of(link, npemu_srq_t, link);
        npemu_rq_recover(&srq->rq, npemu_recover_srq_is_done, srq);
    }
    for (link = proc->cqs.next; link != &proc->cqs; link = link->next) {
        cq = npemu_container_of(link, npemu_cq_t, link);
        if (cq->super.channel != NULL) {
            npemu_recover_events(cq);
        }
    }
    pthread_mutex_unlock(&proc->lock);
    npemu_recover_orphans(proc);
}

/* --- events ----------------------------------------------------------------*/

void npemu_qp_flush_recv(npemu_qp_t *qp)
{
    /* Requests that initiators have begun complete first */
    npemu_epoch_quiesce(qp->proc, NPEMU_QUIESCE_BRIEF);
    if (qp->super.srq != NULL) {
        npemu_async_raise_qp(&qp->super, IBV_EVENT_QP_LAST_WQE_REACHED);
        return;
    }

    while (npemu_qp_flush_one(qp)) {
    }
}

static void npemu_qp_handle_event(npemu_qp_t *qp)
{
    uint32_t events;

    pthread_mutex_lock(&qp->control);
    events = atomic_exchange(&qp->shm->events, 0);
    if ((events & NPEMU_EV_QP_FLUSH) &&
        (npemu_qp_state(qp) == IBV_QPS_ERR)) {
        /* First the reason, then LAST_WQE_REACHED */
        if (events & NPEMU_EV_QP_FATAL) {
            npemu_async_raise_qp(&qp->super, IBV_EVENT_QP_FATAL);
        }
        if (events & NPEMU_EV_QP_ACCESS_ERR) {
            npemu_async_raise_qp(&qp->super, IBV_EVENT_QP_ACCESS_ERR);
        }
        if (events & NPEMU_EV_QP_REQ_ERR) {
            npemu_async_raise_qp(&qp->super, IBV_EVENT_QP_REQ_ERR);
        }
        npemu_spin_lock(&qp->sq_lock);
        npemu_sq_flush(qp);
        npemu_spin_unlock(&qp->sq_lock);
        npemu_qp_flush_recv(qp);
    }
    pthread_mutex_unlock(&qp->control);
}

static void npemu_qp_handle_others(npemu_proc_t *proc)
{
    npemu_link_t *link;
    npemu_srq_t *srq;
    npemu_cq_t *cq;

    for (link = proc->cqs.next; link != &proc->cqs; link = link->next) {
        cq = npemu_container_of(link, npemu_cq_t, link);
        if (atomic_exchange(&cq->shm->events, 0) & NPEMU_EV_CQ_ERR) {
            npemu_async_raise_cq(&cq->super, IBV_EVENT_CQ_ERR);
        }
    }

    for (link = proc->srqs.next; link != &proc->srqs; link = link->next) {
        srq = npemu_container_of(link, npemu_srq_t, link);
        if (atomic_exchange(&srq->rq.shm->events, 0) & NPEMU_EV_SRQ_LIMIT) {
            npemu_async_raise_srq(&srq->super, IBV_EVENT_SRQ_LIMIT_REACHED);
        }
    }
}

void npemu_qp_handle_events(npemu_proc_t *proc)
{
    unsigned i, index;
    npemu_qp_t *qp;
    uint64_t bits;

    pthread_mutex_lock(&proc->lock);
    if (atomic_exchange(&proc->shm->other_events, 0)) {
        npemu_qp_handle_others(proc);
    }
    for (i = 0; i < NPEMU_MAX_QPS / 64; ++i) {
        if (npemu_likely(atomic_load(&proc->shm->qp_events[i]) == 0)) {
            continue;
        }

        bits = atomic_exchange(&proc->shm->qp_events[i], 0);
        while (bits != 0) {
            index = i * 64 + __builtin_ctzll(bits);
            bits &= bits - 1;
            qp    = atomic_load(&proc->qps[index]);
            if ((qp != NULL) && !qp->dying) {
                npemu_qp_handle_event(qp);
            }
        }
    }
    pthread_mutex_unlock(&proc->lock);
}
