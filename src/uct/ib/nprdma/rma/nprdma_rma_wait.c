/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_wait.h"
#include "nprdma_rma_req.h"

/* Single stores, without a reply too large for a spare in between, after which
 * the next single store posts a spare */
#define UCT_NPRDMA_RMA_SPARE_AFTER  8


int uct_nprdma_rma_is_small(uint32_t length)
{
    return (sizeof(uct_nprdma_svc_reply_t) + length) <=
           UCT_NPRDMA_RMA_SMALL_SLOT;
}

/* Detach a wait from its endpoint and return its slot */
static void uct_nprdma_rma_wait_put(uct_nprdma_rma_res_t *res,
                                    uct_nprdma_rma_wait_t *wait)
{
    if (wait->is_large) {
        --wait->rma->num_large_slots;
        --res->num_large_slots;
    } else if (!wait->is_borrowed) {
        wait->rma->num_slots -= (wait->slot->pool == &res->pool);
    }
    if (!wait->is_borrowed) {
        uct_nprdma_bounce_put(wait->slot);
    }
    wait->rma = NULL;
    ucs_queue_push_head(&res->free_waits, &wait->queue);
}

void uct_nprdma_rma_wait_free(uct_nprdma_rma_res_t *res,
                              uct_nprdma_rma_wait_t *wait)
{
    uct_nprdma_rma_wait_put(res, wait);
    ++res->num_free_waits;
}

/* @return Maximum number of replies that an endpoint may wait for */
static uint32_t
uct_nprdma_rma_max_waits(const uct_nprdma_rma_iface_t *iface, int is_redo)
{
    uint32_t max_waits = ucs_min(UCT_NPRDMA_SVC_MAX_REPLIES -
                                 UCT_NPRDMA_RMA_REDO_WAITS,
                                 iface->net.config.svc_queue_len);

    return max_waits + (is_redo ? UCT_NPRDMA_RMA_REDO_WAITS : 0);
}

/* Decide whether the endpoint may wait for one more reply. If not, and others
 * have the waits, mark the interface as starved. */
static int uct_nprdma_rma_admit_wait(uct_nprdma_rma_iface_t *iface,
                                     const uct_nprdma_rma_t *rma, int is_redo)
{
    unsigned reserve = is_redo ? 0 : UCT_NPRDMA_RMA_REDO_IFACE_WAITS;

    if (rma->num_waits >= uct_nprdma_rma_max_waits(iface, is_redo)) {
        return 0;
    }

    if (iface->res->num_free_waits <= reserve) {
        iface->net.tx.starved = 1;
        return 0;
    }

    return is_redo ||
           uct_nprdma_credits_has_share(rma->num_waits,
                                        iface->res->num_free_waits, reserve);
}

static uct_nprdma_slot_t *
uct_nprdma_rma_wait_slot(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                         uint32_t length, int is_redo)
{
    return uct_nprdma_rma_is_small(length) ?
           uct_nprdma_rma_pool_get(iface, rma, &iface->res->small_pool,
                                   rma->num_waits, is_redo) :
           uct_nprdma_rma_get_slot(iface, rma, is_redo);
}

/* Take a free wait and post its receive, into `borrowed` if that is not NULL.
 * The caller counts it. */
static uct_nprdma_rma_wait_t *
uct_nprdma_rma_wait_get(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        uint32_t length, int is_redo,
                        uct_nprdma_slot_t *borrowed)
{
    uct_nprdma_rma_res_t *res = iface->res;
    uct_nprdma_rma_wait_t *wait;
    uct_nprdma_slot_t *slot;

    slot = (borrowed != NULL) ? borrowed :
           uct_nprdma_rma_wait_slot(iface, rma, length, is_redo);
    if (slot == NULL) {
        return NULL;
    }

    wait = ucs_queue_pull_elem_non_empty(&res->free_waits,
                                         uct_nprdma_rma_wait_t, queue);
    wait->is_large    = 0;
    wait->is_borrowed = (borrowed != NULL);
    wait->slot        = slot;
    wait->rma         = rma;
    rma->num_slots   += !wait->is_borrowed && (slot->pool == &res->pool);
    if (uct_nprdma_conn_post_recv(&iface->net, &rma->ep->net.svc, slot,
                                  wait->index) != UCS_OK) {
        uct_nprdma_rma_wait_put(res, wait);
        return NULL;
    }
    return wait;
}

/* Take the spare for the next reply, whatever that answers */
static uct_nprdma_rma_wait_t *
uct_nprdma_rma_spare_take(uct_nprdma_rma_res_t *res, uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_wait_t *wait = rma->spare;

    rma->spare = NULL;
    --res->num_spares;
    return wait;
}

static uct_nprdma_rma_wait_t *
uct_nprdma_rma_wait_begin(uct_nprdma_rma_res_t *res, uct_nprdma_rma_t *rma,
                          uct_nprdma_rma_wait_t *wait, uint32_t length,
                          uct_nprdma_rma_kind_t kind)
{
    wait->kind   = kind;
    wait->length = length;
    wait->failed = UCS_OK;
    wait->comp   = NULL;
    --res->num_free_waits;
    ucs_queue_push(&rma->waits, &wait->queue);
    ++rma->num_waits;
    return wait;
}

/* Use up the spare, because the next reply is too large for it. Nonzero if
 * there is no spare any more. */
static int
uct_nprdma_rma_spare_use_up(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_res_t *res = iface->res;
    uct_nprdma_svc_request_t request;
    uct_nprdma_rma_wait_t *wait;
    uct_nprdma_slot_t *slot;

    /* One for the NOP, one for the request behind it */
    if (!uct_nprdma_rma_admit_redo(iface, rma, 2) ||
        !uct_nprdma_rma_small_slot(iface, rma, sizeof(request), 1, &slot)) {
        return 0;
    }

    wait = uct_nprdma_rma_wait_begin(res, rma,
                                     uct_nprdma_rma_spare_take(res, rma), 0,
                                     UCT_NPRDMA_RMA_ACK);
    uct_nprdma_rma_fill_request(&request, UCT_NPRDMA_SVC_NOP, 0, 0, 0);
    return uct_nprdma_rma_send_small(iface, rma, &request, sizeof(request),
                                     slot, wait) == UCS_OK;
}

uct_nprdma_rma_wait_t *
uct_nprdma_rma_wait_add(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        uint32_t length, uct_nprdma_rma_kind_t kind,
                        int is_redo, uct_nprdma_slot_t *slot)
{
    uct_nprdma_rma_res_t *res = iface->res;
    uct_nprdma_rma_wait_t *wait;

    if (!uct_nprdma_rma_admit_wait(iface, rma, is_redo)) {
        return NULL;
    }

    if (ucs_unlikely(!uct_nprdma_rma_is_small(length))) {
        rma->num_alone = 0;
        if ((rma->spare != NULL) &&
            (!uct_nprdma_rma_spare_use_up(iface, rma) ||
             !uct_nprdma_rma_admit_wait(iface, rma, is_redo))) {
            return NULL;
        }
    }

    wait = (rma->spare != NULL) ?
           uct_nprdma_rma_spare_take(res, rma) :
           uct_nprdma_rma_wait_get(iface, rma, length, is_redo,
                                   uct_nprdma_rma_is_small(length) ? NULL :
                                                                     slot);
    return (wait == NULL) ? NULL :
           uct_nprdma_rma_wait_begin(res, rma, wait, length, kind);
}

void uct_nprdma_rma_wait_set_large(uct_nprdma_rma_res_t *res,
                                   uct_nprdma_rma_wait_t *wait)
{
    wait->is_large        = 1;
    wait->rma->num_slots -= (wait->slot->pool == &res->pool);
    ++wait->rma->num_large_slots;
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

    /* While the pool has not grown, slots are scarcer than waits */
    if ((rma->spare != NULL) ||
        (res->num_spares == UCT_NPRDMA_RMA_MAX_SPARES) ||
        (pool->num_free < (pool->num_slots / 2))) {
        return;
    }

    rma->spare = uct_nprdma_rma_wait_get(iface, rma, 0, 0, NULL);
    res->num_spares += (rma->spare != NULL);
}

void uct_nprdma_rma_spare_free(uct_nprdma_rma_res_t *res,
                               uct_nprdma_rma_t *rma)
{
    if (rma->spare != NULL) {
        uct_nprdma_rma_wait_put(res, uct_nprdma_rma_spare_take(res, rma));
    }
}
