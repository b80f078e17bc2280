/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "internals.h"

#include "uct/ib/nprdma/base/nprdma_ep.h"
#include "uct/ib/nprdma/rma/nprdma_rma_types.h"
#include "uct/ib/nprdma/service/nprdma_service_types.h"

#include <ucs/async/async.h>
#include <ucs/time/time.h>
#include <uct/base/uct_worker.h>

unsigned conn_index(uct_ep_h ep)
{
    uct_nprdma_net_ep_t *self = ucs_derived_of(ep, uct_nprdma_net_ep_t);

    return UCT_NPRDMA_CONN_INDEX(self->am.id);
}

void waits_since(uct_ep_h ep, double seconds)
{
    uct_nprdma_longest_t *waits =
            ucs_derived_of(ep, uct_nprdma_ep_t)->rma.longest;
    size_t i;

    for (i = 0; i < UCT_NPRDMA_LONGEST_LAST; ++i) {
        waits[i].since       = ucs_get_time() - ucs_time_from_sec(seconds);
        waits[i].num_reports = 0;
    }
}

void forget_messages(uct_ep_h ep)
{
    ucs_derived_of(ep, uct_nprdma_ep_t)->rma.rma->num_behind = 0;
}

static uct_nprdma_rma_res_t *spares_side(uct_iface_h iface)
{
    return ucs_derived_of(iface, uct_nprdma_rma_iface_t)->res;
}

unsigned spares_count(uct_iface_h iface)
{
    return (spares_side(iface) == NULL) ? 0 : spares_side(iface)->num_spares;
}

int spares_rest(uct_iface_h iface)
{
    uct_nprdma_rma_res_t *side = spares_side(iface);

    return (side == NULL) ||
           ((side->num_free_replies == UCT_NPRDMA_RMA_MAX_REPLIES) &&
            (ucs_queue_length(&side->free_replies) + side->num_spares ==
             UCT_NPRDMA_RMA_NUM_REPLIES) &&
            (side->small_pool.num_free + side->num_spares ==
             side->small_pool.num_slots));
}

static int conn_state(uct_ep_h ep, unsigned kind)
{
    return ucs_derived_of(ep, uct_nprdma_ep_t)->net.conns[kind].state;
}

int conn_is_connecting(uct_ep_h ep, unsigned kind)
{
    return conn_state(ep, kind) == UCT_NPRDMA_CONN_CONNECTING;
}

int conn_is_connected(uct_ep_h ep, unsigned kind)
{
    return conn_state(ep, kind) == UCT_NPRDMA_CONN_CONNECTED;
}

int eps_are_freed(uct_iface_h iface)
{
    return ucs_list_is_empty(&ucs_derived_of(iface,
                                             uct_nprdma_iface_t)->closing);
}

int iface_is_settled(uct_iface_h tl_iface)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);

    return (iface->net.tx.cq_avail == iface->net.config.tx_cq_len) &&
           (iface->net.tx.unsignaled == 0) &&
           (iface->net.tx.pool.num_free == iface->net.tx.pool.num_slots) &&
           eps_are_freed(tl_iface);
}

static int *cq_avail(uct_iface_h iface)
{
    return &ucs_derived_of(iface, uct_nprdma_iface_t)->net.tx.cq_avail;
}

void cq_show(uct_iface_h iface, int hidden)
{
    *cq_avail(iface) += hidden;
}

static int cq_leave(uct_iface_h iface, int left)
{
    int hidden = *cq_avail(iface) - left;

    cq_show(iface, -hidden);
    return hidden;
}

int cq_hide(uct_ep_h ep)
{
    return cq_leave(ep->iface, ucs_derived_of(ep, uct_nprdma_ep_t)->
                               net.am.cq_reserve + 1);
}

int cq_hide_all(uct_iface_h iface)
{
    return cq_leave(iface, -UCT_NPRDMA_TX_CQ_SLACK);
}

int cq_is_overrun(uct_iface_h iface)
{
    return *cq_avail(iface) < -UCT_NPRDMA_TX_CQ_SLACK;
}

int iface_has_slices(uct_iface_h iface)
{
    return spares_side(iface)->ops.sched.in_flight > 0;
}

unsigned iface_idle(uct_iface_h iface)
{
    return ucs_derived_of(iface, uct_nprdma_iface_t)->idle.count;
}

unsigned num_served(uct_iface_h iface)
{
    uct_md_h md = ucs_derived_of(iface, uct_base_iface_t)->md;
    uct_nprdma_service_t *service =
            ucs_derived_of(md, uct_nprdma_md_t)->service;
    unsigned count = 0;
    uct_nprdma_service_conn_t *conn;

    pthread_mutex_lock(&service->conns_lock);
    ucs_list_for_each(conn, &service->conns, list) {
        count += conn->state != UCT_NPRDMA_SERVICE_CONN_CLOSED;
    }
    pthread_mutex_unlock(&service->conns_lock);
    return count;
}

static ucs_async_context_t *async_of(uct_iface_h iface)
{
    return ucs_derived_of(iface, uct_base_iface_t)->worker->async;
}

void async_hold(uct_iface_h iface)
{
    UCS_ASYNC_BLOCK(async_of(iface));
}

void async_release(uct_iface_h iface)
{
    UCS_ASYNC_UNBLOCK(async_of(iface));
}

void async_answer(uct_iface_h iface)
{
    ucs_async_check_miss(async_of(iface));
}
