/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "probe_hook.h"

#include "uct/ib/nprdma/base/nprdma_iface.h"

#include <ucs/async/async.h>

#include <stdatomic.h>

static struct {
    int        (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr,
                            struct ibv_send_wr **bad_wr);
    void       (*call)(void *arg);
    void       *arg;
    atomic_int is_armed; /* Any thread may post the probe */
} hook;


static int probe_hook_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                                struct ibv_send_wr **bad_wr)
{
    int is_probe = (wr->opcode == IBV_WR_RDMA_WRITE) && (wr->num_sge == 0);
    int ret      = hook.post_send(qp, wr, bad_wr);

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
