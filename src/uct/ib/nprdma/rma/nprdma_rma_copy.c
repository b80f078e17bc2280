/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_copy.h"
#include "nprdma_rma_req.h"


/* Maximum number of requests of such copies in flight per endpoint: a slow
 * target must not hold all slots of the interface. Large operations have a part
 * of them. */
#define UCT_NPRDMA_RMA_COPY_WINDOW   16
#define UCT_NPRDMA_RMA_LARGE_WINDOW  10

/* Large operations leave 1 / UCT_NPRDMA_RMA_LARGE_SHARE of the slots for data
 * to small ones, besides the reserve of redo */
#define UCT_NPRDMA_RMA_LARGE_SHARE   8


static int uct_nprdma_rma_copy_has_window(const uct_nprdma_rma_t *rma)
{
    return (rma->num_copies[0] + rma->num_copies[1]) <
           UCT_NPRDMA_RMA_COPY_WINDOW;
}

static void uct_nprdma_rma_copy_data(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_rma_t *rma,
                                     uct_nprdma_rma_copy_t *copy,
                                     size_t offset, void *data, size_t length)
{
    char *buffer = copy->buffer + offset;
    int is_get   = copy->is_get;

    copy->status = uct_nprdma_local_copy(&iface->local, is_get ? buffer : data,
                                         is_get ? data : buffer, length,
                                         buffer);
    if (ucs_unlikely(copy->status != UCS_OK)) {
        uct_nprdma_rma_report_local(iface, rma, is_get, buffer, length);
    }
}

static void
uct_nprdma_rma_copy_reply(uct_nprdma_rma_iface_t *iface,
                          uct_nprdma_rma_reply_t *reply, const void *data,
                          ucs_status_t *status)
{
    uct_nprdma_rma_copy_t *copy = reply->copy.range;
    uct_nprdma_rma_t *rma       = reply->rma;

    --rma->num_copies[copy->is_large];
    if (rma->status != UCS_OK) {
        return; /* The end of the connection completes all operations */
    }

    if (*status != UCS_OK) {
        /* The rest is not requested any more */
        copy->status = (copy->status == UCS_OK) ? *status : copy->status;
    } else if (copy->is_get && (copy->status == UCS_OK)) {
        uct_nprdma_rma_copy_data(iface, rma, copy, copy->done, (void*)data,
                                 reply->length);
    }

    copy->done += reply->copy.length;
    if ((copy->done == copy->requested) &&
        ((copy->requested == copy->length) || (copy->status != UCS_OK))) {
        if (copy->requested < copy->length) {
            ucs_queue_remove(&rma->copies[copy->is_large],
                             &copy->queue);
        }
        copy->func(iface, copy, copy->status);
    }
}

static const uct_nprdma_rma_kind_t uct_nprdma_rma_copy_kind = {
    .func        = uct_nprdma_rma_copy_reply,
    .is_ordered  = 1,
    .is_of_slice = 1
};

/* Send the next request of a range. Each STORE has a reply. Other requests may
 * be sent between them, so a later reply would not show which operation has
 * failed. */
static ucs_status_t
uct_nprdma_rma_copy_send_next(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_rma_t *rma,
                              uct_nprdma_rma_copy_t *copy)
{
    size_t piece            = uct_nprdma_net_dev(&iface->net)->config.max_piece;
    size_t length           = ucs_min(copy->length - copy->requested, piece);
    uct_nprdma_svc_request_t header, *request = &header;
    size_t size             = sizeof(header) + (copy->is_get ? 0 : length);
    uct_nprdma_slot_t *slot = NULL;
    uct_nprdma_rma_reply_t *reply;
    ucs_status_t status;

    if (!copy->is_get || (size > iface->net.config.max_inline)) {
        slot = uct_nprdma_rma_get_slot(iface, rma, 1);
        if (slot == NULL) {
            return UCS_ERR_NO_RESOURCE;
        }
        request = (uct_nprdma_svc_request_t*)slot->data;
    }

    reply = uct_nprdma_rma_reply_add(iface, rma, copy->is_get ? length : 0,
                                     &uct_nprdma_rma_copy_kind, 1, NULL);
    if (reply == NULL) {
        uct_nprdma_rma_small_slot_put(slot);
        return UCS_ERR_NO_RESOURCE;
    }

    if (copy->is_large) {
        uct_nprdma_rma_reply_set_large(iface->res, reply);
    }
    reply->copy.range  = copy;
    reply->copy.length = length;
    uct_nprdma_rma_fill_request(request,
                                copy->is_get ? UCT_NPRDMA_SVC_FETCH :
                                               UCT_NPRDMA_SVC_STORE,
                                copy->address + copy->requested, copy->key,
                                length);
    if (!copy->is_get) {
        uct_nprdma_rma_copy_data(iface, rma, copy, copy->requested, request + 1,
                                 length);
        if (ucs_unlikely(copy->status != UCS_OK)) {
            /* This function must not end the operation, so the reply to a NOP
             * does */
            uct_nprdma_rma_fill_request(request, UCT_NPRDMA_SVC_NOP, 0, 0, 0);
            size = sizeof(*request);
        }
    }

    status = uct_nprdma_rma_send(iface, rma, request, size, slot, reply);
    if (status == UCS_OK) {
        ++rma->num_copies[copy->is_large];
        copy->requested += length;
        if (copy->requested == copy->length) {
            ucs_queue_pull_non_empty(&rma->copies[copy->is_large]);
        }
    }
    return status;
}

int uct_nprdma_rma_copy_may_take(uct_nprdma_rma_iface_t *iface,
                                 const uct_nprdma_rma_t *rma)
{
    uct_nprdma_bounce_t *pool = &iface->res->pool;
    unsigned kept             = UCT_NPRDMA_RMA_REDO_SLOTS +
                                ucs_max(1, pool->max_slots /
                                           UCT_NPRDMA_RMA_LARGE_SHARE);

    if ((rma->num_large_slots == 0) &&
        ((rma->num_slots > 0) || (iface->res->num_large_slots == 0))) {
        return 1;
    }

    /* What is free must be free now: the pool may not be able to grow later */
    if (pool->num_free <= kept) {
        uct_nprdma_bounce_grow(pool);
    }
    return (pool->num_free > kept) &&
           uct_nprdma_bounce_has_share(pool, rma->num_large_slots, kept);
}

/* Check whether one more request of a large operation may be in flight. The
 * target executes it in order with those of small ones, so half of the quota
 * bounds their bytes. It leaves work requests and slots to small operations. */
static int uct_nprdma_rma_copy_may_send(uct_nprdma_rma_iface_t *iface,
                                        const uct_nprdma_rma_t *rma)
{
    const uct_nprdma_conn_t *conn = &rma->ep->net.svc;
    size_t piece                  =
            uct_nprdma_net_dev(&iface->net)->config.max_piece;
    size_t quota                  =
            uct_nprdma_sched_quota(&iface->res->ops.sched);

    return ((rma->num_copies[1] == 0) ||
            ((rma->num_copies[1] < UCT_NPRDMA_RMA_LARGE_WINDOW) &&
             uct_nprdma_rma_copy_has_window(rma) &&
             ((rma->num_copies[1] * piece) < (quota / 2)) &&
             (conn->credits > conn->small_reserve))) &&
           uct_nprdma_rma_copy_may_take(iface, rma);
}

/* @return The range whose next request is due, or NULL. */
static uct_nprdma_rma_copy_t *
uct_nprdma_rma_copy_next(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_t *rma)
{
    if (!ucs_queue_is_empty(&rma->copies[0]) &&
        ((rma->num_copies[0] == 0) || uct_nprdma_rma_copy_has_window(rma))) {
        return ucs_queue_head_elem_non_empty(&rma->copies[0],
                                             uct_nprdma_rma_copy_t, queue);
    }
    if (!ucs_queue_is_empty(&rma->copies[1]) &&
        uct_nprdma_rma_copy_may_send(iface, rma)) {
        return ucs_queue_head_elem_non_empty(&rma->copies[1],
                                             uct_nprdma_rma_copy_t, queue);
    }
    return NULL;
}

unsigned uct_nprdma_rma_copy_send(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_rma_t *rma)
{
    unsigned count = 0;
    uct_nprdma_rma_copy_t *copy;

    while (uct_nprdma_rma_admit_redo(iface, rma, 1)) {
        copy = uct_nprdma_rma_copy_next(iface, rma);
        if ((copy == NULL) ||
            (copy->status != UCS_OK) || /* Ends with its last reply */
            (uct_nprdma_rma_copy_send_next(iface, rma, copy) != UCS_OK)) {
            break;
        }
        ++count;
    }
    return count;
}

void uct_nprdma_rma_copy_add(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma,
                             uct_nprdma_rma_copy_t *copy)
{
    copy->requested = 0;
    copy->done      = 0;
    copy->status    = UCS_OK;
    ucs_queue_push(&rma->copies[copy->is_large], &copy->queue);
    uct_nprdma_rma_copy_send(iface, rma);
    if (!ucs_queue_is_empty(&rma->copies[1]) ||
        !ucs_queue_is_empty(&rma->copies[0])) {
        uct_nprdma_rma_stall(iface->res, rma);
    }
}
