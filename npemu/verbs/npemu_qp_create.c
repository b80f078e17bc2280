/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Queue pairs: creation and destruction. */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_qp_create.h"
#include "base/npemu_limits.h"
#include "engine/npemu_cq.h"
#include "engine/npemu_sq.h"
#include "npemu.h"
#include "verbs/npemu_async.h"
#include "verbs/npemu_pd.h"
#include "verbs/npemu_srq.h"

#include <errno.h>
#include <stdlib.h>

void npemu_qp_disconnect(npemu_qp_t *qp)
{
    if (qp->peer != NULL) {
        npemu_peer_put(qp->proc, qp->peer);
    }
    qp->peer       = NULL;
    qp->remote     = NULL;
    qp->unroutable = 0;
    qp->is_orphan  = 0;
}

void npemu_qp_clear(npemu_qp_t *qp)
{
    npemu_spin_lock(&qp->sq_lock);
    npemu_wait_cancel(&qp->wait);
    npemu_sq_reset(qp);
    npemu_spin_unlock(&qp->sq_lock);

    npemu_epoch_quiesce(qp->proc, NPEMU_QUIESCE_ALL);
    npemu_cq_clean(qp->recv_cq, qp->super.qp_num);
    if (qp->send_cq != qp->recv_cq) {
        npemu_cq_clean(qp->send_cq, qp->super.qp_num);
    }
    if (qp->super.srq == NULL) {
        npemu_rq_reset(qp->rq);
    }
    atomic_store(&qp->shm->events, 0);
}

/* Allocate a QPN; about the one that has been free for the longest time. */
static int npemu_qp_index_alloc(npemu_proc_t *proc, npemu_qp_t *qp,
                                unsigned *index_p)
{
    unsigned i, index;

    pthread_mutex_lock(&proc->lock);
    for (i = 0; i < NPEMU_MAX_QPS; ++i) {
        index = (proc->qp_next + i) % NPEMU_MAX_QPS;
        /* QPN 0 and 1 are the management QPs */
        if ((atomic_load(&proc->qps[index]) == NULL) &&
            ((proc->slot_index > 0) || (index > 1))) {
            atomic_store(&proc->qps[index], qp);
            proc->qp_next = index + 1;
            *index_p      = index;
            pthread_mutex_unlock(&proc->lock);
            return 0;
        }
    }
    pthread_mutex_unlock(&proc->lock);
    return ENOMEM;
}

static int npemu_qp_check_init(const struct ibv_qp_init_attr_ex *attr)
{
    const struct ibv_qp_cap *cap = &attr->cap;

    if ((attr->qp_type != IBV_QPT_RC) && (attr->qp_type != IBV_QPT_UD)) {
        return EOPNOTSUPP;
    }

    if ((attr->send_cq == NULL) || (attr->recv_cq == NULL) ||
        (cap->max_send_wr > NPEMU_MAX_WR) ||
        (cap->max_recv_wr > NPEMU_MAX_WR) ||
        (cap->max_send_sge > NPEMU_MAX_SGE) ||
        (cap->max_recv_sge > NPEMU_MAX_SGE) ||
        (cap->max_inline_data > NPEMU_MAX_INLINE)) {
        return EINVAL;
    }
    return 0;
}

static void npemu_qp_set_cap(npemu_qp_t *qp, struct ibv_qp_cap *cap,
                             struct ibv_srq *srq)
{
    qp->cap              = *cap;
    qp->cap.max_send_wr  = cap->max_send_wr ? cap->max_send_wr : 1;
    qp->cap.max_send_sge = cap->max_send_sge ? cap->max_send_sge : 1;
    if (srq != NULL) {
        qp->cap.max_recv_wr  = 0;
        qp->cap.max_recv_sge = 0;
    } else {
        qp->cap.max_recv_wr  = cap->max_recv_wr ? cap->max_recv_wr : 1;
        qp->cap.max_recv_sge = cap->max_recv_sge ? cap->max_recv_sge : 1;
    }
    *cap = qp->cap;
}

/* All steps of the creation that can fail. */
static int npemu_qp_create_parts(npemu_qp_t *qp, npemu_pd_t *pd,
                                 struct ibv_qp_init_attr_ex *attr,
                                 unsigned *index_p)
{
    int ret;

    ret = npemu_sq_init(qp);
    if (ret != 0) {
        return ret;
    }

    if (attr->srq != NULL) {
        qp->rq = &npemu_srq(attr->srq)->rq;
    } else {
        qp->rq = &qp->own_rq;
        ret    = npemu_rq_init(qp->rq, qp->proc, pd->id, qp->cap.max_recv_wr,
                               qp->cap.max_recv_sge);
        if (ret != 0) {
            goto err_sq;
        }
    }

    ret = npemu_qp_index_alloc(qp->proc, qp, index_p);
    if (ret == 0) {
        return 0;
    }

    if (attr->srq == NULL) {
        npemu_rq_cleanup(qp->rq);
    }
err_sq:
    npemu_sq_cleanup(qp);
    return ret;
}

static void npemu_qp_publish(npemu_qp_t *qp, npemu_pd_t *pd, unsigned index)
{
    npemu_proc_t *proc  = qp->proc;
    npemu_qp_shm_t *shm = &proc->shm->qps[index];

    qp->shm  = shm;
    atomic_fetch_add(&shm->gen, 1);
    shm->type     = qp->super.qp_type;
    shm->pd       = pd->id;
    shm->dest_qpn = 0;
    shm->rq       = npemu_arena_off(proc->shm, qp->rq->shm);
    shm->rcq      = npemu_arena_off(proc->shm, qp->recv_cq->shm);
    atomic_store(&shm->qkey, 0);
    atomic_store(&shm->access, 0);
    atomic_store(&shm->events, 0);
    atomic_store(&shm->state, IBV_QPS_RESET);
}

static struct ibv_qp *npemu_qp_create(struct ibv_pd *ibpd,
                                      struct ibv_qp_init_attr_ex *attr)
{
    npemu_proc_t *proc = npemu_context_proc(ibpd->context);
    npemu_pd_t *pd     = npemu_pd(ibpd);
    unsigned index     = 0;
    npemu_qp_t *qp;
    int ret;

    ret = (proc == NULL) ? NPEMU_ERR_FORKED : npemu_qp_check_init(attr);
    if (ret != 0) {
        errno = ret;
        return NULL;
    }

    qp = calloc(1, sizeof(*qp));
    if (qp == NULL) {
        return NULL;
    }

    qp->proc     = proc;
    qp->send_cq  = npemu_cq(attr->send_cq);
    qp->recv_cq  = npemu_cq(attr->recv_cq);
    qp->sig_all  = attr->sq_sig_all;
    qp->is_wired = (proc->link.rate != 0);
    qp->dying    = 1; /* the npemu thread ignores it until it is complete */
    npemu_qp_set_cap(qp, &attr->cap, attr->srq);
    qp->super.qp_type = attr->qp_type;
    ret = npemu_qp_create_parts(qp, pd, attr, &index);
    if (ret != 0) {
        free(qp);
        errno = ret;
        return NULL;
    }

    qp->super.context    = ibpd->context;
    qp->super.qp_context = attr->qp_context;
    qp->super.pd         = ibpd;
    qp->super.send_cq    = attr->send_cq;
    qp->super.recv_cq    = attr->recv_cq;
    qp->super.srq        = attr->srq;
    qp->super.handle     = index;
    qp->super.qp_num     = (proc->slot_index << NPEMU_QP_BITS) | index;
    qp->super.state      = IBV_QPS_RESET;
    pthread_mutex_init(&qp->super.mutex, NULL);
    pthread_cond_init(&qp->super.cond, NULL);
    pthread_mutex_init(&qp->control, NULL);

    atomic_fetch_add(&pd->refcount, 1);
    atomic_fetch_add(&qp->send_cq->refcount, 1);
    atomic_fetch_add(&qp->recv_cq->refcount, 1);
    if (attr->srq != NULL) {
        atomic_fetch_add(&npemu_srq(attr->srq)->refcount, 1);
    }
    npemu_qp_publish(qp, pd, index);
    pthread_mutex_lock(&proc->lock);
    qp->dying = 0;
    pthread_mutex_unlock(&proc->lock);
    return &qp->super;
}

struct ibv_qp *npemu_create_qp(struct ibv_pd *pd,
                               struct ibv_qp_init_attr *init_attr)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_context = init_attr->qp_context,
        .send_cq    = init_attr->send_cq,
        .recv_cq    = init_attr->recv_cq,
        .srq        = init_attr->srq,
        .cap        = init_attr->cap,
        .qp_type    = init_attr->qp_type,
        .sq_sig_all = init_attr->sq_sig_all
    };
    struct ibv_qp *qp;

    qp = npemu_qp_create(pd, &attr);
    if (qp != NULL) {
        init_attr->cap = attr.cap;
    }
    return qp;
}

struct ibv_qp *npemu_create_qp_ex(struct ibv_context *context,
                                  struct ibv_qp_init_attr_ex *init_attr)
{
    const uint32_t known = IBV_QP_INIT_ATTR_PD |
                           IBV_QP_INIT_ATTR_CREATE_FLAGS;

    (void)context;
    if (!(init_attr->comp_mask & IBV_QP_INIT_ATTR_PD) ||
        (init_attr->pd == NULL)) {
        errno = EINVAL;
        return NULL;
    }

    if ((init_attr->comp_mask & ~known) ||
        ((init_attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) &&
         (init_attr->create_flags != 0))) {
        errno = EOPNOTSUPP;
        return NULL;
    }

    return npemu_qp_create(init_attr->pd, init_attr);
}

int npemu_has_qp(struct ibv_context *context, uint32_t qp_num)
{
    npemu_proc_t *proc = npemu_context_proc(context);
    npemu_peer_t *peer;
    int ret;

    if (proc == NULL) {
        return 1;
    } else if ((qp_num >> NPEMU_QPN_BITS) ||
               (npemu_peer_attach(proc, npemu_qpn_slot(qp_num)) == ESRCH)) {
        return 0;
    }

    peer = npemu_peer_get(proc, npemu_qpn_slot(qp_num));
    if (peer == NULL) {
        return 1;
    }

    ret = peer->shm->qps[npemu_qpn_index(qp_num)].type != NPEMU_QPT_NONE;
    npemu_peer_put(proc, peer);
    return ret;
}

int npemu_destroy_qp(struct ibv_qp *ibqp)
{
    npemu_qp_t *qp     = npemu_qp(ibqp);
    npemu_proc_t *proc = qp->proc;

    if (proc != npemu_self()) {
        return NPEMU_ERR_FORKED;
    }

    /* From here on the npemu thread ignores it */
    pthread_mutex_lock(&proc->lock);
    qp->dying = 1;
    pthread_mutex_unlock(&proc->lock);

    pthread_mutex_lock(&qp->control);
    npemu_spin_lock(&qp->sq_lock);
    atomic_store(&qp->shm->state, IBV_QPS_RESET);
    npemu_spin_unlock(&qp->sq_lock);
    npemu_qp_clear(qp);
    npemu_qp_disconnect(qp);
    pthread_mutex_unlock(&qp->control);
    npemu_async_forget_qp(ibqp);
    qp->shm->type = NPEMU_QPT_NONE;

    pthread_mutex_lock(&proc->lock);
    atomic_store(&proc->qps[ibqp->handle], NULL);
    pthread_mutex_unlock(&proc->lock);

    npemu_sq_cleanup(qp);
    atomic_fetch_sub(&qp->send_cq->refcount, 1);
    atomic_fetch_sub(&qp->recv_cq->refcount, 1);
    atomic_fetch_sub(&npemu_pd(ibqp->pd)->refcount, 1);
    if (ibqp->srq != NULL) {
        atomic_fetch_sub(&npemu_srq(ibqp->srq)->refcount, 1);
    } else {
        npemu_rq_cleanup(qp->rq);
    }
    pthread_mutex_destroy(&qp->control);
    pthread_cond_destroy(&ibqp->cond);
    pthread_mutex_destroy(&ibqp->mutex);
    free(qp);
    return 0;
}
