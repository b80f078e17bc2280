/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "refuser.h"

#include "uct/ib/nprdma/base/nprdma_iface.h"

#include <ucs/async/async.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

/* Queue pairs that can have refused sends at one time */
#define REFUSER_MAX_QPS  16

static struct {
    pthread_mutex_t lock;
    int             (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr,
                                 struct ibv_send_wr **bad_wr);
    unsigned        after;
    unsigned        count;
    unsigned        num_refused;
    unsigned        num_overtakers;
    uint32_t        qpns[REFUSER_MAX_QPS];
    unsigned        num_qps;
} refuser = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* MDs that may be without queue pairs */
typedef struct refuser_qps {
    uct_md_h                 md;
    struct ibv_pd            *pd;
    const uct_nprdma_verbs_t *real;
    uct_nprdma_verbs_t       verbs;
    atomic_int               is_refused; /* Threads read it */
} refuser_qps_t;

static refuser_qps_t refuser_qps[2];
static unsigned refuser_num_qps;


static int refuser_has_refused(uint32_t qpn)
{
    unsigned i;

    for (i = 0; i < refuser.num_qps; ++i) {
        if (refuser.qpns[i] == qpn) {
            return 1;
        }
    }
    return 0;
}

/* For a single request, because the component posts no lists */
static int refuser_decide(uint32_t qpn, const struct ibv_send_wr *wr)
{
    int is_empty = (wr->opcode == IBV_WR_RDMA_WRITE) && (wr->num_sge == 0);

    if (refuser.after > 0) {
        --refuser.after;
    } else if (refuser.count > 0) {
        --refuser.count;
        ++refuser.num_refused;
        if (!refuser_has_refused(qpn) &&
            (refuser.num_qps < REFUSER_MAX_QPS)) {
            refuser.qpns[refuser.num_qps++] = qpn;
        }
        return ENOMEM;
    }

    refuser.num_overtakers += !is_empty && refuser_has_refused(qpn);
    return 0;
}

static int refuser_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                             struct ibv_send_wr **bad_wr)
{
    int ret = 0;

    if (qp->qp_type == IBV_QPT_RC) {
        pthread_mutex_lock(&refuser.lock);
        ret = refuser_decide(qp->qp_num, wr);
        pthread_mutex_unlock(&refuser.lock);
    }
    if (ret != 0) {
        *bad_wr = wr;
        return ret;
    }
    return refuser.post_send(qp, wr, bad_wr);
}

void refuser_start(uct_md_h md)
{
    struct ibv_context *context = ucs_derived_of(md,
                                                 uct_nprdma_device_t)->context;

    refuser.post_send      = context->ops.post_send;
    context->ops.post_send = refuser_post_send;
    refuser_refuse(0, 0);
}

void refuser_refuse(unsigned after, unsigned count)
{
    pthread_mutex_lock(&refuser.lock);
    refuser.after          = after;
    refuser.count          = count;
    refuser.num_refused    = 0;
    refuser.num_overtakers = 0;
    refuser.num_qps        = 0;
    pthread_mutex_unlock(&refuser.lock);
}

static unsigned refuser_read(const unsigned *counter)
{
    unsigned value;

    pthread_mutex_lock(&refuser.lock);
    value = *counter;
    pthread_mutex_unlock(&refuser.lock);
    return value;
}

unsigned refuser_num_refused(void)
{
    return refuser_read(&refuser.num_refused);
}

unsigned refuser_num_overtakers(void)
{
    return refuser_read(&refuser.num_overtakers);
}

static ucs_async_context_t *refuser_async(uct_iface_h tl_iface)
{
    return ucs_derived_of(tl_iface, uct_base_iface_t)->worker->async;
}

static struct ibv_qp *refuser_create_qp(struct ibv_pd *pd,
                                        struct ibv_qp_init_attr *attr)
{
    refuser_qps_t *qps = &refuser_qps[refuser_qps[0].pd != pd];

    if (atomic_load(&qps->is_refused)) {
        errno = ENOMEM;
        return NULL;
    }
    return qps->real->create_qp(pd, attr);
}

void refuser_start_qps(uct_md_h md, uct_iface_h iface)
{
    uct_nprdma_device_t *dev = ucs_derived_of(md, uct_nprdma_device_t);
    refuser_qps_t *qps       = &refuser_qps[refuser_num_qps++ % 2];

    /* The interface's thread uses the device while it has this */
    UCS_ASYNC_BLOCK(refuser_async(iface));
    qps->md              = md;
    qps->pd              = dev->pd;
    qps->real            = dev->verbs;
    qps->verbs           = *dev->verbs;
    qps->verbs.create_qp = refuser_create_qp;
    dev->verbs           = &qps->verbs;
    atomic_store(&qps->is_refused, 0);
    UCS_ASYNC_UNBLOCK(refuser_async(iface));
}

void refuser_refuse_qps(uct_md_h md, int is_refused)
{
    atomic_store(&refuser_qps[refuser_qps[0].md != md].is_refused, is_refused);
}

void refuser_hold(uct_iface_h iface)
{
    UCS_ASYNC_BLOCK(refuser_async(iface));
}

void refuser_release(uct_iface_h iface)
{
    UCS_ASYNC_UNBLOCK(refuser_async(iface));
}

void refuser_answer(uct_iface_h iface)
{
    ucs_async_check_miss(refuser_async(iface));
}

int refuser_is_settled(uct_iface_h tl_iface)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);

    return (iface->net.tx.cq_avail == iface->net.config.tx_cq_len) &&
           (iface->net.tx.unsignaled == 0) &&
           (iface->net.tx.pool.num_free == iface->net.tx.pool.num_slots) &&
           ucs_list_is_empty(&iface->closing);
}
