/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_req.h"
#include "nprdma_rma_reply.h"


#include "nprdma_assert.h"

#include <ucs/debug/memtrack_int.h>


/* Number of requests without reply after which one asks for an
 * acknowledgement */
#define UCT_NPRDMA_RMA_ACK_INTERVAL   1024

/* The same while the NIC has operations, which must not overtake requests that
 * overlap: then most of the unacknowledged requests are in rma->recent */
#define UCT_NPRDMA_RMA_ACK_INTERVAL_OPS  (UCT_NPRDMA_RMA_RECENT / 2)


int uct_nprdma_rma_admit_redo(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_rma_t *rma, int32_t count)
{
    return uct_nprdma_conn_admit_redo(&iface->net, &rma->ep->net.svc, count) &&
           uct_nprdma_rma_can_count(rma);
}

uct_nprdma_slot_t *
uct_nprdma_rma_pool_get(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        uct_nprdma_bounce_t *pool, unsigned held, int is_redo)
{
    unsigned reserve = is_redo ? 0 : UCT_NPRDMA_RMA_REDO_SLOTS;

    if (ucs_unlikely(!is_redo &&
                     !uct_nprdma_bounce_has_share(pool, held, reserve))) {
        uct_nprdma_conn_no_slot(&iface->net, &rma->ep->net.svc, held);
        return NULL;
    }

    if (ucs_unlikely((pool->num_free <= reserve) &&
                     (uct_nprdma_bounce_grow(pool) == 0))) {
        iface->net.tx.starved = 1;
        return NULL;
    }

    return uct_nprdma_bounce_get(pool);
}

uct_nprdma_slot_t *uct_nprdma_rma_get_slot_slow(uct_nprdma_rma_iface_t *iface,
                                                uct_nprdma_rma_t *rma,
                                                int is_redo)
{
    return uct_nprdma_rma_pool_get(iface, rma, &iface->res->pool,
                                   uct_nprdma_rma_held_slots(rma), is_redo);
}

/* Remember the range that a request accesses. A request of an operation of
 * ops.order is not remembered: the operation stays there until the reply. */
static void uct_nprdma_rma_record(uct_nprdma_rma_t *rma,
                                  const uct_nprdma_svc_request_t *request,
                                  const uct_nprdma_rma_reply_t *reply)
{
    uct_nprdma_rma_recent_t *recent =
            &rma->recent[rma->sn % UCT_NPRDMA_RMA_RECENT];
    uct_nprdma_area_t area;

    recent->sn     = rma->sn;
    recent->length = 0;
    if ((request->length == 0) ||
        (request->type == UCT_NPRDMA_SVC_POPULATE) ||
        ((reply != NULL) && uct_nprdma_rma_kind_is_ordered(reply->kind))) {
        return;
    }

    recent->length  = request->length;
    recent->is_read = request->type == UCT_NPRDMA_SVC_FETCH;
    recent->address = request->address;
    area            = uct_nprdma_area(request->address, request->length);
    uct_nprdma_area_add(&rma->area, &area);
}

/* Number a request that has been posted, and remember its range */
static void uct_nprdma_rma_sent(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_rma_t *rma,
                                const uct_nprdma_svc_request_t *request,
                                uct_nprdma_rma_reply_t *reply)
{
    if (rma->done_sn == rma->sn) {
        uct_nprdma_area_clear(&rma->area);
    }

    ++rma->sn;
    ++rma->count;
    ++iface->net.stats->svc_requests;
    if ((request->type == UCT_NPRDMA_SVC_STORE) ||
        (request->type == UCT_NPRDMA_SVC_ATOMIC)) {
        rma->write_count      = rma->count;
        rma->ep->net.blocked |= rma->behind_flag;
    }
    uct_nprdma_rma_record(rma, request, reply);
    if (reply != NULL) {
        reply->sn      = rma->sn;
        reply->type    = request->type;
        reply->size    = request->length;
        reply->address = request->address;
        rma->reply_sn  = rma->sn;
    }
}

/* Check whether a request that needs no reply asks for one. The first request
 * after a pause does: then a flush that follows it has nothing to send. If many
 * puts follow instead, few of them have replies. While operations are not
 * verified, a flush has to wait in any case, and asks itself. */
static int uct_nprdma_rma_wants_ack(const uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_rma_t *rma)
{
    int is_ordered    = ucs_list_is_empty(&rma->ops.order.ops);
    uint32_t interval = is_ordered ? UCT_NPRDMA_RMA_ACK_INTERVAL :
                                     UCT_NPRDMA_RMA_ACK_INTERVAL_OPS;

    return ((rma->sn - rma->reply_sn) >= interval) ||
           (is_ordered && (rma->done_sn == rma->sn) &&
            (iface->res->num_free_replies > UCT_NPRDMA_RMA_REDO_IFACE_REPLIES));
}

/* The connection fails: the receive of the reply is flushed */
static void
uct_nprdma_rma_send_failed(const uct_nprdma_rma_t *rma, uct_nprdma_slot_t *slot,
                           uct_nprdma_rma_reply_t *reply)
{
    if (slot != NULL) {
        uct_nprdma_bounce_put(slot);
    }
    if (reply != NULL) {
        reply->kind = UCT_NPRDMA_RMA_ACK;
        reply->sn   = rma->sn;
    }
}

ucs_status_t uct_nprdma_rma_send(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma,
                                 uct_nprdma_svc_request_t *request,
                                 size_t length, uct_nprdma_slot_t *slot,
                                 uct_nprdma_rma_reply_t *reply)
{
    struct ibv_send_wr wr   = {};
    uct_nprdma_comp_t *comp = NULL;
    struct ibv_sge sge;
    ucs_status_t status;
    int is_alone = 0;
    int signal   = 0;

    if ((reply == NULL) && uct_nprdma_rma_wants_ack(iface, rma)) {
        is_alone = (rma->done_sn == rma->sn);
        /* The reply to an ATOMIC always carries the old value */
        reply = uct_nprdma_rma_reply_add(
                iface, rma, (request->type == UCT_NPRDMA_SVC_ATOMIC) ?
                            request->length : 0,
                UCT_NPRDMA_RMA_ACK, 1, NULL);
    }

    /* Rule "send and receive": only bounce buffers and inline data are sent */
    nprdma_assert((slot == NULL) || ((void*)request == (void*)slot->data));
    nprdma_assert((slot != NULL) ||
                  (length <= iface->net.config.max_inline));
    request->sn    = rma->sn + 1;
    request->flags = (reply == NULL) ? 0 : UCT_NPRDMA_SVC_FLAG_REPLY;
    sge.addr       = (uintptr_t)request;
    sge.length     = length;
    wr.sg_list     = &sge;
    wr.num_sge     = 1;
    wr.opcode      = IBV_WR_SEND;
    if (slot == NULL) {
        sge.lkey      = 0;
        wr.send_flags = IBV_SEND_INLINE;
    } else {
        /* Unsignaled sends hold at most half of the slots, not counting the
         * reserve: see nprdma_tx.h */
        sge.lkey       = slot->lkey;
        comp           = &slot->comp;
        comp->func     = uct_nprdma_slot_release_comp;
        signal         = slot->pool->num_free < ((slot->pool->num_slots / 2) +
                                                 UCT_NPRDMA_RMA_REDO_SLOTS);
    }

    status = uct_nprdma_conn_post_inl(&iface->net, &rma->ep->net.svc, &wr, comp,
                                      signal);
    if (ucs_unlikely(status != UCS_OK)) {
        uct_nprdma_rma_send_failed(rma, slot, reply);
        return status;
    }

    rma->ep->net.svc.num_slots += (slot != NULL);
    uct_nprdma_rma_sent(iface, rma, request, reply);
    if (is_alone) {
        uct_nprdma_rma_spare_post(iface, rma);
    }
    return UCS_OK;
}


ucs_status_t uct_nprdma_rma_request_ack(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_rma_t *rma)
{
    uct_nprdma_svc_request_t request;
    uct_nprdma_rma_reply_t *reply;
    uct_nprdma_slot_t *slot;

    if (rma->reply_sn == rma->sn) {
        return UCS_OK;
    }

    if (!uct_nprdma_conn_admit_redo(&iface->net, &rma->ep->net.svc, 1) ||
        !uct_nprdma_rma_small_slot(iface, rma, sizeof(request), 1, &slot)) {
        return UCS_ERR_NO_RESOURCE;
    }

    reply = uct_nprdma_rma_reply_add(iface, rma, 0, UCT_NPRDMA_RMA_ACK, 1,
                                     NULL);
    if (reply == NULL) {
        uct_nprdma_rma_small_slot_put(slot);
        return UCS_ERR_NO_RESOURCE;
    }

    uct_nprdma_rma_fill_request(&request, UCT_NPRDMA_SVC_NOP, 0, 0, 0);
    return uct_nprdma_rma_send_small(iface, rma, &request, sizeof(request),
                                     slot, reply);
}

void uct_nprdma_rma_stall(uct_nprdma_rma_res_t *res,
                          uct_nprdma_rma_t *rma)
{
    if (!rma->is_stalled) {
        rma->is_stalled = 1;
        ucs_list_add_tail(&res->stalled, &rma->stalled);
    }
}

void uct_nprdma_rma_free(uct_nprdma_rma_t *rma)
{
    ucs_free(rma);
}
