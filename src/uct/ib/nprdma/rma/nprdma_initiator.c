/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_initiator.h"
#include "nprdma_bulk.h"
#include "nprdma_held.h"
#include "nprdma_op.h"
#include "nprdma_rma_copy.h"
#include "nprdma_rma_flush.h"
#include "nprdma_rma_watch.h"

#include "uct/ib/nprdma/net/nprdma_conn.h"

#include "nprdma_assert.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

/* Maximum number of slots for data; puts in flight and replies to gets share
 * them */
#define UCT_NPRDMA_RMA_SLOTS          32


UCS_CLASS_INIT_FUNC(uct_nprdma_rma_iface_t,
                    const uct_nprdma_rma_config_t *rma_config,
                    const uct_nprdma_net_ops_t *ops, uct_iface_ops_t *iface_ops,
                    uct_iface_internal_ops_t *internal_ops, uct_md_h md,
                    uct_worker_h worker, const uct_iface_params_t *params,
                    const uct_iface_config_t *config)
{
    UCS_CLASS_CALL_SUPER_INIT(uct_nprdma_net_iface_t, ops, iface_ops,
                              internal_ops, md, worker, params, config);

    self->config = rma_config;
    self->res    = NULL;
    memset(&self->local, 0, sizeof(self->local));
    memset(&self->longest, 0, sizeof(self->longest));
    return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(uct_nprdma_rma_iface_t)
{
}

UCS_CLASS_DEFINE(uct_nprdma_rma_iface_t, uct_nprdma_net_iface_t);

UCS_CLASS_INIT_FUNC(uct_nprdma_rma_ep_t, const uct_ep_params_t *params)
{
    UCS_CLASS_CALL_SUPER_INIT(uct_nprdma_net_ep_t, params);

    self->rma = NULL;
    memset(&self->longest, 0, sizeof(self->longest));
    return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(uct_nprdma_rma_ep_t)
{
}

UCS_CLASS_DEFINE(uct_nprdma_rma_ep_t, uct_nprdma_net_ep_t);

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
                                    UCT_NPRDMA_SVC_SLOT(dev->config.max_piece),
                                    UCT_NPRDMA_RMA_SLOTS, 4, "RMA data");
    if (status != UCS_OK) {
        goto err_free;
    }

    status = uct_nprdma_bounce_init(&res->small_pool, dev,
                                    UCT_NPRDMA_RMA_SMALL_SLOT,
                                    UCT_NPRDMA_RMA_NUM_REPLIES,
                                    2 * UCT_NPRDMA_RMA_MAX_SPARES,
                                    "RMA replies");
    if (status != UCS_OK) {
        goto err_pool;
    }

    status = uct_nprdma_op_iface_init(iface, &res->ops);
    if (status != UCS_OK) {
        goto err_small_pool;
    }

    ucs_list_head_init(&res->stalled);
    ucs_queue_head_init(&res->free_replies);
    res->num_free_replies = UCT_NPRDMA_RMA_MAX_REPLIES;
    for (i = 0; i < UCT_NPRDMA_RMA_NUM_REPLIES; ++i) {
        res->replies[i].index = i;
        ucs_queue_push(&res->free_replies, &res->replies[i].queue);
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
        uct_nprdma_op_iface_cleanup(&res->ops);
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

    rma->ep         = ep;
    rma->bulk.pause = UCT_NPRDMA_BULK_PAUSE;
    if (iface->config->order == UCT_NPRDMA_ORDER_RC) {
        rma->behind_flag = UCT_NPRDMA_EP_BEHIND;
    }
    ucs_queue_head_init(&rma->replies);
    ucs_queue_head_init(&rma->flushes);
    ucs_queue_head_init(&rma->copies[0]);
    ucs_queue_head_init(&rma->copies[1]);
    uct_nprdma_op_ep_init(&rma->ops, iface->config->order);
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

    /* First operation of the endpoint, or it is still connecting */
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


/* ---- progress ---- */

static void uct_nprdma_rma_unstall(uct_nprdma_rma_t *rma)
{
    if (rma->is_stalled) {
        rma->is_stalled = 0;
        ucs_list_del(&rma->stalled);
    }
}

/* @return Nonzero if nothing is left for progress to send. */
static int uct_nprdma_rma_resume(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma, unsigned *count_p)
{
    uct_nprdma_held_acked(iface, rma);
    *count_p += uct_nprdma_op_progress(iface, rma);
    *count_p += uct_nprdma_rma_copy_send(iface, rma);
    *count_p += uct_nprdma_held_progress(iface, rma);
    if (rma->held_needs_ack || rma->needs_ack) {
        if (uct_nprdma_rma_request_ack(iface, rma) != UCS_OK) {
            return 0;
        }
        rma->fence_sn       = rma->needs_ack ? rma->sn : rma->fence_sn;
        rma->needs_ack      = 0;
        rma->held_needs_ack = 0;
        ++*count_p;
    }

    return !uct_nprdma_op_is_stalled(&rma->ops) &&
           ucs_list_is_empty(&rma->ops.ready) &&
           ucs_queue_is_empty(&rma->copies[0]) &&
           ucs_queue_is_empty(&rma->copies[1]);
}

unsigned uct_nprdma_rma_progress(uct_nprdma_rma_iface_t *iface)
{
    unsigned count = 0;
    uct_nprdma_rma_t *rma, *tmp;

    if (uct_nprdma_rma_watch_is_needed(iface)) {
        uct_nprdma_rma_watch_progress(iface, &iface->res->watch);
    }

    uct_nprdma_op_begin(iface);
    ucs_list_for_each_safe(rma, tmp, &iface->res->stalled, stalled) {
        /* The failure of a connection is handled elsewhere */
        if ((rma->ep->net.svc.state == UCT_NPRDMA_CONN_CONNECTED) &&
            uct_nprdma_rma_resume(iface, rma, &count)) {
            uct_nprdma_rma_unstall(rma);
            uct_nprdma_net_ep_schedule(&iface->net, &rma->ep->net);
        }
    }

    /* Another endpoint is the first to find what is free in the next call */
    if (!ucs_list_is_empty(&iface->res->stalled)) {
        rma = ucs_list_extract_head(&iface->res->stalled, uct_nprdma_rma_t,
                                    stalled);
        ucs_list_add_tail(&iface->res->stalled, &rma->stalled);
    }

    /* Last: what is small comes first */
    return count + uct_nprdma_op_run(iface);
}

int uct_nprdma_rma_retry(uct_nprdma_rma_iface_t *iface)
{
    return (iface->res != NULL) &&
           (!ucs_list_is_empty(&iface->res->stalled) ||
            uct_nprdma_sched_has_work(&iface->res->ops.sched)) &&
           (uct_nprdma_rma_progress(iface) > 0);
}


/* ---- the end ---- */

/* Complete all operations with rma->status. Slots of receives return to their
 * pools. A reply may have arrived and not been polled, and a device may place
 * its data only when it is polled. The end of the queue pair discards it. */
static void uct_nprdma_rma_purge(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_reply_t *reply;

    /* Rule "cancel, destroy": the NIC no longer accesses any buffer */
    nprdma_assert((rma->ep->net.svc.qp == NULL) ||
                  (uct_nprdma_conn_outstanding(&rma->ep->net.svc) == 0));
    nprdma_assert((rma->ep->net.bulk.qp == NULL) ||
                  (uct_nprdma_conn_outstanding(&rma->ep->net.bulk) == 0));
    iface->net.tx.exhausted = 0; /* Resources come back, so dispatch again */
    uct_nprdma_rma_enter(rma);
    /* Before any callback: an operation of another endpoint that it starts runs
     * the scheduler, which must not find this endpoint */
    uct_nprdma_op_stop(iface, rma);
    if ((rma->spare != NULL) || !ucs_queue_is_empty(&rma->replies)) {
        uct_nprdma_conn_release(&iface->net, &rma->ep->net.svc, 1);
    }
    uct_nprdma_rma_unstall(rma);
    rma->needs_ack      = 0;
    rma->held_needs_ack = 0;
    ucs_queue_head_init(&rma->copies[0]);
    ucs_queue_head_init(&rma->copies[1]);
    uct_nprdma_rma_spare_free(iface->res, rma);
    while (!ucs_queue_is_empty(&rma->replies)) {
        reply = ucs_queue_head_elem_non_empty(&rma->replies,
                                              uct_nprdma_rma_reply_t, queue);
        uct_nprdma_rma_reply_end(iface, rma, reply, NULL, rma->status);
    }

    uct_nprdma_op_purge(iface, rma);
    rma->done_sn = rma->reply_sn = rma->sn;
    uct_nprdma_rma_check(iface, rma);
    uct_nprdma_rma_leave(rma);
}

static void uct_nprdma_rma_drained(uct_nprdma_net_iface_t *net_iface,
                                   uct_nprdma_conn_t *conn,
                                   uct_nprdma_comp_t *comp, ucs_status_t status)
{
    uct_nprdma_rma_iface_t *iface = ucs_derived_of(net_iface,
                                                   uct_nprdma_rma_iface_t);
    uct_nprdma_rma_t *rma         = ucs_container_of(comp,
                                                     uct_nprdma_rma_drain_t,
                                                     comp)->rma;
    uct_nprdma_rma_failed_func_t failed;

    if (--rma->num_drains > 0) {
        return; /* The NIC has WRs of the other connection */
    }

    uct_nprdma_rma_enter(rma);
    failed = rma->failed;
    uct_nprdma_rma_purge(iface, rma);
    if ((rma->ep != NULL) && (failed != NULL)) {
        failed(iface, rma->ep);
    }
    uct_nprdma_rma_leave(rma);
}

/* Wait for the WRs of a connection, if there are any */
static void
uct_nprdma_rma_drain(uct_nprdma_rma_t *rma, uct_nprdma_conn_t *conn,
                     uct_nprdma_rma_drain_t *drain)
{
    if (uct_nprdma_conn_outstanding(conn) > 0) {
        drain->rma       = rma;
        drain->comp.func = uct_nprdma_rma_drained;
        ++rma->num_drains;
        uct_nprdma_conn_add_drain_comp(conn, &drain->comp);
    }
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

    if (rma->num_drains == 0) {
        uct_nprdma_rma_drain(rma, &ep->net.svc, &rma->drains[0]);
        uct_nprdma_rma_drain(rma, &ep->net.bulk, &rma->drains[1]);
    }
    if (rma->num_drains == 0) {
        uct_nprdma_rma_purge(iface, rma);
        return UCS_OK;
    }

    rma->failed = failed;
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

size_t uct_nprdma_rma_build_fin(uct_nprdma_rma_ep_t *ep, void *buf)
{
    uct_nprdma_svc_request_t *request = buf;

    UCS_STATIC_ASSERT(sizeof(*request) <= UCT_NPRDMA_FIN_MAX);

    uct_nprdma_rma_fill_request(request, UCT_NPRDMA_SVC_FIN, 0, 0, 0);
    request->sn = (ep->rma == NULL) ? 1 : (ep->rma->sn + 1);
    return sizeof(*request);
}
