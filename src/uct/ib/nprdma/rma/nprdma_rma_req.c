/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_held.h"
#include "nprdma_rma_reply.h"
#include "nprdma_rma_wait.h"
#include "uct/ib/nprdma/net/nprdma_tx.h"

#include <ucs/debug/memtrack_int.h>


/* Slots for data, shared by puts on their way and replies to gets */
#define UCT_NPRDMA_RMA_SLOTS          32

/* Stores in a row after which the target is asked how far it is */
#define UCT_NPRDMA_RMA_ACK_INTERVAL   1024

/* The same while the NIC has operations, which must not overtake stores to the
 * same place: most of the stores on their way are remembered then */
#define UCT_NPRDMA_RMA_ACK_INTERVAL_OPT  (UCT_NPRDMA_RMA_RECENT / 2)


static ucs_status_t uct_nprdma_rma_res_init(uct_nprdma_rma_iface_t *iface)
{
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(&iface->net);
    uct_nprdma_rma_res_t *res;
    ucs_status_t status;
    unsigned i;

    res = ucs_calloc(1, sizeof(*res), "nprdma_rma_res");
    if (res == NULL) {
        ucs_error("failed to allocate the RMA side of an interface");
        return UCS_ERR_NO_MEMORY;
    }

    status = uct_nprdma_bounce_init(&res->pool, dev,
                                    UCT_NPRDMA_SVC_SLOT_SIZE,
                                    UCT_NPRDMA_RMA_SLOTS, 4, "RMA data");
    if (status != UCS_OK) {
        goto err_free;
    }

    status = uct_nprdma_bounce_init(&res->small_pool, dev,
                                    UCT_NPRDMA_RMA_SMALL_SLOT,
                                    UCT_NPRDMA_RMA_NUM_WAITS,
                                    2 * UCT_NPRDMA_RMA_MAX_SPARES,
                                    "RMA replies");
    if (status != UCS_OK) {
        goto err_pool;
    }

    status = uct_nprdma_opt_iface_init(iface, &res->opt);
    if (status != UCS_OK) {
        goto err_small_pool;
    }

    ucs_list_head_init(&res->stalled);
    ucs_queue_head_init(&res->free_waits);
    res->num_free_waits = UCT_NPRDMA_RMA_MAX_REPLIES;
    for (i = 0; i < UCT_NPRDMA_RMA_NUM_WAITS; ++i) {
        res->waits[i].index = i;
        ucs_queue_push(&res->free_waits, &res->waits[i].queue);
    }

    uct_nprdma_rma_watch_init(iface, &res->watch);
    iface->res = res;
    return UCS_OK;

err_small_pool:
    uct_nprdma_bounce_cleanup(&res->small_pool);
err_pool:
    uct_nprdma_bounce_cleanup(&res->pool);
err_free:
    ucs_free(res);
    return status;
}

void uct_nprdma_rma_res_cleanup(uct_nprdma_rma_iface_t *iface)
{
    uct_nprdma_rma_res_t *res = iface->res;

    if (res != NULL) {
        uct_nprdma_opt_iface_cleanup(&res->opt);
        uct_nprdma_bounce_cleanup(&res->small_pool);
        uct_nprdma_bounce_cleanup(&res->pool);
        ucs_free(res);
        iface->res = NULL;
    }
}

static ucs_status_t
uct_nprdma_rma_ep_init(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_ep_t *ep)
{
    uct_nprdma_rma_t *rma;
    ucs_status_t status;

    if (iface->res == NULL) {
        status = uct_nprdma_rma_res_init(iface);
        if (status != UCS_OK) {
            return status;
        }
    }

    rma = ucs_calloc(1, sizeof(*rma), "nprdma_rma");
    if (rma == NULL) {
        ucs_error("failed to allocate the RMA side of an endpoint");
        return UCS_ERR_NO_MEMORY;
    }

    rma->ep = ep;
    ucs_queue_head_init(&rma->waits);
    ucs_queue_head_init(&rma->flushes);
    ucs_queue_head_init(&rma->larges);
    uct_nprdma_opt_ep_init(&rma->opt,
                           iface->config->atomic_order);
    ep->rma = rma;
    return UCS_OK;
}

ucs_status_t uct_nprdma_rma_begin_slow(uct_nprdma_rma_iface_t *iface,
                                       uct_nprdma_rma_ep_t *ep,
                                       uint32_t blocked)
{
    ucs_status_t status;

    if (ep->net.blocked & blocked) {
        return uct_nprdma_net_ep_refusal(&ep->net);
    }

    /* First operation of an endpoint, or one that meets it while connecting */
    if (ep->rma == NULL) {
        status = uct_nprdma_rma_ep_init(iface, ep);
        if (status != UCS_OK) {
            return status;
        }
    }

    if (ep->net.svc.state == UCT_NPRDMA_CONN_NONE) {
        return uct_nprdma_conn_start(&iface->net, &ep->net, &ep->net.svc,
                                     UCT_NPRDMA_CONN_SVC);
    }

    return UCS_OK;
}

int uct_nprdma_rma_can_redo(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_rma_t *rma, int32_t count)
{
    return uct_nprdma_conn_can_redo(&iface->net, &rma->ep->net.svc, count) &&
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

/*
 * Remember what a request accesses. An operation of opt.order answers for what
 * it sends itself: it is there until the reply has come.
 */
static void uct_nprdma_rma_remember(uct_nprdma_rma_t *rma,
                                    const uct_nprdma_svc_request_t *request,
                                    const uct_nprdma_rma_wait_t *wait)
{
    uct_nprdma_rma_recent_t *recent =
            &rma->recent[rma->sn % UCT_NPRDMA_RMA_RECENT];
    uct_nprdma_span_t span;

    recent->sn     = rma->sn;
    recent->length = 0;
    if ((request->length == 0) ||
        (request->type == UCT_NPRDMA_SVC_POPULATE) ||
        ((wait != NULL) && uct_nprdma_rma_kind_is_ordered(wait->kind))) {
        return;
    }

    recent->length  = request->length;
    recent->is_read = request->type == UCT_NPRDMA_SVC_FETCH;
    recent->address = request->address;
    span            = uct_nprdma_span(request->address, request->length);
    uct_nprdma_span_add(&rma->span, &span);
}

/* Number a request that has been posted, and remember what it was */
static void uct_nprdma_rma_sent(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_rma_t *rma,
                                const uct_nprdma_svc_request_t *request,
                                uct_nprdma_rma_wait_t *wait)
{
    if (rma->done_sn == rma->sn) {
        uct_nprdma_span_clear(&rma->span);
    }

    ++rma->sn;
    ++iface->net.stats.svc_requests;
    uct_nprdma_rma_remember(rma, request, wait);
    if (wait != NULL) {
        wait->sn      = rma->sn;
        wait->type    = request->type;
        wait->size    = request->length;
        wait->address = request->address;
        rma->reply_sn = rma->sn;
    }
}

/*
 * Whether a request that needs no reply asks for one. The first after a pause
 * does: a flush that follows then has nothing to send, and the many puts that
 * may follow instead have few replies all the same.
 */
static int uct_nprdma_rma_wants_ack(const uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_rma_t *rma)
{
    uint32_t interval = ucs_list_is_empty(&rma->opt.order.ops) ?
                        UCT_NPRDMA_RMA_ACK_INTERVAL :
                        UCT_NPRDMA_RMA_ACK_INTERVAL_OPT;

    return ((rma->sn - rma->reply_sn) >= interval) ||
           ((rma->done_sn == rma->sn) &&
            (iface->res->num_free_waits > UCT_NPRDMA_RMA_REDO_IFACE_WAITS));
}

ucs_status_t uct_nprdma_rma_send(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma,
                                 uct_nprdma_svc_request_t *request,
                                 size_t length, uct_nprdma_slot_t *slot,
                                 uct_nprdma_rma_wait_t *wait)
{
    struct ibv_send_wr wr = {};
    uct_nprdma_op_t *op   = NULL;
    struct ibv_sge sge;
    ucs_status_t status;
    int is_alone = 0;
    int signal   = 0;

    if ((wait == NULL) && uct_nprdma_rma_wants_ack(iface, rma)) {
        is_alone = (rma->done_sn == rma->sn);
        /* A reply to an atomic has the old value, wanted or not */
        wait = uct_nprdma_rma_wait_add(
                iface, rma, (request->type == UCT_NPRDMA_SVC_ATOMIC) ?
                            request->length : 0,
                UCT_NPRDMA_RMA_ACK, 1);
    }

    request->sn    = rma->sn + 1;
    request->flags = (wait == NULL) ? 0 : UCT_NPRDMA_SVC_FLAG_REPLY;
    sge.addr       = (uintptr_t)request;
    sge.length     = length;
    wr.sg_list     = &sge;
    wr.num_sge     = 1;
    wr.opcode      = IBV_WR_SEND;
    if (slot == NULL) {
        sge.lkey      = 0;
        wr.send_flags = IBV_SEND_INLINE;
    } else {
        /* Unsignaled sends may only hold half of the slots, and not what is
         * reserved of the others: see nprdma_tx.h */
        sge.lkey       = slot->lkey;
        op             = &slot->op;
        op->func       = uct_nprdma_slot_release_op;
        signal         = slot->pool->num_free < ((slot->pool->num_slots / 2) +
                                                 UCT_NPRDMA_RMA_REDO_SLOTS);
    }

    status = uct_nprdma_conn_post_inl(&iface->net, &rma->ep->net.svc, &wr, op,
                                      signal);
    if (ucs_unlikely(status != UCS_OK)) {
        /* The connection fails: the receive of the wait comes back unused */
        if (slot != NULL) {
            uct_nprdma_bounce_put(slot);
        }
        if (wait != NULL) {
            wait->kind = UCT_NPRDMA_RMA_ACK;
            wait->sn   = rma->sn;
        }
        return status;
    }

    rma->ep->net.svc.num_slots += (slot != NULL);
    uct_nprdma_rma_sent(iface, rma, request, wait);
    if (is_alone) {
        uct_nprdma_rma_spare_post(iface, rma);
    }
    return UCS_OK;
}


/* ---- acknowledgements, flush and fence ---- */

ucs_status_t uct_nprdma_rma_ask(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_rma_t *rma)
{
    uct_nprdma_svc_request_t request;
    uct_nprdma_rma_wait_t *wait;
    uct_nprdma_slot_t *slot;

    if (rma->reply_sn == rma->sn) {
        return UCS_OK;
    }

    if (!uct_nprdma_conn_can_redo(&iface->net, &rma->ep->net.svc, 1) ||
        !uct_nprdma_rma_small_slot(iface, rma, sizeof(request), 1, &slot)) {
        return UCS_ERR_NO_RESOURCE;
    }

    wait = uct_nprdma_rma_wait_add(iface, rma, 0, UCT_NPRDMA_RMA_ACK, 1);
    if (wait == NULL) {
        uct_nprdma_rma_small_slot_put(slot);
        return UCS_ERR_NO_RESOURCE;
    }

    uct_nprdma_rma_fill_request(&request, UCT_NPRDMA_SVC_NOP, 0, 0, 0);
    return uct_nprdma_rma_send_small(iface, rma, &request, sizeof(request),
                                     slot, wait);
}

int uct_nprdma_rma_is_unordered(const uct_nprdma_rma_ep_t *ep)
{
    return (ep->rma != NULL) && !ucs_list_is_empty(&ep->rma->opt.order.ops);
}

int uct_nprdma_rma_is_idle(const uct_nprdma_rma_ep_t *ep)
{
    uct_nprdma_rma_t *rma = ep->rma;

    return (rma == NULL) ||
           ((rma->done_sn == rma->sn) &&
            ucs_list_is_empty(&rma->opt.order.ops));
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

    status = uct_nprdma_rma_ask(iface, rma);
    if (status != UCS_OK) {
        return status;
    }

    if (flush != NULL) {
        flush->sn = rma->sn;
        flush->op = rma->opt.order.sn;
        ucs_queue_push(&rma->flushes, &flush->queue);
    }
    return UCS_INPROGRESS;
}

ucs_status_t uct_nprdma_rma_fence(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_rma_ep_t *ep)
{
    uct_nprdma_rma_t *rma = ep->rma;

    /* While not even requests may pass, nothing of the user has come after the
     * first fence: only redo, which must not move it */
    if (rma->is_fenced && (ep->net.blocked & UCT_NPRDMA_EP_FENCED_RMA)) {
        return UCS_OK;
    }

    rma->is_fenced = 1;
    rma->fence_sn  = rma->sn;
    rma->fence_op  = rma->opt.order.sn;
    if (uct_nprdma_rma_ask(iface, rma) != UCS_OK) {
        rma->is_asking = 1;
        uct_nprdma_rma_stall(iface->res, rma);
    }
    return UCS_OK;
}

static void
uct_nprdma_rma_check_fence(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    if (rma->is_fenced &&
        uct_nprdma_order_is_done(&rma->opt.order, rma->fence_op) &&
        UCT_NPRDMA_RMA_SN_CMP(rma->done_sn, >=, rma->fence_sn)) {
        rma->is_fenced = 0;
        uct_nprdma_net_ep_unfence(&iface->net, &rma->ep->net);
    }
}

size_t uct_nprdma_rma_build_fin(uct_nprdma_rma_ep_t *ep, void *buf)
{
    uct_nprdma_svc_request_t *request = buf;

    UCS_STATIC_ASSERT(sizeof(*request) <= UCT_NPRDMA_FIN_MAX);

    uct_nprdma_rma_fill_request(request, UCT_NPRDMA_SVC_FIN, 0, 0, 0);
    request->sn = (ep->rma == NULL) ? 1 : (ep->rma->sn + 1);
    return sizeof(*request);
}


/* ---- progress ---- */

void uct_nprdma_rma_stall(uct_nprdma_rma_res_t *res,
                          uct_nprdma_rma_t *rma)
{
    if (!rma->is_stalled) {
        rma->is_stalled = 1;
        ucs_list_add_tail(&res->stalled, &rma->stalled);
    }
}

static void uct_nprdma_rma_unstall(uct_nprdma_rma_t *rma)
{
    if (rma->is_stalled) {
        rma->is_stalled = 0;
        ucs_list_del(&rma->stalled);
    }
}

/* @return Nonzero if nothing is left that progress has to go on with */
static int uct_nprdma_rma_go_on(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_rma_t *rma, unsigned *count_p)
{
    *count_p += uct_nprdma_opt_progress(iface, rma);
    *count_p += uct_nprdma_rma_large_send(iface, rma);
    *count_p += uct_nprdma_held_progress(iface, rma);
    if (rma->is_asking_held) {
        if (uct_nprdma_rma_ask(iface, rma) != UCS_OK) {
            return 0;
        }
        rma->is_asking_held = 0;
        ++*count_p;
    }
    if (rma->is_asking) {
        if (uct_nprdma_rma_ask(iface, rma) != UCS_OK) {
            return 0;
        }
        rma->is_asking = 0;
        rma->fence_sn  = rma->sn;
        ++*count_p;
    }

    return !uct_nprdma_opt_is_stalled(&rma->opt) &&
           ucs_list_is_empty(&rma->opt.ready) &&
           ucs_queue_is_empty(&rma->larges);
}

unsigned uct_nprdma_rma_progress(uct_nprdma_rma_iface_t *iface)
{
    unsigned count = 0;
    uct_nprdma_rma_t *rma, *tmp;

    if (iface->res->num_free_waits < UCT_NPRDMA_RMA_MAX_REPLIES) {
        uct_nprdma_rma_watch_progress(iface, &iface->res->watch);
    }

    ucs_list_for_each_safe(rma, tmp, &iface->res->stalled, stalled) {
        /* One that has failed will be told */
        if ((rma->ep->net.svc.state == UCT_NPRDMA_CONN_CONNECTED) &&
            uct_nprdma_rma_go_on(iface, rma, &count)) {
            uct_nprdma_rma_unstall(rma);
            uct_nprdma_net_ep_schedule(&iface->net, &rma->ep->net);
        }
    }

    return count;
}

int uct_nprdma_rma_retry(uct_nprdma_rma_iface_t *iface)
{
    return (iface->res != NULL) && !ucs_list_is_empty(&iface->res->stalled) &&
           (uct_nprdma_rma_progress(iface) > 0);
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
            !uct_nprdma_order_is_done(&rma->opt.order, flush->op)) {
            break;
        }

        ucs_queue_pull_non_empty(&rma->flushes);
        rma->error = UCS_OK; /* Has been told now */
        flush->func(iface, rma->ep, flush, status);
    }
}

void uct_nprdma_rma_free(uct_nprdma_rma_t *rma)
{
    ucs_free(rma);
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

/* ---- the end ---- */

/* Complete everything with rma->status */
static void uct_nprdma_rma_purge(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_wait_t *wait;

    iface->net.tx.in_vain = 0; /* Waits and operations for others to have */
    uct_nprdma_rma_enter(rma);
    uct_nprdma_rma_unstall(rma);
    rma->is_asking      = 0;
    rma->is_asking_held = 0;
    ucs_queue_head_init(&rma->larges);
    uct_nprdma_rma_spare_free(iface->res, rma);
    while (!ucs_queue_is_empty(&rma->waits)) {
        wait = ucs_queue_head_elem_non_empty(&rma->waits,
                                             uct_nprdma_rma_wait_t, queue);
        uct_nprdma_rma_reply_done(iface, rma, wait, NULL, rma->status);
    }

    uct_nprdma_opt_purge(iface, rma);
    rma->done_sn = rma->reply_sn = rma->sn;
    uct_nprdma_rma_check(iface, rma);
    uct_nprdma_rma_leave(rma);
}

static void uct_nprdma_rma_drained(uct_nprdma_net_iface_t *net_iface,
                                   uct_nprdma_conn_t *conn, uct_nprdma_op_t *op,
                                   ucs_status_t status)
{
    uct_nprdma_rma_iface_t *iface = ucs_derived_of(net_iface,
                                                   uct_nprdma_rma_iface_t);
    uct_nprdma_rma_t *rma         = ucs_container_of(op, uct_nprdma_rma_t,
                                                     drain);
    uct_nprdma_rma_failed_func_t failed;

    uct_nprdma_rma_enter(rma);
    rma->drain.func = NULL;
    failed          = rma->failed;
    uct_nprdma_rma_purge(iface, rma);
    if ((rma->ep != NULL) && (failed != NULL)) {
        failed(iface, rma->ep);
    }
    uct_nprdma_rma_leave(rma);
}

ucs_status_t uct_nprdma_rma_ep_fail(uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_rma_ep_t *ep,
                                    ucs_status_t status,
                                    uct_nprdma_rma_failed_func_t failed)
{
    uct_nprdma_rma_t *rma = ep->rma;

    if (rma == NULL) {
        return UCS_OK;
    }

    if (rma->status == UCS_OK) {
        rma->status = status;
    }

    if (uct_nprdma_conn_outstanding(&ep->net.svc) == 0) {
        uct_nprdma_rma_purge(iface, rma);
        return UCS_OK;
    }

    rma->failed = failed;
    if (rma->drain.func == NULL) {
        rma->drain.func = uct_nprdma_rma_drained;
        uct_nprdma_conn_add_drain_op(&ep->net.svc, &rma->drain);
    }
    return UCS_INPROGRESS;
}

void uct_nprdma_rma_ep_cleanup(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_ep_t *ep)
{
    uct_nprdma_rma_t *rma = ep->rma;

    if (rma == NULL) {
        return;
    }

    uct_nprdma_rma_enter(rma);
    if (rma->status == UCS_OK) {
        rma->status = UCS_ERR_CANCELED;
    }
    uct_nprdma_rma_purge(iface, rma);
    ep->rma = NULL;
    rma->ep = NULL;
    uct_nprdma_rma_leave(rma);
}
