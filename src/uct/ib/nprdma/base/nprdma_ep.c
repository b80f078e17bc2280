/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_ep.h"
#include "uct/ib/nprdma/net/nprdma_conn.h"
#include "uct/ib/nprdma/rma/nprdma_initiator.h"
#include "uct/ib/nprdma/rma/nprdma_rma_flush.h"

#include <ucs/debug/memtrack_int.h>

typedef struct uct_nprdma_flush uct_nprdma_flush_t;

/* The part of a flush that waits for the WRs of one connection */
typedef struct uct_nprdma_flush_conn {
    uct_nprdma_comp_t      comp;
    uct_nprdma_flush_t     *flush;
} uct_nprdma_flush_conn_t;

/* A flush in progress. It waits for the WRs of the AM connection, for those of
 * the others if they have failed, and for the service's acknowledgement */
struct uct_nprdma_flush {
    uct_nprdma_flush_conn_t conns[UCT_NPRDMA_CONN_KIND_LAST];
    uct_nprdma_rma_flush_t rma;
    ucs_list_link_t        list;        /* of ep, until comp is called */
    unsigned               count;       /* of parts that are outstanding */
    ucs_status_t           status;
    uct_completion_t       *comp;       /* NULL: has been called */
};


/* Stop all connections of an endpoint that fails or is canceled. Its peer does
 * not notice that, and may go on to write. */
static void uct_nprdma_ep_stop(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                               ucs_status_t status)
{
    int kind;

    ep->net.blocked |= UCT_NPRDMA_EP_FAILED;
    ep->net.status   = status;
    atomic_fetch_add(&uct_nprdma_iface_md(iface)->super.ends, 1);
    for (kind = 0; kind < UCT_NPRDMA_CONN_KIND_LAST; ++kind) {
        uct_nprdma_conn_stop(&iface->net, &ep->net.conns[kind], status);
    }
}


/* Call the user's error handler, after all operations have completed */
static void
uct_nprdma_ep_report(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_ep_t *ep)
{
    ucs_status_t status = ep->net.status;
    ucs_status_t handler_status;

    if (ep->net.blocked & UCT_NPRDMA_EP_DESTROYED) {
        return;
    }

    ucs_debug("iface %p: ep %p failed: %s", iface, ep,
              ucs_status_string(status));
    handler_status = uct_iface_handle_ep_err(&iface->net.super.super,
                                             &ep->net.super.super, status);
    ucs_log(uct_base_iface_failure_log_level(&iface->net.super, handler_status,
                                             status),
            "%s: connection to the peer with lid %u UD queue pair 0x%x failed: "
            "%s%s", uct_nprdma_net_dev(&iface->net)->name, ep->net.dev_addr.lid,
            ep->net.iface_addr.ud_qpn, ucs_status_string(status),
            (status == UCS_ERR_UNREACHABLE) ? " (the port is down)" : "");
}

void uct_nprdma_ep_fail(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                        ucs_status_t status)
{
    if (ep->net.blocked & UCT_NPRDMA_EP_FAILED) {
        return; /* reported before, or canceled by the user */
    }

    ++iface->net.stats->eps_failed;
    uct_nprdma_ep_stop(iface, ep, status);
    uct_nprdma_net_ep_schedule(&iface->net, &ep->net);
    if (uct_nprdma_rma_ep_fail(&iface->rma, &ep->rma, status,
                               uct_nprdma_ep_report) == UCS_OK) {
        uct_nprdma_ep_report(&iface->rma, &ep->rma);
    }
}

static UCS_CLASS_INIT_FUNC(uct_nprdma_ep_t, const uct_ep_params_t *params)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(params->iface,
                                               uct_nprdma_iface_t);
    ucs_status_t status;
    int kind;

    UCT_EP_PARAMS_CHECK_DEV_IFACE_ADDRS(params);
    UCS_CLASS_CALL_SUPER_INIT(uct_nprdma_rma_ep_t, params);
    ucs_trace_func("iface=%p ep=%p", iface, self);

    ucs_list_head_init(&self->flushes);
    ucs_list_head_init(&self->lacking);
    for (kind = 0; kind < UCT_NPRDMA_CONN_KIND_LAST; ++kind) {
        uct_nprdma_conn_init(&self->net.conns[kind]);
    }
    status = uct_nprdma_conn_start(&iface->net, &self->net, &self->net.am,
                                   UCT_NPRDMA_CONN_AM);
    if (status != UCS_OK) {
        return status;
    }

    ucs_arbiter_group_init(&self->net.arb_group);
    ucs_list_add_tail(&iface->net.eps, &self->net.list);
    return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(uct_nprdma_ep_t)
{
    ucs_arbiter_group_cleanup(&self->net.arb_group);
    ucs_list_del(&self->net.list);
}

UCS_CLASS_DEFINE(uct_nprdma_ep_t, uct_nprdma_rma_ep_t);
UCS_CLASS_DEFINE_NEW_FUNC(uct_nprdma_ep_t, uct_ep_t, const uct_ep_params_t *);

static void uct_nprdma_ep_purge_unexpected(uct_pending_req_t *req, void *arg)
{
    ucs_debug("ep %p is destroyed with a pending request %p", arg, req);
}

static uct_nprdma_flush_t *uct_nprdma_flush_new(uct_nprdma_ep_t *ep,
                                                uct_completion_t *comp)
{
    uct_nprdma_flush_t *flush = ucs_malloc(sizeof(*flush), "nprdma_flush");

    if (flush != NULL) {
        flush->count  = 0;
        flush->status = UCS_OK;
        flush->comp   = comp;
        ucs_list_add_tail(&ep->flushes, &flush->list);
    }
    return flush;
}

static void uct_nprdma_flush_delete(uct_nprdma_flush_t *flush)
{
    if (flush->comp != NULL) {
        ucs_list_del(&flush->list);
    }
    ucs_free(flush);
}

static void uct_nprdma_flush_done(uct_nprdma_flush_t *flush,
                                  ucs_status_t status)
{
    uct_completion_t *comp = flush->comp;

    if (flush->status == UCS_OK) {
        flush->status = status;
    }

    if (--flush->count > 0) {
        return;
    }

    status = flush->status;
    uct_nprdma_flush_delete(flush);
    if (comp != NULL) {
        uct_invoke_completion(comp, status);
    }
}

static void uct_nprdma_flush_conn_done(uct_nprdma_net_iface_t *iface,
                                       uct_nprdma_conn_t *conn,
                                       uct_nprdma_comp_t *comp,
                                       ucs_status_t status)
{
    uct_nprdma_flush_done(ucs_container_of(comp, uct_nprdma_flush_conn_t,
                                           comp)->flush, status);
}

static uct_nprdma_comp_t *
uct_nprdma_flush_conn(uct_nprdma_flush_t *flush, int kind)
{
    flush->conns[kind].flush     = flush;
    flush->conns[kind].comp.func = uct_nprdma_flush_conn_done;
    return &flush->conns[kind].comp;
}

static void uct_nprdma_flush_rma(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_ep_t *ep,
                                 uct_nprdma_rma_flush_t *rma,
                                 ucs_status_t status)
{
    uct_nprdma_flush_done(ucs_container_of(rma, uct_nprdma_flush_t, rma),
                          status);
}

/* The user gets no completions after the destruction of an endpoint, so call
 * them now */
static void uct_nprdma_ep_cancel_flushes(uct_nprdma_ep_t *ep)
{
    uct_nprdma_flush_t *flush, *next;
    uct_completion_t *comp;

    ucs_list_for_each_safe(flush, next, &ep->flushes, list) {
        comp        = flush->comp;
        flush->comp = NULL;
        ucs_list_del(&flush->list);
        uct_invoke_completion(comp, UCS_ERR_CANCELED);
    }
}

void uct_nprdma_ep_destroy(uct_ep_h tl_ep)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);
    int kind;

    ucs_trace_func("ep=%p", ep);
    if (uct_nprdma_fork_is_child()) {
        return;
    }

    ep->net.blocked |= UCT_NPRDMA_EP_DESTROYED;
    uct_nprdma_ep_pending_purge(tl_ep, uct_nprdma_ep_purge_unexpected, ep);
    if (!uct_nprdma_rma_is_idle(&ep->rma)) {
        uct_nprdma_conn_stop(&iface->net, &ep->net.svc, UCS_ERR_CANCELED);
        uct_nprdma_conn_stop(&iface->net, &ep->net.bulk, UCS_ERR_CANCELED);
        uct_nprdma_rma_ep_fail(&iface->rma, &ep->rma, UCS_ERR_CANCELED, NULL);
    }
    uct_nprdma_ep_cancel_flushes(ep);

    for (kind = 0; kind < UCT_NPRDMA_CONN_KIND_LAST; ++kind) {
        uct_nprdma_conn_close(&iface->net, &ep->net.conns[kind]);
    }
    if (!uct_nprdma_rma_is_idle(&ep->rma)) {
        /* The user may free the buffers when this returns, and need not call
         * progress. Without the queue pairs the NIC no longer accesses them
         * (ARCHITECTURE 3, destroy) */
        uct_nprdma_conn_release(&iface->net, &ep->net.svc, 1);
        uct_nprdma_conn_release(&iface->net, &ep->net.bulk, 1);
    }
    UCS_CLASS_CLEANUP(uct_nprdma_ep_t, ep);

    /* uct_nprdma_ep_reap() frees the memory when the last messages are done */
    ucs_list_add_tail(&iface->closing, &ep->net.list);
    iface->net.tx.reap = 1;
}

static int uct_nprdma_ep_try_free(uct_nprdma_iface_t *iface,
                                  uct_nprdma_ep_t *ep, int force)
{
    int are_gone = 1;
    int kind;

    for (kind = 0; kind < UCT_NPRDMA_CONN_KIND_LAST; ++kind) {
        are_gone &= uct_nprdma_conn_release(&iface->net, &ep->net.conns[kind],
                                            force);
        /* A completion on any connection may make room for a last message */
        iface->net.tx.reap |= ep->net.conns[kind].fin_due;
    }
    if (!are_gone) {
        return 0;
    }

    uct_nprdma_rma_ep_cleanup(&iface->rma, &ep->rma);
    ucs_list_del(&ep->net.list);
    ucs_class_free(ep);
    return 1;
}

void uct_nprdma_ep_reap(uct_nprdma_iface_t *iface, int force)
{
    uct_nprdma_ep_t *ep, *tmp;

    iface->net.tx.reap = 0;
    ucs_list_for_each_safe(ep, tmp, &iface->closing, net.list) {
        uct_nprdma_ep_try_free(iface, ep, force);
    }
}

ucs_status_t uct_nprdma_ep_pending_add(uct_ep_h tl_ep, uct_pending_req_t *req,
                                       unsigned flags)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);

    ucs_trace_func("ep=%p req=%p", ep, req);
    /* The user tries the operation again, and gets the status of the
     * endpoint */
    if (ep->net.blocked & UCT_NPRDMA_EP_FAILED) {
        return UCS_ERR_BUSY;
    }

    /* Resources come back in progress only. If there was no progress since the
     * operation was refused, it has to wait. If there was, the request is
     * dispatched soon, because the group is scheduled. */
    ep->net.blocked |= UCT_NPRDMA_EP_PENDING;
    uct_pending_req_arb_group_push(&ep->net.arb_group, req);
    uct_nprdma_net_ep_schedule(&iface->net, &ep->net);
    return UCS_OK;
}

ucs_arbiter_cb_result_t
uct_nprdma_ep_process_pending(ucs_arbiter_t *arbiter,
                              ucs_arbiter_group_t *group,
                              ucs_arbiter_elem_t *elem, void *arg)
{
    uct_pending_req_t *req    = ucs_container_of(elem, uct_pending_req_t, priv);
    uct_nprdma_ep_t *ep       = ucs_container_of(group, uct_nprdma_ep_t,
                                                 net.arb_group);
    uct_nprdma_iface_t *iface = arg;
    /* The call may free the request */
    int is_only               = ucs_arbiter_elem_is_only(elem);
    ucs_status_t status;

    ucs_trace_data("ep %p: dispatching pending request %p", ep, req);

    iface->am_lacks           = 0;
    iface->net.tx.starved     = 0;
    iface->net.tx.dispatching = &ep->net;
    ep->net.blocked          &= ~UCT_NPRDMA_EP_PENDING;
    status                    = req->func(req);
    iface->net.tx.dispatching = NULL;
    if (status == UCS_OK) {
        if (!is_only) {
            ep->net.blocked |= UCT_NPRDMA_EP_PENDING;
        }
        return UCS_ARBITER_CB_RESULT_REMOVE_ELEM;
    }

    ep->net.blocked |= UCT_NPRDMA_EP_PENDING;
    if (status == UCS_INPROGRESS) {
        return UCS_ARBITER_CB_RESULT_NEXT_GROUP;
    }

    if (iface->net.tx.starved) {
        iface->net.tx.exhausted = 1;
        if (!iface->am_lacks) {
            /* Other endpoints lack the same resource; this one is first at the
             * next dispatch */
            return UCS_ARBITER_CB_RESULT_STOP;
        }

        /* Puts and gets do not lack it, and a peer that receives nothing may
         * keep it for long */
        if (ucs_list_is_empty(&ep->lacking)) {
            ucs_list_add_tail(&iface->lacking, &ep->lacking);
        }
        return UCS_ARBITER_CB_RESULT_DESCHED_GROUP;
    }

    /* uct_nprdma_net_ep_schedule() is called when the resource of this endpoint
     * is back */
    return UCS_ARBITER_CB_RESULT_DESCHED_GROUP;
}

void uct_nprdma_ep_try_lacking(uct_nprdma_iface_t *iface)
{
    unsigned count = ucs_max(iface->net.tx.pool.num_free, 1u);
    uct_nprdma_ep_t *ep;

    for (; (count > 0) && !ucs_list_is_empty(&iface->lacking); --count) {
        ep = ucs_list_extract_head(&iface->lacking, uct_nprdma_ep_t, lacking);
        ucs_list_head_init(&ep->lacking);
        uct_nprdma_net_ep_schedule(&iface->net, &ep->net);
    }
}

static ucs_arbiter_cb_result_t
uct_nprdma_ep_purge_elem(ucs_arbiter_t *arbiter, ucs_arbiter_group_t *group,
                         ucs_arbiter_elem_t *elem, void *arg)
{
    uct_purge_cb_args_t *purge = arg;
    uct_pending_req_t *req     = ucs_container_of(elem, uct_pending_req_t,
                                                  priv);

    purge->cb(req, purge->arg);
    return UCS_ARBITER_CB_RESULT_REMOVE_ELEM;
}

void uct_nprdma_ep_pending_purge(uct_ep_h tl_ep,
                                 uct_pending_purge_callback_t cb, void *arg)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);
    uct_purge_cb_args_t args  = { .cb = cb, .arg = arg };

    ucs_trace_func("ep=%p", ep);
    ucs_arbiter_group_purge(&iface->net.tx.arbiter, &ep->net.arb_group,
                            uct_nprdma_ep_purge_elem, &args);
    ep->net.blocked &= ~UCT_NPRDMA_EP_PENDING;
    ucs_list_del(&ep->lacking);
    ucs_list_head_init(&ep->lacking);
}

/* Flush connections that have failed: wait until their WRs are flushed */
static ucs_status_t uct_nprdma_ep_flush_failed(uct_nprdma_ep_t *ep,
                                               uct_completion_t *comp)
{
    int num_busy = 0;
    uct_nprdma_flush_t *flush;
    uct_nprdma_conn_t *conn;
    int kind;

    for (kind = 0; kind < UCT_NPRDMA_CONN_KIND_LAST; ++kind) {
        num_busy += uct_nprdma_conn_outstanding(&ep->net.conns[kind]) > 0;
    }
    if (num_busy == 0) {
        return UCS_OK;
    }

    if (comp == NULL) {
        return UCS_INPROGRESS;
    }

    flush = uct_nprdma_flush_new(ep, comp);
    if (flush == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    flush->count = num_busy;
    for (kind = 0; kind < UCT_NPRDMA_CONN_KIND_LAST; ++kind) {
        conn = &ep->net.conns[kind];
        if (uct_nprdma_conn_outstanding(conn) > 0) {
            uct_nprdma_conn_add_drain_comp(conn,
                                           uct_nprdma_flush_conn(flush, kind));
        }
    }
    return UCS_INPROGRESS;
}

static ucs_status_t
uct_nprdma_ep_cancel(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                     uct_completion_t *comp)
{
    if (!(ep->net.blocked & UCT_NPRDMA_EP_FAILED)) {
        uct_nprdma_ep_stop(iface, ep, UCS_ERR_CANCELED);
        uct_nprdma_rma_ep_fail(&iface->rma, &ep->rma, UCS_ERR_CANCELED, NULL);
    }

    return uct_nprdma_ep_flush_failed(ep, comp);
}

/* Make sure that the last WR of the AM connection is signaled */
static ucs_status_t
uct_nprdma_ep_flush_am(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                       uct_nprdma_comp_t *comp)
{
    if (ep->net.am.unsignaled > 0) {
        return uct_nprdma_conn_post_nop(&iface->net, &ep->net.am, comp);
    }

    if (comp != NULL) {
        uct_nprdma_conn_add_drain_comp(&ep->net.am, comp);
    }
    return UCS_OK;
}

static ucs_status_t
uct_nprdma_ep_flush_start(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                          int am_busy, int rma_busy, uct_completion_t *comp)
{
    uct_nprdma_comp_t *am_comp;
    uct_nprdma_flush_t *flush;
    ucs_status_t status;

    flush = uct_nprdma_flush_new(ep, comp);
    if (flush == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    flush->rma.func = uct_nprdma_flush_rma;
    am_comp         = uct_nprdma_flush_conn(flush, UCT_NPRDMA_CONN_AM);

    if (rma_busy) {
        status = uct_nprdma_rma_flush(&iface->rma, &ep->rma, &flush->rma);
        if (status == UCS_INPROGRESS) {
            ++flush->count;
        } else if (status != UCS_OK) {
            goto err_free;
        }
    }

    if (am_busy) {
        status = uct_nprdma_ep_flush_am(iface, ep, am_comp);
        if (status == UCS_OK) {
            ++flush->count;
        } else if (flush->count == 0) {
            goto err_free;
        }
        /* else the connection is broken, and the other part reports that */
    }

    if (flush->count == 0) {
        status = UCS_OK;
        goto err_free;
    }

    return UCS_INPROGRESS;

err_free:
    uct_nprdma_flush_delete(flush);
    return status;
}

ucs_status_t uct_nprdma_ep_flush(uct_ep_h tl_ep, unsigned flags,
                                 uct_completion_t *comp)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);
    ucs_status_t status;
    int am_busy, rma_busy;

    ucs_trace_func("ep=%p flags=0x%x comp=%p", ep, flags, comp);
    if (uct_nprdma_fork_is_child()) {
        return UCS_ERR_UNSUPPORTED;
    }

    if (flags & UCT_FLUSH_FLAG_CANCEL) {
        return uct_nprdma_ep_cancel(iface, ep, comp);
    }

    if (ep->net.blocked & UCT_NPRDMA_EP_FAILED) {
        return uct_nprdma_ep_flush_failed(ep, comp);
    }

    if (ep->net.blocked & UCT_NPRDMA_EP_PENDING) {
        return uct_nprdma_net_ep_refusal(&ep->net);
    }

    am_busy  = uct_nprdma_conn_outstanding(&ep->net.am) > 0;
    rma_busy = !uct_nprdma_rma_is_idle(&ep->rma) ||
               uct_nprdma_rma_has_error(&ep->rma);
    if (!am_busy && !rma_busy) {
        return UCS_OK;
    }

    /* Once for both parts: what the other part posts may take the last place,
     * but the message that follows here has one in reserve */
    if (am_busy && (ep->net.am.unsignaled > 0) &&
        !uct_nprdma_conn_admit_post(&iface->net, &ep->net.am)) {
        return uct_nprdma_ep_refuse_am(iface, ep);
    }

    if (comp != NULL) {
        return uct_nprdma_ep_flush_start(iface, ep, am_busy, rma_busy, comp);
    }

    status = rma_busy ? uct_nprdma_rma_flush(&iface->rma, &ep->rma, NULL) :
                        UCS_OK;
    if (!UCS_STATUS_IS_ERR(status) && am_busy) {
        status = uct_nprdma_ep_flush_am(iface, ep, NULL);
    }
    return UCS_STATUS_IS_ERR(status) ? status : UCS_INPROGRESS;
}

ucs_status_t uct_nprdma_ep_fence(uct_ep_h tl_ep, unsigned flags)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);

    ucs_trace_func("ep=%p", ep);

    /* The service executes requests in order, and the AM connection keeps the
     * order. But an active message, or the NIC, may overtake an earlier
     * request. And every operation may overtake one that is not verified
     * (ARCHITECTURE 3, fence). */
    if (!uct_nprdma_rma_is_idle(&ep->rma) &&
        !(ep->net.blocked & UCT_NPRDMA_EP_FAILED)) {
        if (uct_nprdma_rma_is_unordered(&ep->rma)) {
            ep->net.blocked |= UCT_NPRDMA_EP_FENCED_RMA;
        }
        ep->net.blocked |= UCT_NPRDMA_EP_FENCED;
        return uct_nprdma_rma_fence(&iface->rma, &ep->rma);
    }

    return UCS_OK;
}

ucs_status_t uct_nprdma_ep_check(uct_ep_h tl_ep, unsigned flags,
                                 uct_completion_t *comp)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);

    UCT_CHECK_PARAM(comp == NULL, "ep_check does not support a completion");
    UCT_CHECK_PARAM(flags == 0, "ep_check does not support flags 0x%x", flags);

    ucs_trace_func("ep=%p", ep);
    /* An outstanding signaled WR, or the connection request, detects a dead
     * peer as well as a check does. */
    return uct_nprdma_conn_check(&iface->net, &ep->net.am);
}

ucs_status_t uct_nprdma_ep_invalidate(uct_ep_h tl_ep, unsigned flags)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);

    ucs_trace_func("ep=%p", ep);
    /* As if the device had refused a WR: progress fails the endpoint */
    uct_nprdma_conn_post_failed(&iface->net, &ep->net.am, 0);
    return UCS_OK;
}
