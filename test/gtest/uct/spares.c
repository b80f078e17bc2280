/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "spares.h"

#include "uct/ib/nprdma/rma/nprdma_rma_types.h"

#include <pthread.h>

static struct {
    int                    (*post_send)(struct ibv_qp *qp,
                                        struct ibv_send_wr *wr,
                                        struct ibv_send_wr **bad_wr);
    pthread_mutex_t        lock;  /* Protects the last reply */
    struct ibv_qp          *qp;
    uct_nprdma_svc_reply_t reply;
} spares = {
    .lock = PTHREAD_MUTEX_INITIALIZER
};

static uct_nprdma_rma_res_t *spares_side(uct_iface_h iface)
{
    return ucs_derived_of(iface, uct_nprdma_rma_iface_t)->res;
}

unsigned spares_count(uct_iface_h iface)
{
    return (spares_side(iface) == NULL) ? 0 : spares_side(iface)->num_spares;
}

int spares_rest(uct_iface_h iface)
{
    uct_nprdma_rma_res_t *side = spares_side(iface);

    return (side == NULL) ||
           ((side->num_free_replies == UCT_NPRDMA_RMA_MAX_REPLIES) &&
            (ucs_queue_length(&side->free_replies) + side->num_spares ==
             UCT_NPRDMA_RMA_NUM_REPLIES) &&
            (side->small_pool.num_free + side->num_spares ==
             side->small_pool.num_slots));
}

static int spares_is_reply(const struct ibv_send_wr *wr)
{
    return (wr->opcode == IBV_WR_SEND) && (wr->send_flags & IBV_SEND_INLINE) &&
           (wr->sg_list[0].length == sizeof(uct_nprdma_svc_reply_t)) &&
           (*(const uint8_t*)wr->sg_list[0].addr == UCT_NPRDMA_SVC_REPLY);
}

/* Send the last reply, without a completion unless it fails */
static int spares_send_last(void)
{
    struct ibv_sge sge    = {(uintptr_t)&spares.reply, sizeof(spares.reply), 0};
    struct ibv_send_wr wr = {};
    struct ibv_send_wr *bad_wr;

    wr.sg_list    = &sge;
    wr.num_sge    = 1;
    wr.opcode     = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_INLINE;
    return spares.post_send(spares.qp, &wr, &bad_wr);
}

static int spares_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                            struct ibv_send_wr **bad_wr)
{
    if ((qp->qp_type == IBV_QPT_RC) && spares_is_reply(wr)) {
        pthread_mutex_lock(&spares.lock);
        spares.qp    = qp;
        spares.reply = *(const uct_nprdma_svc_reply_t*)wr->sg_list[0].addr;
        pthread_mutex_unlock(&spares.lock);
    }
    return spares.post_send(qp, wr, bad_wr);
}

void spares_start(uct_md_h md)
{
    struct ibv_context *context = ucs_derived_of(md,
                                                 uct_nprdma_device_t)->context;

    spares.post_send       = context->ops.post_send;
    context->ops.post_send = spares_post_send;
}

int spares_repeat(void)
{
    int ret;

    pthread_mutex_lock(&spares.lock);
    ret = spares_send_last();
    pthread_mutex_unlock(&spares.lock);
    return ret;
}
