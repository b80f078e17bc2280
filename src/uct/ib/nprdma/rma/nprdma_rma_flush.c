/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_flush.h"
#include "nprdma_rma_req.h"


int uct_nprdma_rma_is_unordered(const uct_nprdma_rma_ep_t *ep)
{
    return (ep->rma != NULL) && !ucs_list_is_empty(&ep->rma->ops.order.ops);
}

int uct_nprdma_rma_is_idle(const uct_nprdma_rma_ep_t *ep)
{
    uct_nprdma_rma_t *rma = ep->rma;

    return (rma == NULL) ||
           ((rma->done_sn == rma->sn) &&
            ucs_list_is_empty(&rma->ops.order.ops));
}

int uct_nprdma_rma_has_error(const uct_nprdma_rma_ep_t *ep)
{
    return (ep->rma != NULL) && (ep->rma->error != UCS_OK);
}

ucs_status_t uct_nprdma_rma_flush(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_rma_ep_t *ep,
                                  uct_nprdma_rma_flush_t *flush)
{
    uct_nprdma_rma_t *rma = ep->rma;
    ucs_status_t status   = UCS_OK;

    if (uct_nprdma_rma_is_idle(ep)) {
        if (rma != NULL) {
            status     = rma->error;
            rma->error = UCS_OK;
        }
        return status;
    }

    status = uct_nprdma_rma_request_ack(iface, rma);
    if (status != UCS_OK) {
        return status;
    }

    if (flush != NULL) {
        flush->sn = rma->sn;
        flush->op = rma->ops.order.sn;
        ucs_queue_push(&rma->flushes, &flush->queue);
    }
    return UCS_INPROGRESS;
}

ucs_status_t uct_nprdma_rma_fence(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_rma_ep_t *ep)
{
    uct_nprdma_rma_t *rma = ep->rma;

    /* While even requests may not pass a fence, the user cannot have posted
     * anything behind it. Only redo has been posted, which must not move the
     * fence */
    if (rma->is_fenced && (ep->net.blocked & UCT_NPRDMA_EP_FENCED_RMA)) {
        return UCS_OK;
    }

    rma->is_fenced = 1;
    rma->fence_sn  = rma->sn;
    rma->fence_op  = rma->ops.order.sn;
    if (uct_nprdma_rma_request_ack(iface, rma) != UCS_OK) {
        rma->needs_ack = 1;
        uct_nprdma_rma_stall(iface->res, rma);
    }
    return UCS_OK;
}

static void
uct_nprdma_rma_check_fence(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    if (rma->is_fenced &&
        uct_nprdma_order_is_done(&rma->ops.order, rma->fence_op) &&
        UCT_NPRDMA_RMA_SN_CMP(rma->done_sn, >=, rma->fence_sn)) {
        rma->is_fenced = 0;
        uct_nprdma_net_ep_unfence(&iface->net, &rma->ep->net);
    }
}

static void uct_nprdma_rma_flushes_done(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_rma_t *rma)
{
    ucs_status_t status = (rma->status != UCS_OK) ? rma->status : rma->error;
    uct_nprdma_rma_flush_t *flush;

    while (!ucs_queue_is_empty(&rma->flushes)) {
        flush = ucs_queue_head_elem_non_empty(&rma->flushes,
                                              uct_nprdma_rma_flush_t, queue);
        if (UCT_NPRDMA_RMA_SN_CMP(flush->sn, >, rma->done_sn) ||
            !uct_nprdma_order_is_done(&rma->ops.order, flush->op)) {
            break;
        }

        ucs_queue_pull_non_empty(&rma->flushes);
        rma->error = UCS_OK; /* reported now */
        flush->func(iface, rma->ep, flush, status);
    }
}

void uct_nprdma_rma_check_slow(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma)
{
    if (ucs_unlikely(!ucs_queue_is_empty(&rma->flushes)) &&
        (rma->ep != NULL)) {
        uct_nprdma_rma_flushes_done(iface, rma);
    }
    if (ucs_likely(rma->ep != NULL)) {
        uct_nprdma_rma_check_fence(iface, rma);
        uct_nprdma_net_ep_schedule(&iface->net, &rma->ep->net);
    }
}


/* ---- messages ---- */

/* Count a message that the peer may have to keep. Zero if an acknowledgement
 * has to be awaited. */
static int uct_nprdma_rma_count_message(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_rma_t *rma)
{
    if (rma->num_behind == UCT_NPRDMA_RMA_MAX_BEHIND) {
        /* Also if the answer is awaited already: behind_sn may be older than
         * half of all numbers, so that the comparison is wrong until then */
        if (uct_nprdma_rma_request_ack(iface, rma) != UCS_OK) {
            rma->held_needs_ack = 1;
            uct_nprdma_rma_stall(iface->res, rma);
        }
        if (UCT_NPRDMA_RMA_SN_CMP(rma->done_sn, <, rma->behind_sn)) {
            return 0;
        }

        rma->num_behind = 0;
        rma->behind_sn  = rma->sn;
    }

    ++rma->num_behind;
    return 1;
}

int uct_nprdma_rma_admit_message(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_ep_t *ep, uint64_t *follows_p)
{
    uct_nprdma_rma_t *rma = ep->rma;

    if (rma->ops.order.num_writes > 0) {
        return 0;
    }

    /* Of all 64 bits: any number of gets may have followed the last put */
    if ((rma->count - (uint32_t)(rma->sn - rma->done_sn)) >=
        rma->write_count) {
        ep->net.blocked &= ~UCT_NPRDMA_EP_BEHIND;
        rma->num_behind  = 0;
        rma->behind_sn   = rma->done_sn;
        *follows_p       = 0;
        return 1;
    }

    *follows_p = rma->write_count;
    return uct_nprdma_rma_count_message(iface, rma);
}
