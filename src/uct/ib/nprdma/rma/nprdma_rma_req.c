/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_req.h"
#include "nprdma_rma_flush.h"

#include "nprdma_assert.h"

#include <inttypes.h>


/* Number of requests without reply after which one asks for an
 * acknowledgement */
#define UCT_NPRDMA_RMA_ACK_INTERVAL   1024

/* The same while the NIC has operations, which must not overtake requests that
 * overlap: then most of the unacknowledged requests are in rma->recent */
#define UCT_NPRDMA_RMA_ACK_INTERVAL_OPS  (UCT_NPRDMA_RMA_RECENT / 2)

/* Single stores, without a reply too large for a spare in between, after which
 * the next single store posts a spare */
#define UCT_NPRDMA_RMA_SPARE_AFTER  8


int uct_nprdma_rma_admit_redo(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_rma_t *rma, int32_t count)
{
    return uct_nprdma_conn_admit_redo(&iface->net, &rma->ep->net.svc, count) &&
           uct_nprdma_rma_can_count(rma);
}

/* Take a slot of a pool that endpoints share, if the endpoint, which has
 * `held`, has not its share; or NULL. With is_redo the share does not count. */
static uct_nprdma_slot_t *
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
        ((reply != NULL) && reply->kind->is_ordered)) {
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

static void
uct_nprdma_rma_ack_reply(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_reply_t *reply, const void *data,
                         ucs_status_t *status)
{
    /* This request has no completion, so a flush reports its failure */
    if (ucs_unlikely((*status != UCS_OK) && (reply->failed == UCS_OK))) {
        reply->rma->error = *status;
    }
}

static const uct_nprdma_rma_kind_t uct_nprdma_rma_ack_kind = {
    .func = uct_nprdma_rma_ack_reply
};

/* The connection fails: the receive of the reply is flushed */
static void
uct_nprdma_rma_send_failed(const uct_nprdma_rma_t *rma, uct_nprdma_slot_t *slot,
                           uct_nprdma_rma_reply_t *reply)
{
    if (slot != NULL) {
        uct_nprdma_bounce_put(slot);
    }
    if (reply != NULL) {
        reply->kind = &uct_nprdma_rma_ack_kind;
        reply->comp = NULL;
        reply->sn   = rma->sn;
    }
}

static void uct_nprdma_rma_spare_post(uct_nprdma_rma_iface_t *iface,
                                      uct_nprdma_rma_t *rma);

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
                &uct_nprdma_rma_ack_kind, 1, NULL);
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
         * reserve: see nprdma_conn.h */
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

    reply = uct_nprdma_rma_reply_add(iface, rma, 0, &uct_nprdma_rma_ack_kind, 1,
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


/* ---- receives for replies ---- */

/* Detach a reply from its endpoint, and return its slot unless it is the
 * caller's */
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
                           const uct_nprdma_rma_kind_t *kind)
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
                                       &uct_nprdma_rma_ack_kind);
    uct_nprdma_rma_fill_request(&request, UCT_NPRDMA_SVC_NOP, 0, 0, 0);
    return uct_nprdma_rma_send_small(iface, rma, &request, sizeof(request),
                                     slot, reply) == UCS_OK;
}

uct_nprdma_rma_reply_t *
uct_nprdma_rma_reply_add(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                         uint32_t length, const uct_nprdma_rma_kind_t *kind,
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

/* A single store has been sent: post a spare if more of them are likely, and if
 * one is available */
static void uct_nprdma_rma_spare_post(uct_nprdma_rma_iface_t *iface,
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


/* ---- errors ---- */

void uct_nprdma_rma_report(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                           const char *name, uint64_t address, size_t length,
                           ucs_status_t status)
{
    const uct_nprdma_rma_ep_t *ep = rma->ep;

    ucs_log(rma->is_reported ? UCS_LOG_LEVEL_DEBUG : UCS_LOG_LEVEL_ERROR,
            "%s: %s of %zu bytes at 0x%" PRIx64 " failed at the peer with lid "
            "%u UD queue pair 0x%x: %s",
            uct_nprdma_rma_dev_name(iface), name, length, address,
            (ep == NULL) ? 0 : ep->net.dev_addr.lid,
            (ep == NULL) ? 0 : ep->net.iface_addr.ud_qpn,
            ucs_status_string(status));
    rma->is_reported = 1;
}

void uct_nprdma_rma_report_local(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma, int is_get,
                                 const void *buffer, size_t length)
{
    ucs_log(rma->is_reported ? UCS_LOG_LEVEL_DEBUG : UCS_LOG_LEVEL_ERROR,
            "%s: %zu bytes at %p were unmapped or protected before the %s that "
            "uses them was complete",
            uct_nprdma_rma_dev_name(iface), length, buffer,
            is_get ? "get" : "put");
    rma->is_reported = 1;
}

void uct_nprdma_rma_report_on_demand(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_rma_t *rma, int is_get,
                                     const void *buffer, uint64_t address,
                                     size_t length, ucs_status_t status)
{
    const char *reason;

    /* Completion statuses of the peer's device and of the own one */
    if (status == UCS_ERR_CONNECTION_RESET) {
        reason = "the peer's device could not bring its memory in, or the key "
                 "has ended";
    } else if (status == UCS_ERR_IO_ERROR) {
        reason = "the device could not bring the local memory in";
    } else {
        return;
    }

    ucs_log(rma->is_reported ? UCS_LOG_LEVEL_DEBUG : UCS_LOG_LEVEL_ERROR,
            "%s: %s of %zu bytes between %p and the peer's 0x%" PRIx64
            " failed with on-demand paging: %s (not mapped, protected, "
            "truncated, under a userfaultfd?)",
            uct_nprdma_rma_dev_name(iface), is_get ? "get" : "put", length,
            buffer, address, reason);
    rma->is_reported = 1;
}

/* Log the failures that a reply reports: that of its own request, and
 * reply->failed, that of the first earlier request without a reply. Slices log
 * their failures themselves. */
static void
uct_nprdma_rma_report_reply(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_rma_t *rma,
                            const uct_nprdma_rma_reply_t *reply,
                            uint32_t failed_sn, ucs_status_t status)
{
    const uct_nprdma_rma_recent_t *recent =
            &rma->recent[failed_sn % UCT_NPRDMA_RMA_RECENT];
    int is_recent = recent->sn == failed_sn;

    if (reply->failed != UCS_OK) {
        uct_nprdma_rma_report(iface, rma,
                              is_recent ? "put or atomic" :
                                          "one of many puts and atomics",
                              is_recent ? recent->address : 0,
                              is_recent ? recent->length : 0, reply->failed);
    }

    if ((status != UCS_OK) && !reply->kind->is_of_slice) {
        uct_nprdma_rma_report(iface, rma,
                              uct_nprdma_svc_type_info(reply->type)->name,
                              reply->address, reply->size, status);
    }
}


/* ---- replies ---- */

void uct_nprdma_rma_reply_end(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_rma_t *rma,
                              uct_nprdma_rma_reply_t *reply, const void *data,
                              ucs_status_t status)
{
    uct_completion_t *comp = reply->comp;

    ucs_queue_pull_non_empty(&rma->replies);
    --rma->num_replies;
    /* First: the completion of the operation may be that of a flush as well */
    if (ucs_unlikely(reply->failed != UCS_OK)) {
        rma->error = reply->failed;
    }
    if (reply->kind->func != NULL) {
        reply->kind->func(iface, reply, data, &status);
    }
    ucs_trace_req("ep %p: request sn %u complete: %s", rma->ep, reply->sn,
                  ucs_status_string(status));
    uct_nprdma_rma_reply_put(iface->res, reply);
    ++iface->res->num_free_replies;
    if (comp != NULL) {
        uct_invoke_completion(comp, status);
    }
}

static void uct_nprdma_rma_malformed(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_conn_t *conn,
                                     const struct ibv_wc *wc)
{
    ucs_error("malformed reply of %u bytes on qp 0x%x, closing the connection",
              wc->byte_len, wc->qp_num);
    uct_nprdma_conn_fail(&iface->net, conn, UCS_ERR_IO_ERROR);
}

unsigned
uct_nprdma_rma_handle_reply(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_conn_t *conn, uint32_t index,
                            const struct ibv_wc *wc)
{
    uct_nprdma_rma_reply_t *reply = &iface->res->replies[index];
    uct_nprdma_rma_t *rma         = reply->rma;
    const uct_nprdma_svc_reply_t *header;

    /* A flushed receive is not a reply, and a late reply is discarded. After
     * the end of a connection, uct_nprdma_rma_ep_fail() or _cleanup() completes
     * the operations that waited for it. */
    if ((conn->ep == NULL) || (rma == NULL) ||
        (ucs_derived_of(conn->ep, uct_nprdma_rma_ep_t)->rma != rma) ||
        (rma->status != UCS_OK) || (wc->status != IBV_WC_SUCCESS)) {
        return 0;
    }

    /* No request is outstanding for a spare, so a reply to it is malformed; and
     * a WRITE of the peer leaves what was in the slot before */
    header = ucs_unlikely((reply == rma->spare) ||
                          (wc->opcode != IBV_WC_RECV)) ? NULL :
            uct_nprdma_svc_reply_parse(reply->slot->data, wc->byte_len,
                                       reply->type, reply->sn, reply->length);
    if ((header == NULL) ||
        (reply != ucs_queue_head_elem_non_empty(&rma->replies,
                                                uct_nprdma_rma_reply_t,
                                                queue))) {
        uct_nprdma_rma_malformed(iface, conn, wc);
        return 0;
    }

    ++iface->net.stats->svc_replies;
    rma->done_sn = reply->sn;
    if (ucs_unlikely((header->failed_status | header->status) !=
                     UCT_NPRDMA_SVC_OK)) {
        reply->failed = uct_nprdma_svc_ucs_status(header->failed_status);
        uct_nprdma_rma_report_reply(iface, rma, reply, header->failed_sn,
                                    uct_nprdma_svc_ucs_status(header->status));
    }

    uct_nprdma_rma_enter(rma);
    if (ucs_unlikely(!ucs_list_is_empty(&rma->ops.unacked))) {
        /* Progress starts the operations that waited for the request */
        uct_nprdma_rma_stall(iface->res, rma);
    }
    uct_nprdma_rma_reply_end(iface, rma, reply, header + 1,
                             uct_nprdma_svc_ucs_status(header->status));
    uct_nprdma_rma_check(iface, rma);
    uct_nprdma_rma_leave(rma);
    return 1;
}
