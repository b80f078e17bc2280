/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_longest.h"
#include "nprdma_rma_types.h"
#include "uct/ib/nprdma/net/nprdma_conn.h"

#include <ucs/debug/log.h>
#include <ucs/time/time.h>

/* Seconds after which a wait is reported; again each time it has doubled */
#define UCT_NPRDMA_LONGEST_REPORT  30.0

/* Scans of the endpoints take at most one part in 100 of the time */
#define UCT_NPRDMA_LONGEST_SHARE  100


static const char *uct_nprdma_waits[UCT_NPRDMA_WAIT_LAST] = {
#define UCT_NPRDMA_WAIT_ENTRY(_name, _text) [UCT_NPRDMA_WAIT_##_name] = _text,
    UCT_NPRDMA_FOREACH_WAIT(UCT_NPRDMA_WAIT_ENTRY)
#undef UCT_NPRDMA_WAIT_ENTRY
};

/* These waits are usual, because a peer's program may compute for any time
 * without a receive. The peer's device, wire-up and service have no reason to
 * wait long. */
static int uct_nprdma_longest_is_usual(uct_nprdma_wait_for_t state)
{
    return (state == UCT_NPRDMA_WAIT_send) ||
           (state == UCT_NPRDMA_WAIT_credits) ||
           (state == UCT_NPRDMA_WAIT_fence);
}

static void
uct_nprdma_longest_report(const uct_nprdma_rma_ep_t *ep,
                          uct_nprdma_longest_t *longest, ucs_time_t now)
{
    double seconds = ucs_time_to_sec(now - longest->since);

    if ((longest->num_reports < 32) &&
        (seconds >= UCT_NPRDMA_LONGEST_REPORT *
                    (double)(1ul << longest->num_reports))) {
        ++longest->num_reports;
        ucs_log(uct_nprdma_longest_is_usual(longest->state) ?
                        UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_WARN,
                "endpoint %p: an operation has waited %.0f s, now for %s", ep,
                seconds, uct_nprdma_waits[longest->state]);
    }
}

/* is_done: all operations up to the mark are done. `started` is the number of
 * the last operation that has started. */
static void
uct_nprdma_longest_update(uct_nprdma_rma_iface_t *iface,
                          const uct_nprdma_rma_ep_t *ep,
                          uct_nprdma_longest_t *longest, ucs_time_t now,
                          uct_nprdma_wait_for_t state, int is_done,
                          uint64_t started)
{
    uint64_t *counter = &iface->net.stats->longest_us;
    int is_new        = (longest->state == UCT_NPRDMA_WAIT_nothing) || is_done;

    longest->state = state;
    if (state == UCT_NPRDMA_WAIT_nothing) {
        return;
    }

    if (is_new) {
        longest->mark        = started;
        longest->since       = now;
        longest->num_reports = 0;
        return;
    }

    *counter = ucs_max(*counter,
                       (uint64_t)ucs_time_to_usec(now - longest->since));
    uct_nprdma_longest_report(ep, longest, now);
}

/* Only some sends of active messages have completions */
static void uct_nprdma_longest_conn(uct_nprdma_rma_iface_t *iface,
                                    const uct_nprdma_rma_ep_t *ep,
                                    const uct_nprdma_conn_t *conn,
                                    uct_nprdma_longest_t *longest,
                                    ucs_time_t now)
{
    uct_nprdma_wait_for_t state = UCT_NPRDMA_WAIT_nothing;
    uint16_t signaled           = conn->sn - conn->unsignaled;
    int is_done                 = 0;

    if (conn->state == UCT_NPRDMA_CONN_CONNECTING) {
        state = UCT_NPRDMA_WAIT_connecting;
    } else if ((conn->state == UCT_NPRDMA_CONN_CONNECTED) &&
               (conn == &ep->net.am) && uct_nprdma_conn_is_watched(conn)) {
        state   = UCT_NPRDMA_WAIT_send;
        is_done = (longest->state != state) ||
                  ((int16_t)(conn->done_sn - (uint16_t)longest->mark) >= 0);
    }
    uct_nprdma_longest_update(iface, ep, longest, now, state, is_done,
                              signaled);
}

static uct_nprdma_wait_for_t
uct_nprdma_longest_reply(const uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_reply_t *reply;

    reply = ucs_queue_head_elem_non_empty((ucs_queue_head_t*)&rma->replies,
                                          uct_nprdma_rma_reply_t, queue);
    if (reply->type == UCT_NPRDMA_SVC_POPULATE) {
        return UCT_NPRDMA_WAIT_populate;
    }
    return ((rma->num_copies[0] + rma->num_copies[1]) > 0) ?
           UCT_NPRDMA_WAIT_copy : UCT_NPRDMA_WAIT_reply;
}

/* Purpose of the oldest work request that has a completion. Operations wait for
 * those of slices longer than for others. */
static uct_nprdma_wait_for_t
uct_nprdma_longest_wr(const uct_nprdma_rma_iface_t *iface,
                      const uct_nprdma_net_ep_t *ep)
{
    const uct_nprdma_op_iface_t *ops = &iface->res->ops;
    const uct_nprdma_conn_t *conn    = &ep->bulk;
    const uct_nprdma_op_slice_t *slice;
    const uct_nprdma_comp_t *comp;

    if (ucs_queue_is_empty((ucs_queue_head_t*)&conn->comps)) {
        conn = &ep->svc;
    }
    if (ucs_queue_is_empty((ucs_queue_head_t*)&conn->comps)) {
        return UCT_NPRDMA_WAIT_held;
    }

    comp  = ucs_queue_head_elem_non_empty((ucs_queue_head_t*)&conn->comps,
                                          uct_nprdma_comp_t, queue);
    slice = ucs_container_of(comp, uct_nprdma_op_slice_t, wr);
    if ((slice >= ops->slices) &&
        (slice < ops->slices + ucs_static_array_size(ops->slices)) &&
        ((slice->step == UCT_NPRDMA_OP_BEFORE) ||
         (slice->step == UCT_NPRDMA_OP_AFTER))) {
        return UCT_NPRDMA_WAIT_verification;
    }
    return UCT_NPRDMA_WAIT_transfer;
}

static void
uct_nprdma_longest_rma(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_ep_t *ep,
                       ucs_time_t now)
{
    uct_nprdma_longest_ep_t *longest = &ep->longest;
    uct_nprdma_rma_t *rma            = ep->rma;
    uct_nprdma_wait_for_t state      = UCT_NPRDMA_WAIT_nothing;

    if (rma->num_replies > 0) {
        state = uct_nprdma_longest_reply(rma);
    }
    uct_nprdma_longest_update(iface, ep, &longest->request, now, state,
                              (int32_t)(rma->done_sn -
                                        (uint32_t)longest->request.mark) >= 0,
                              rma->reply_sn);

    if (ucs_list_is_empty(&rma->ops.order.ops)) {
        state = UCT_NPRDMA_WAIT_nothing;
    } else if (state == UCT_NPRDMA_WAIT_nothing) {
        state = uct_nprdma_longest_wr(iface, &ep->net);
    }
    uct_nprdma_longest_update(iface, ep, &longest->op, now, state,
                              uct_nprdma_order_is_done(&rma->ops.order,
                                                       longest->op.mark),
                              rma->ops.order.sn);
}

/* The user's pending requests are executed in order, and each starts
 * something */
static void uct_nprdma_longest_pending(uct_nprdma_rma_iface_t *iface,
                                       uct_nprdma_rma_ep_t *ep, ucs_time_t now)
{
    const uint32_t fenced       = UCT_NPRDMA_EP_FENCED |
                                  UCT_NPRDMA_EP_FENCED_RMA;
    uct_nprdma_wait_for_t state = UCT_NPRDMA_WAIT_nothing;
    uint64_t started            = ep->net.am.sn + ep->net.svc.sn +
                                  ep->net.bulk.sn;

    if (ep->net.blocked & UCT_NPRDMA_EP_PENDING) {
        state = (ep->net.blocked & fenced) ? UCT_NPRDMA_WAIT_fence :
                                         UCT_NPRDMA_WAIT_credits;
    }
    if (ep->rma != NULL) {
        started += ep->rma->ops.order.sn;
    }
    uct_nprdma_longest_update(iface, ep, &ep->longest.pending, now, state,
                              ep->longest.pending.mark != started, started);
}

void uct_nprdma_longest_check(uct_nprdma_rma_iface_t *iface, ucs_time_t now)
{
    ucs_time_t interval = ucs_time_from_sec(UCT_NPRDMA_LONGEST_INTERVAL);
    uct_nprdma_rma_ep_t *ep;
    ucs_time_t end;

    if ((now < iface->longest.next) || iface->net.forked) {
        return;
    }

    ucs_list_for_each(ep, &iface->net.eps, net.list) {
        if (ep->net.blocked & UCT_NPRDMA_EP_FAILED) {
            continue;
        }
        uct_nprdma_longest_conn(iface, ep, &ep->net.am, &ep->longest.am, now);
        uct_nprdma_longest_conn(iface, ep, &ep->net.svc, &ep->longest.svc, now);
        if (ep->rma != NULL) {
            uct_nprdma_longest_rma(iface, ep, now);
        }
        uct_nprdma_longest_pending(iface, ep, now);
    }

    end                 = ucs_get_time();
    iface->longest.next = end + ucs_max(interval, (end - now) *
                                                  UCT_NPRDMA_LONGEST_SHARE);
}

void uct_nprdma_longest_polled(uct_nprdma_rma_iface_t *iface)
{
    uct_nprdma_longest_check(iface, ucs_get_time());
}
