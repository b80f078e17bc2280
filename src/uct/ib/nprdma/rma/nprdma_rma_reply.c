/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_reply.h"
#include "nprdma_rma_req.h"

/* Single stores, without a reply too large for a spare in between, after which
 * the next single store posts a spare */
#define UCT_NPRDMA_RMA_SPARE_AFTER  8


int uct_nprdma_rma_is_small(uint32_t length)
{
    return (sizeof(uct_nprdma_svc_reply_t) + length) <=
           UCT_NPRDMA_RMA_SMALL_SLOT;
}

/* Detach a reply from its endpoint and return its slot */
static void uct_nprdma_rma_reply_put(uct_nprdma_rma_res_t *res,
                                     uct_nprdma_rma_reply_t *reply)
{
    if (reply->is_large) {
        --reply->rma->num_large_slots;
        --res->num_large_slots;
    } else if (!reply->is_borrowed) {
        reply->rma->num_slots -= (reply->slot->pool == &res->pool);
    }
    if (!reply->is_borrowed) {
        uct_nprdma_bounce_put(reply->slot);
    }
    reply->rma = NULL;
    ucs_queue_push_head(&res->free_replies, &reply->queue);
}

void uct_nprdma_rma_reply_free(uct_nprdma_rma_res_t *res,
                               uct_nprdma_rma_reply_t *reply)
{
    uct_nprdma_rma_reply_put(res, reply);
    ++res->num_free_replies;
}

/* @return Maximum number of replies that an endpoint may wait for */
static uint32_t
uct_nprdma_rma_max_replies(const uct_nprdma_rma_iface_t *iface, int is_redo)
{
    uint32_t max_replies = ucs_min(UCT_NPRDMA_SVC_MAX_REPLIES -
                                   UCT_NPRDMA_RMA_REDO_REPLIES,
                                   iface->net.config.svc_queue_len);

    return max_replies + (is_redo ? UCT_NPRDMA_RMA_REDO_REPLIES : 0);
}

/* Decide whether the endpoint may wait for one more reply. If not, and others
 * have the replies, mark the interface as starved. */
static int uct_nprdma_rma_admit_reply(uct_nprdma_rma_iface_t *iface,
                                      const uct_nprdma_rma_t *rma, int is_redo)
{
    unsigned reserve = is_redo ? 0 : UCT_NPRDMA_RMA_REDO_IFACE_REPLIES;

    if (rma->num_replies >= uct_nprdma_rma_max_replies(iface, is_redo)) {
        return 0;
    }

    if (iface->res->num_free_replies <= reserve) {
        iface->net.tx.starved = 1;
        return 0;
    }

    return is_redo ||
           uct_nprdma_credits_has_share(rma->num_replies,
                                        iface->res->num_free_replies, reserve);
}

static uct_nprdma_slot_t *
uct_nprdma_rma_reply_slot(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                          uint32_t length, int is_redo)
{
    return uct_nprdma_rma_is_small(length) ?
           uct_nprdma_rma_pool_get(iface, rma, &iface->res->small_pool,
                                   rma->num_replies, is_redo) :
           uct_nprdma_rma_get_slot(iface, rma, is_redo);
}

/* Take a free reply and post its receive, into `borrowed` if that is not NULL.
 * The caller counts it. */
static uct_nprdma_rma_reply_t *
uct_nprdma_rma_reply_get(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                         uint32_t length, int is_redo,
                         uct_nprdma_slot_t *borrowed)
{
    uct_nprdma_rma_res_t *res = iface->res;
    uct_nprdma_rma_reply_t *reply;
    uct_nprdma_slot_t *slot;

    slot = (borrowed != NULL) ? borrowed :
           uct_nprdma_rma_reply_slot(iface, rma, length, is_redo);
    if (slot == NULL) {
        return NULL;
    }

    reply = ucs_queue_pull_elem_non_empty(&res->free_replies,
                                          uct_nprdma_rma_reply_t, queue);
    reply->is_large    = 0;
    reply->is_borrowed = (borrowed != NULL);
    reply->slot        = slot;
    reply->rma         = rma;
    rma->num_slots   += !reply->is_borrowed && (slot->pool == &res->pool);
    if (uct_nprdma_conn_post_recv(&iface->net, &rma->ep->net.svc, slot,
                                  reply->index) != UCS_OK) {
        uct_nprdma_rma_reply_put(res, reply);
        return NULL;
    }
    return reply;
}

/* Take the spare for the next reply, whatever that answers */
static uct_nprdma_rma_reply_t *
uct_nprdma_rma_spare_take(uct_nprdma_rma_res_t *res, uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_reply_t *reply = rma->spare;

    rma->spare = NULL;
    --res->num_spares;
    return reply;
}

static uct_nprdma_rma_reply_t *
uct_nprdma_rma_reply_begin(uct_nprdma_rma_res_t *res, uct_nprdma_rma_t *rma,
                           uct_nprdma_rma_reply_t *reply, uint32_t length,
                           uct_nprdma_rma_kind_t kind)
{
    reply->kind   = kind;
    reply->length = length;
    reply->failed = UCS_OK;
    reply->comp   = NULL;
    --res->num_free_replies;
    ucs_queue_push(&rma->replies, &reply->queue);
    ++rma->num_replies;
    return reply;
}

/* Use up the spare, because the next reply is too large for it. Nonzero if
 * there is no spare any more. */
static int
uct_nprdma_rma_spare_use_up(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_res_t *res = iface->res;
    uct_nprdma_svc_request_t request;
    uct_nprdma_rma_reply_t *reply;
    uct_nprdma_slot_t *slot;

    /* One for the NOP, one for the request behind it */
    if (!uct_nprdma_rma_admit_redo(iface, rma, 2) ||
        !uct_nprdma_rma_small_slot(iface, rma, sizeof(request), 1, &slot)) {
        return 0;
    }

    reply = uct_nprdma_rma_reply_begin(res, rma,
                                       uct_nprdma_rma_spare_take(res, rma), 0,
                                       UCT_NPRDMA_RMA_ACK);
    uct_nprdma_rma_fill_request(&request, UCT_NPRDMA_SVC_NOP, 0, 0, 0);
    return uct_nprdma_rma_send_small(iface, rma, &request, sizeof(request),
                                     slot, reply) == UCS_OK;
}

uct_nprdma_rma_reply_t *
uct_nprdma_rma_reply_add(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                         uint32_t length, uct_nprdma_rma_kind_t kind,
                         int is_redo, uct_nprdma_slot_t *slot)
{
    uct_nprdma_rma_res_t *res = iface->res;
    uct_nprdma_rma_reply_t *reply;

    if (!uct_nprdma_rma_admit_reply(iface, rma, is_redo)) {
        return NULL;
    }

    if (ucs_unlikely(!uct_nprdma_rma_is_small(length))) {
        rma->num_alone = 0;
        if ((rma->spare != NULL) &&
            (!uct_nprdma_rma_spare_use_up(iface, rma) ||
             !uct_nprdma_rma_admit_reply(iface, rma, is_redo))) {
            return NULL;
        }
    }

    reply = (rma->spare != NULL) ?
           uct_nprdma_rma_spare_take(res, rma) :
           uct_nprdma_rma_reply_get(iface, rma, length, is_redo,
                                    uct_nprdma_rma_is_small(length) ? NULL :
                                                                     slot);
    return (reply == NULL) ? NULL :
           uct_nprdma_rma_reply_begin(res, rma, reply, length, kind);
}

void uct_nprdma_rma_reply_set_large(uct_nprdma_rma_res_t *res,
                                    uct_nprdma_rma_reply_t *reply)
{
    reply->is_large        = 1;
    reply->rma->num_slots -= (reply->slot->pool == &res->pool);
    ++reply->rma->num_large_slots;
    ++res->num_large_slots;
}

void uct_nprdma_rma_spare_post(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_res_t *res       = iface->res;
    const uct_nprdma_bounce_t *pool = &res->small_pool;

    if (++rma->num_alone <= UCT_NPRDMA_RMA_SPARE_AFTER) {
        return;
    }

    /* While the pool has not grown, slots are scarcer than replies */
    if ((rma->spare != NULL) ||
        (res->num_spares == UCT_NPRDMA_RMA_MAX_SPARES) ||
        (pool->num_free < (pool->num_slots / 2))) {
        return;
    }

    rma->spare = uct_nprdma_rma_reply_get(iface, rma, 0, 0, NULL);
    res->num_spares += (rma->spare != NULL);
}

void uct_nprdma_rma_spare_free(uct_nprdma_rma_res_t *res,
                               uct_nprdma_rma_t *rma)
{
    if (rma->spare != NULL) {
        uct_nprdma_rma_reply_put(res, uct_nprdma_rma_spare_take(res, rma));
    }
}
