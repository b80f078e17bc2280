/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_recover.h"
#include "engine/npemu_cq.h"
#include "engine/npemu_port.h"
#include "engine/npemu_qp.h"
#include "verbs/npemu_srq.h"

static int npemu_recover_qp_is_done(void *arg, uint32_t index)
{
    npemu_qp_t *qp = arg;

    return npemu_cq_refers(qp->recv_cq, qp->super.qp.qp_num, index);
}

static int npemu_recover_srq_is_done(void *arg, uint32_t index)
{
    npemu_srq_t *srq   = arg;
    npemu_proc_t *proc = srq->rq.proc;
    npemu_qp_t *qp;
    unsigned i;

    for (i = 0; i < NPEMU_MAX_QPS; ++i) {
        qp = atomic_load(&proc->qps[i]);
        if ((qp != NULL) && !qp->dying && (qp->rq == &srq->rq) &&
            npemu_recover_qp_is_done(qp, index)) {
            return 1;
        }
    }
    return 0;
}

void npemu_recover(npemu_proc_t *proc)
{
    npemu_link_t *link;
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
        }
    }
    for (link = proc->srqs.next; link != &proc->srqs; link = link->next) {
        srq = npemu_container_of(link, npemu_srq_t, link);
        npemu_rq_recover(&srq->rq, npemu_recover_srq_is_done, srq);
    }
    for (link = proc->cqs.next; link != &proc->cqs; link = link->next) {
        npemu_cq_kick(npemu_container_of(link, npemu_cq_t, link));
    }
    pthread_mutex_unlock(&proc->lock);
}
