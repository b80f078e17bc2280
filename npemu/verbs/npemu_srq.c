/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_srq.h"
#include "base/npemu_limits.h"
#include "fabric/npemu_rlock.h"
#include "npemu.h"
#include "verbs/npemu_pd.h"

#include <errno.h>
#include <stdlib.h>

struct ibv_srq *npemu_create_srq(struct ibv_pd *pd,
                                 struct ibv_srq_init_attr *init_attr)
{
    npemu_proc_t *proc = npemu_context_proc(pd->context);
    uint32_t max_sge   = init_attr->attr.max_sge;
    uint32_t max_wr    = init_attr->attr.max_wr;
    npemu_srq_t *srq;
    int ret;

    if ((max_wr == 0) || (max_wr > NPEMU_MAX_WR) ||
        (max_sge > NPEMU_MAX_SGE)) {
        errno = EINVAL;
        return NULL;
    }

    if (proc == NULL) {
        errno = NPEMU_ERR_FORKED;
        return NULL;
    }

    max_sge = (max_sge == 0) ? 1 : max_sge;
    srq     = calloc(1, sizeof(*srq));
    if (srq == NULL) {
        return NULL;
    }

    ret = npemu_rq_init(&srq->rq, proc, npemu_pd(pd)->id, max_wr, max_sge);
    if (ret != 0) {
        free(srq);
        errno = ret;
        return NULL;
    }

    srq->super.context     = pd->context;
    srq->super.srq_context = init_attr->srq_context;
    srq->super.pd          = pd;
    srq->super.handle      = npemu_arena_off(proc->shm, srq->rq.shm) / 64;
    pthread_mutex_init(&srq->super.mutex, NULL);
    pthread_cond_init(&srq->super.cond, NULL);
    atomic_fetch_add(&npemu_pd(pd)->refcount, 1);
    pthread_mutex_lock(&proc->lock);
    npemu_link_add(&proc->srqs, &srq->link);
    pthread_mutex_unlock(&proc->lock);

    init_attr->attr.max_wr  = max_wr;
    init_attr->attr.max_sge = max_sge;
    return &srq->super;
}

int npemu_modify_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr,
                     int mask)
{
    npemu_srq_t *srq = npemu_srq(ibsrq);

    if (srq->rq.proc != npemu_self()) {
        return NPEMU_ERR_FORKED;
    }

    if (mask & ~(IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR)) {
        return EINVAL;
    }

    if (mask & IBV_SRQ_MAX_WR) {
        return EOPNOTSUPP; /* no IBV_DEVICE_SRQ_RESIZE */
    }

    if (mask & IBV_SRQ_LIMIT) {
        if (attr->srq_limit >= srq->rq.size) {
            return EINVAL;
        }
        npemu_rlock_take(srq->rq.proc, &srq->rq.shm->lock, 1);
        srq->rq.shm->limit = attr->srq_limit;
        npemu_rlock_release(&srq->rq.shm->lock);
    }
    return 0;
}

int npemu_query_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr)
{
    npemu_srq_t *srq = npemu_srq(ibsrq);

    if (srq->rq.proc != npemu_self()) {
        return NPEMU_ERR_FORKED;
    }

    npemu_rlock_take(srq->rq.proc, &srq->rq.shm->lock, 1);
    attr->srq_limit = srq->rq.shm->limit;
    npemu_rlock_release(&srq->rq.shm->lock);
    attr->max_wr  = srq->rq.size;
    attr->max_sge = srq->rq.max_sge;
    return 0;
}

int npemu_destroy_srq(struct ibv_srq *ibsrq)
{
    npemu_srq_t *srq   = npemu_srq(ibsrq);
    npemu_proc_t *proc = srq->rq.proc;

    if (proc != npemu_self()) {
        return NPEMU_ERR_FORKED;
    }

    if (atomic_load(&srq->refcount) != 0) {
        return EBUSY;
    }

    pthread_mutex_lock(&proc->lock);
    npemu_link_del(&srq->link);
    pthread_mutex_unlock(&proc->lock);
    npemu_async_forget_srq(ibsrq);
    npemu_rq_cleanup(&srq->rq);
    atomic_fetch_sub(&npemu_pd(ibsrq->pd)->refcount, 1);
    pthread_cond_destroy(&ibsrq->cond);
    pthread_mutex_destroy(&ibsrq->mutex);
    free(srq);
    return 0;
}

int npemu_post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr,
                        struct ibv_recv_wr **bad_wr)
{
    npemu_srq_t *srq = npemu_srq(ibsrq);

    if (npemu_unlikely(srq->rq.proc != npemu_self())) {
        *bad_wr = wr;
        return NPEMU_ERR_FORKED;
    }

    return npemu_rq_post(&srq->rq, wr, bad_wr);
}
