/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "probe_hook.h"

#include "uct/ib/nprdma/base/nprdma_iface.h"

#include <ucs/async/async.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* More than may be outstanding */
#define PROBE_HOOK_MAX_HELD 128

static struct {
    int        (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr,
                            struct ibv_send_wr **bad_wr);
    void       (*call)(void *arg);
    void       *arg;
    atomic_int is_armed; /* Any thread may post the probe */

    /* Probes that are watched */
    pthread_mutex_t    lock;
    int                is_watching;
    int                is_svc;
    int                is_holding;
    uint32_t           qpns[PROBE_HOOK_MAX];
    unsigned           num_asked;
    struct {
        struct ibv_qp      *qp;
        struct ibv_send_wr wr;
    } held[PROBE_HOOK_MAX_HELD];
    unsigned           num_held;
} hook = { .lock = PTHREAD_MUTEX_INITIALIZER };


/* Returns nonzero if the probe waits */
static int probe_hook_note(struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
    int is_held = 0;

    pthread_mutex_lock(&hook.lock);
    if (hook.is_watching &&
        (uct_nprdma_cm_wr_id_is_probe(wr->wr_id) == !hook.is_svc)) {
        if (hook.num_asked < PROBE_HOOK_MAX) {
            hook.qpns[hook.num_asked++] = qp->qp_num;
        }
        if (hook.is_holding && (hook.num_held < PROBE_HOOK_MAX_HELD)) {
            hook.held[hook.num_held].qp   = qp;
            hook.held[hook.num_held++].wr = *wr;
            is_held                       = 1;
        }
    }
    pthread_mutex_unlock(&hook.lock);
    return is_held;
}


static int probe_hook_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                                struct ibv_send_wr **bad_wr)
{
    int is_probe = (wr->opcode == IBV_WR_RDMA_WRITE) && (wr->num_sge == 0);
    int ret;

    if (is_probe && probe_hook_note(qp, wr)) {
        return 0;
    }

    ret = hook.post_send(qp, wr, bad_wr);
    if (is_probe && (ret == 0) && atomic_exchange(&hook.is_armed, 0)) {
        hook.call(hook.arg);
    }
    return ret;
}

void probe_hook_start(uct_md_h md, uct_iface_h iface)
{
    uct_nprdma_device_t *dev   = ucs_derived_of(md, uct_nprdma_device_t);
    ucs_async_context_t *async = ucs_derived_of(iface, uct_base_iface_t)
                                         ->worker->async;

    /* Its thread uses the device while it has this */
    UCS_ASYNC_BLOCK(async);
    hook.is_armed               = 0;
    hook.is_watching            = 0;
    hook.is_holding             = 0;
    hook.num_held               = 0;
    hook.post_send              = dev->context->ops.post_send;
    dev->context->ops.post_send = probe_hook_post_send;
    UCS_ASYNC_UNBLOCK(async);
}

void probe_hook_arm(void (*call)(void *arg), void *arg)
{
    hook.call     = call;
    hook.arg      = arg;
    hook.is_armed = 1;
}

void probe_hook_watch(int is_svc)
{
    pthread_mutex_lock(&hook.lock);
    hook.is_svc      = is_svc;
    hook.num_asked   = 0;
    hook.is_watching = 1;
    pthread_mutex_unlock(&hook.lock);
}

void probe_hook_hold(void)
{
    pthread_mutex_lock(&hook.lock);
    hook.num_asked  = 0;
    hook.is_holding = 1;
    pthread_mutex_unlock(&hook.lock);
}

unsigned probe_hook_num_held(void)
{
    unsigned count;

    pthread_mutex_lock(&hook.lock);
    count = hook.num_held;
    pthread_mutex_unlock(&hook.lock);
    return count;
}

void probe_hook_let_one_go(void)
{
    struct ibv_send_wr *bad_wr, wr;
    struct ibv_qp *qp;

    pthread_mutex_lock(&hook.lock);
    if (hook.num_held == 0) {
        pthread_mutex_unlock(&hook.lock);
        return;
    }

    qp = hook.held[0].qp;
    wr = hook.held[0].wr;
    --hook.num_held;
    memmove(&hook.held[0], &hook.held[1],
            hook.num_held * sizeof(hook.held[0]));
    pthread_mutex_unlock(&hook.lock);
    hook.post_send(qp, &wr, &bad_wr);
}

void probe_hook_let_go(void)
{
    pthread_mutex_lock(&hook.lock);
    hook.is_holding = 0;
    pthread_mutex_unlock(&hook.lock);
    while (probe_hook_num_held() > 0) {
        probe_hook_let_one_go();
    }
}

unsigned probe_hook_asked(uint32_t *qpns)
{
    unsigned count;

    pthread_mutex_lock(&hook.lock);
    count = hook.num_asked;
    memcpy(qpns, hook.qpns, count * sizeof(*qpns));
    pthread_mutex_unlock(&hook.lock);
    return count;
}
