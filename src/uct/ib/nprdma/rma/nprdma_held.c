/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_held.h"
#include "nprdma_rma_req.h"

#include "nprdma_assert.h"


/* ---- order of a new operation ---- */

/* Find requests that the target has not executed and that the NIC must not
 * overtake (ARCHITECTURE 3, overlap). The addresses of older requests are no
 * longer known, so the operation waits for all of those. Nonzero: the operation
 * waits until op->request and all requests before it are executed. */
static int uct_nprdma_held_find_request(const uct_nprdma_rma_t *rma,
                                        uct_nprdma_order_op_t *op)
{
    uint32_t count = rma->sn - rma->done_sn;
    const uct_nprdma_rma_recent_t *recent;
    uct_nprdma_area_t area;
    uint32_t i;

    if (!(op->flags & UCT_NPRDMA_ORDER_NIC) || (count == 0) ||
        !uct_nprdma_area_overlaps(&rma->area, &op->area)) {
        return 0;
    }

    for (i = 0; i < ucs_min(count, UCT_NPRDMA_RMA_RECENT); ++i) {
        op->request = rma->sn - i;
        recent      = &rma->recent[op->request % UCT_NPRDMA_RMA_RECENT];
        if ((recent->length == 0) ||
            (recent->is_read && (op->flags & UCT_NPRDMA_ORDER_READ))) {
            continue;
        }

        area = uct_nprdma_area(recent->address, recent->length);
        if (uct_nprdma_area_overlaps(&area, &op->area)) {
            return 1;
        }
    }

    op->request = rma->sn - i;
    return count > i;
}

/* Make the target acknowledge the request that an operation waits for */
static void uct_nprdma_held_request_ack(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_rma_t *rma,
                                        const uct_nprdma_order_op_t *op)
{
    if (UCT_NPRDMA_RMA_SN_CMP(rma->reply_sn, <, op->request) &&
        (uct_nprdma_rma_request_ack(iface, rma) != UCS_OK)) {
        rma->held_needs_ack = 1;
        uct_nprdma_rma_stall(iface->res, rma);
    }
}

int uct_nprdma_held_add_slow(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma, uct_nprdma_order_op_t *op)
{
    int awaits_request = uct_nprdma_held_find_request(rma, op);
    uct_nprdma_order_op_t *blocker;

    blocker = uct_nprdma_order_find(&rma->ops.order, op->flags, &op->area);
    uct_nprdma_order_add(&rma->ops.order, op);
    op->awaits_request = awaits_request;
    if (blocker != NULL) {
        iface->net.stats->held_overlaps +=
                !(op->flags & UCT_NPRDMA_ORDER_ATOMIC);
        iface->net.stats->held_atomics  +=
                !!(op->flags & UCT_NPRDMA_ORDER_ATOMIC);
        uct_nprdma_order_hold(&rma->ops.order, op, &blocker->waiters);
    }
    if (ucs_unlikely(awaits_request)) {
        ++iface->net.stats->held_requests;
        if (blocker == NULL) {
            uct_nprdma_order_hold(&rma->ops.order, op, &rma->ops.unacked);
        }
        uct_nprdma_held_request_ack(iface, rma, op);
    }
    if (op->is_held) {
        ucs_trace_req("ep %p: op %p held by %s %p", rma->ep, op,
                      (blocker != NULL) ? "op" : "requests", blocker);
    }
    return op->is_held;
}


/* ---- requests ---- */

ucs_status_t
uct_nprdma_held_request(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        const uct_nprdma_held_message_t *message,
                        unsigned flags, uct_nprdma_slot_t *slot,
                        uct_unpack_callback_t unpack_cb, void *arg,
                        const uct_nprdma_rkey_t *rkey, uct_completion_t *comp)
{
    const uct_nprdma_svc_request_t *request = &message->request;
    int is_get                              = !!(flags & UCT_NPRDMA_ORDER_READ);
    uct_nprdma_op_t *op;

    op = uct_nprdma_op_new(iface, rma, is_get, 0, request->address, rkey, comp);
    if (op == NULL) {
        return UCS_ERR_NO_RESOURCE;
    }

    if (!is_get) {
        rma->ep->net.blocked |= rma->behind_flag;
    }
    op->is_request  = 1;
    op->by_nic      = 0;
    op->length      = 0; /* A request is not cut into slices */
    op->num_pieces  = 0;
    op->message     = *message;
    op->slot        = slot;
    op->unpack_cb   = unpack_cb;
    op->arg         = arg;
    op->order.area  = uct_nprdma_area(request->address, request->length);
    op->order.flags = flags;
    rma->num_slots += (slot != NULL);
    if (!uct_nprdma_held_add_slow(iface, rma, &op->order)) {
        uct_nprdma_order_hold(&rma->ops.order, &op->order, &rma->ops.ready);
        uct_nprdma_rma_stall(iface->res, rma);
    }
    return UCS_OK;
}

static void
uct_nprdma_held_reply(uct_nprdma_rma_iface_t *iface,
                      uct_nprdma_rma_reply_t *reply, const void *data,
                      ucs_status_t *status)
{
    uct_nprdma_op_t *op = reply->op;

    if (op->rma->status != UCS_OK) {
        return; /* The end of the connection completes all operations */
    }

    op->status = *status;
    if (*status == UCS_OK) {
        if (op->is_get) {
            op->unpack_cb(op->arg, data, reply->length);
        } else if (op->arg != NULL) {
            op->status = uct_nprdma_local_copy(&iface->local, op->arg, data,
                                               reply->length, op->arg);
            if (ucs_unlikely(op->status != UCS_OK)) {
                uct_nprdma_rma_report_local(iface, op->rma, 1, op->arg,
                                            reply->length);
            }
        }
    }
    uct_nprdma_op_complete(iface, op);
}

static const uct_nprdma_rma_kind_t uct_nprdma_held_kind = {
    .func       = uct_nprdma_held_reply,
    .is_ordered = 1
};

static size_t uct_nprdma_held_length(const uct_nprdma_op_t *op)
{
    const uct_nprdma_svc_request_t *request = &op->message.request;

    switch (request->type) {
    case UCT_NPRDMA_SVC_STORE:
        return sizeof(*request) + request->length;
    case UCT_NPRDMA_SVC_FETCH:
        return sizeof(*request);
    default:
        return sizeof(op->message);
    }
}

/* Check whether something waits for the operation itself, see nprdma_held.h */
static int uct_nprdma_held_needs_reply(const uct_nprdma_op_t *op)
{
    uct_nprdma_rma_t *rma = op->rma;

    return op->is_get || (op->comp != NULL) || (op->arg != NULL) ||
           !ucs_queue_is_empty(&rma->flushes) || rma->is_fenced ||
           (rma->ops.order.num_held_nic > 0);
}

/* Send a held request. Held puts behind it may have all slots that an endpoint
 * may have, and do not return them before this request is sent. Therefore it
 * uses the reserve, as redo does: what uses the reserve returns it without
 * waiting for a held operation. Zero if resources are missing: try again
 * later. */
static int uct_nprdma_held_send(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_op_t *op, int *has_reply_p)
{
    uct_nprdma_rma_t *rma         = op->rma;
    uct_nprdma_slot_t *slot       = op->slot;
    uct_nprdma_rma_reply_t *reply = NULL;
    ucs_status_t status;
    size_t length;

    length       = uct_nprdma_held_length(op);
    *has_reply_p = uct_nprdma_held_needs_reply(op);
    if (!uct_nprdma_rma_admit_post(iface, rma) ||
        ((slot == NULL) &&
         !uct_nprdma_rma_small_slot(iface, rma, length, 1, &slot))) {
        return 0;
    }

    /* Rules "overlap" and "atomics": the target executes what it is sent */
    nprdma_assert(uct_nprdma_order_find_before(&rma->ops.order, &op->order) ==
                  NULL);
    if (*has_reply_p) {
        reply = uct_nprdma_rma_reply_add(
                iface, rma, uct_nprdma_svc_reply_length(&op->message.request),
                &uct_nprdma_held_kind, 1, NULL);
        if (reply == NULL) {
            if (op->slot == NULL) {
                uct_nprdma_rma_small_slot_put(slot);
            }
            return 0;
        }
        reply->op = op;
    }

    if (op->slot == NULL) {
        status = uct_nprdma_rma_send_small(iface, rma, &op->message.request,
                                           length, slot, reply);
    } else {
        op->slot = NULL;
        --rma->num_slots;
        memcpy(slot->data, &op->message.request, sizeof(op->message.request));
        status = uct_nprdma_rma_send(iface, rma,
                                     (uct_nprdma_svc_request_t*)slot->data,
                                     length, slot, reply);
    }

    /* If the post fails, progress fails the connection, and that completes the
     * operation */
    *has_reply_p    |= (status != UCS_OK);
    op->order.flags |= UCT_NPRDMA_ORDER_SENT;
    return 1;
}


/* ---- end of a wait ---- */

/* Start or hold again an operation that has been removed from a list */
static void uct_nprdma_held_recheck(uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_rma_t *rma,
                                    uct_nprdma_order_op_t *order_op)
{
    uct_nprdma_op_t *op = ucs_container_of(order_op, uct_nprdma_op_t,
                                           order);
    uct_nprdma_order_op_t *blocker;

    blocker = uct_nprdma_order_find_before(&rma->ops.order, order_op);
    if (blocker != NULL) {
        uct_nprdma_order_hold(&rma->ops.order, order_op, &blocker->waiters);
    } else if (order_op->awaits_request &&
               UCT_NPRDMA_RMA_SN_CMP(rma->done_sn, <, order_op->request)) {
        uct_nprdma_order_hold(&rma->ops.order, order_op, &rma->ops.unacked);
    } else if (op->is_request) {
        ucs_trace_req("ep %p: op %p is ready", rma->ep, op);
        uct_nprdma_order_hold(&rma->ops.order, order_op, &rma->ops.ready);
    } else {
        ucs_trace_req("ep %p: op %p released", rma->ep, op);
        uct_nprdma_op_release(iface, op);
    }
}

static void uct_nprdma_held_recheck_all(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_rma_t *rma,
                                        ucs_list_link_t *list)
{
    uct_nprdma_order_op_t *op;

    while (!ucs_list_is_empty(list)) {
        op = ucs_list_head(list, uct_nprdma_order_op_t, held);
        uct_nprdma_order_unhold(&rma->ops.order, op);
        if (ucs_likely(rma->status == UCS_OK)) {
            uct_nprdma_held_recheck(iface, rma, op);
        }
    }
}

void uct_nprdma_held_release(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma, uct_nprdma_order_op_t *op)
{
    uct_nprdma_held_recheck_all(iface, rma, &op->waiters);
    if (rma->status == UCS_OK) {
        uct_nprdma_held_progress(iface, rma);
    }
}

void uct_nprdma_held_acked(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    uct_nprdma_order_op_t *op, *tmp;
    ucs_list_link_t list;

    ucs_list_head_init(&list);
    ucs_list_for_each_safe(op, tmp, &rma->ops.unacked, held) {
        if (UCT_NPRDMA_RMA_SN_CMP(rma->done_sn, >=, op->request)) {
            ucs_list_del(&op->held);
            ucs_list_add_tail(&list, &op->held);
        }
    }
    uct_nprdma_held_recheck_all(iface, rma, &list);
}

unsigned
uct_nprdma_held_progress(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    unsigned count = 0;
    uct_nprdma_op_t *op;
    ucs_list_link_t waiters;
    int has_reply;

    while (!ucs_list_is_empty(&rma->ops.ready)) {
        op = ucs_list_head(&rma->ops.ready, uct_nprdma_op_t, order.held);
        if (!uct_nprdma_held_send(iface, op, &has_reply)) {
            uct_nprdma_rma_stall(iface->res, rma);
            break;
        }

        /* A request may follow at once. An operation of the NIC has to wait for
         * the target to execute this one, and is held again */
        uct_nprdma_order_unhold(&rma->ops.order, &op->order);
        ucs_list_head_init(&waiters);
        ucs_list_splice_tail(&waiters, &op->order.waiters);
        ucs_list_head_init(&op->order.waiters);
        uct_nprdma_held_recheck_all(iface, rma, &waiters);
        if (!has_reply) {
            uct_nprdma_op_sent(iface, op);
        }
        ++count;
    }
    return count;
}
