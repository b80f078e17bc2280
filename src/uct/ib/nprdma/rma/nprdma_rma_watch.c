/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_watch.h"
#include "uct/ib/nprdma/net/nprdma_cm.h"
#include "uct/ib/nprdma/net/nprdma_conn.h"

#include <ucs/async/async.h>
#include <ucs/debug/log.h>
#include <ucs/time/time.h>

/* Calls of progress between two reads of the clock */
#define UCT_NPRDMA_RMA_WATCH_POLLS  64

/* Shortest time between probes, in seconds */
#define UCT_NPRDMA_RMA_WATCH_MIN    2e-3

/* Shortest time between two scans of the endpoints, in seconds. Scans take at
 * most one part in SHARE of the time. */
#define UCT_NPRDMA_LONGEST_INTERVAL 10e-3
#define UCT_NPRDMA_LONGEST_SHARE    100

/* Seconds after which a wait is reported; again each time it has doubled */
#define UCT_NPRDMA_LONGEST_REPORT   30.0


/* ---- operations that wait ---- */

/* Note what an endpoint waits for. The mark names the oldest of its kind that
 * is not done; 0: nothing. Usual waits may take long, because a peer's program
 * may compute for any time without a receive. The peer's device, wire-up and
 * service have no reason to. */
static void
uct_nprdma_rma_watch_note(uct_nprdma_rma_iface_t *iface,
                          uct_nprdma_rma_ep_t *ep,
                          uct_nprdma_longest_kind_t kind, ucs_time_t now,
                          uint64_t mark, int is_usual, const char *reason)
{
    uct_nprdma_longest_t *longest = &ep->longest[kind];
    uint64_t *counter             = &iface->net.stats->longest_us;
    double seconds;

    if ((mark == 0) || (mark != longest->mark)) {
        longest->mark        = mark;
        longest->since       = now;
        longest->num_reports = 0;
        return;
    }

    seconds  = ucs_time_to_sec(now - longest->since);
    *counter = ucs_max(*counter, (uint64_t)(seconds * 1e6));
    if ((longest->num_reports < 32) &&
        (seconds >= UCT_NPRDMA_LONGEST_REPORT *
                    (double)(1ul << longest->num_reports))) {
        ++longest->num_reports;
        ucs_log(is_usual ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_WARN,
                "endpoint %p: an operation has waited %.0f s, now for %s", ep,
                seconds, reason);
    }
}

static void
uct_nprdma_rma_watch_connect(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_ep_t *ep, ucs_time_t now)
{
    int is_connecting = (ep->net.am.state == UCT_NPRDMA_CONN_CONNECTING) ||
                        (ep->net.svc.state == UCT_NPRDMA_CONN_CONNECTING);

    uct_nprdma_rma_watch_note(iface, ep, UCT_NPRDMA_LONGEST_CONNECT, now,
                              is_connecting, 0, "the connection to be set up");
}

/* Only some sends of active messages have completions */
static void
uct_nprdma_rma_watch_send(uct_nprdma_rma_iface_t *iface,
                          uct_nprdma_rma_ep_t *ep, ucs_time_t now)
{
    const uct_nprdma_conn_t *conn = &ep->net.am;
    int is_sending                = (conn->state ==
                                     UCT_NPRDMA_CONN_CONNECTED) &&
                                    uct_nprdma_conn_is_watched(conn);

    uct_nprdma_rma_watch_note(iface, ep, UCT_NPRDMA_LONGEST_SEND, now,
                              is_sending ? (1 + (uint64_t)conn->done_sn) : 0, 1,
                              "an acknowledgement or a posted receive of the "
                              "peer");
}

static void
uct_nprdma_rma_watch_rma(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_ep_t *ep,
                         ucs_time_t now)
{
    uct_nprdma_rma_t *rma = ep->rma;
    const char *reply     = "a reply of the peer's service";
    const char *reason;
    uint64_t mark;

    mark   = (rma->num_replies > 0) ? (1 + (uint64_t)rma->done_sn) : 0;
    reason = (rma->num_replies > 0) ? reply :
             (ucs_queue_is_empty(&ep->net.svc.comps) &&
              ucs_queue_is_empty(&ep->net.bulk.comps)) ?
             "earlier operations or a resource: it has not started" :
             "the device to transfer data or page states";
    uct_nprdma_rma_watch_note(iface, ep, UCT_NPRDMA_LONGEST_REQUEST, now, mark,
                              0, reply);
    mark   = ucs_list_is_empty(&rma->ops.order.ops) ? 0 :
             ucs_list_head(&rma->ops.order.ops, uct_nprdma_order_op_t,
                           list)->sn;
    uct_nprdma_rma_watch_note(iface, ep, UCT_NPRDMA_LONGEST_OP, now, mark, 0,
                              reason);
}

/* The user's pending requests are executed in order, and each starts
 * something */
static void
uct_nprdma_rma_watch_pending(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_ep_t *ep, ucs_time_t now)
{
    int is_fenced    = ep->net.blocked & (UCT_NPRDMA_EP_FENCED |
                                          UCT_NPRDMA_EP_FENCED_RMA);
    uint64_t started = 1ull + ep->net.am.sn + ep->net.svc.sn + ep->net.bulk.sn +
                       ((ep->rma == NULL) ? 0 : ep->rma->ops.order.sn);

    uct_nprdma_rma_watch_note(iface, ep, UCT_NPRDMA_LONGEST_PENDING, now,
                              (ep->net.blocked & UCT_NPRDMA_EP_PENDING) ?
                              started : 0, 1,
                              is_fenced ? "the operations before a fence" :
                                          "a free entry of a send queue, "
                                          "buffer or reply slot");
}

void uct_nprdma_rma_watch_check(uct_nprdma_rma_iface_t *iface, ucs_time_t now)
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
        uct_nprdma_rma_watch_connect(iface, ep, now);
        uct_nprdma_rma_watch_send(iface, ep, now);
        if (ep->rma != NULL) {
            uct_nprdma_rma_watch_rma(iface, ep, now);
        }
        uct_nprdma_rma_watch_pending(iface, ep, now);
    }

    end                 = ucs_get_time();
    iface->longest.next = end + ucs_max(interval, (end - now) *
                                                  UCT_NPRDMA_LONGEST_SHARE);
}


/* ---- dead peers ---- */

void uct_nprdma_rma_watch_init(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_watch_t *watch)
{
    double timeout = uct_nprdma_net_dev(&iface->net)->config.timeout;

    /* As often as the device's timeout, and not more often than a timer of UCX
     * can */
    watch->interval  = ucs_time_from_sec(
            ucs_max(timeout, UCT_NPRDMA_RMA_WATCH_MIN));
    watch->next      = 0;
    watch->num_polls = 0;
    watch->timer_id  = -1;
    atomic_init(&watch->is_due, 0);
}

void uct_nprdma_rma_watch_stop(uct_nprdma_rma_iface_t *iface)
{
    ucs_async_context_t *async = iface->net.super.worker->async;
    int timer_id;

    if (iface->res == NULL) {
        return;
    }

    UCS_ASYNC_BLOCK(async);
    timer_id                   = iface->res->watch.timer_id;
    iface->res->watch.timer_id = -1;
    UCS_ASYNC_UNBLOCK(async);

    /* Not with the context blocked, because this waits for a running handler */
    if (timer_id >= 0) {
        ucs_async_remove_handler(timer_id, 1);
    }
}

/* Post a WRITE of zero bytes, unless a signaled WR is outstanding, which finds
 * a dead peer as well. Unsignaled WRs may be done already. */
static void uct_nprdma_rma_watch_probe(uct_nprdma_rma_iface_t *iface,
                                       uct_nprdma_conn_t *conn)
{
    if ((conn->state == UCT_NPRDMA_CONN_CONNECTED) &&
        !uct_nprdma_conn_is_watched(conn) &&
        uct_nprdma_conn_admit_redo(&iface->net, conn, 1)) {
        /* If the post fails, the connection fails, which is a result as well */
        (void)uct_nprdma_conn_post_nop(&iface->net, conn, NULL);
        ++iface->net.stats->svc_probes;
    }
}

void uct_nprdma_rma_watch_progress(uct_nprdma_rma_iface_t *iface,
                                   uct_nprdma_rma_watch_t *watch)
{
    uct_nprdma_rma_res_t *res = iface->res;
    ucs_time_t now;
    uct_nprdma_rma_t *rma;
    unsigned i;

    if (ucs_likely((++watch->num_polls % UCT_NPRDMA_RMA_WATCH_POLLS) &&
                   !uct_nprdma_cm_hint(&watch->is_due))) {
        return;
    }

    now = ucs_get_time();
    if (now < watch->next) {
        return;
    }

    uct_nprdma_rma_watch_check(iface, now);
    watch->next = now + watch->interval;
    atomic_store(&watch->is_due, 0);
    for (i = 0; i < UCT_NPRDMA_RMA_NUM_REPLIES; ++i) {
        rma = res->replies[i].rma;
        if ((rma != NULL) && (rma->num_replies > 0)) {
            uct_nprdma_rma_watch_probe(iface, &rma->ep->net.svc);
        }
    }
}

static void uct_nprdma_rma_watch_handler(int id, ucs_event_set_types_t events,
                                         void *arg)
{
    uct_nprdma_rma_iface_t *iface = arg;
    uct_nprdma_rma_watch_t *watch = &iface->res->watch;

    if (iface->net.forked) {
        return;
    }

    /* The next sleep starts the timer again */
    if (watch->timer_id == id) {
        watch->timer_id = -1;
        ucs_async_remove_handler(id, 0);
    }
    atomic_store(&watch->is_due, 1);
    uct_nprdma_cm_wakeup(&iface->net.cm);
}

void uct_nprdma_rma_watch_sleep(uct_nprdma_rma_iface_t *iface)
{
    ucs_async_context_t *async = iface->net.super.worker->async;
    ucs_status_t status        = UCS_OK;
    uct_nprdma_rma_watch_t *watch;

    if ((iface->res == NULL) || !uct_nprdma_rma_watch_is_needed(iface)) {
        return;
    }

    watch = &iface->res->watch;

    UCS_ASYNC_BLOCK(async);
    if (watch->timer_id < 0) {
        status = ucs_async_add_timer(async->mode, watch->interval,
                                     uct_nprdma_rma_watch_handler, iface, async,
                                     &watch->timer_id);
    }
    UCS_ASYNC_UNBLOCK(async);

    if (status != UCS_OK) {
        watch->timer_id = -1;
        ucs_error("failed to start a timer for peers that owe a reply: %s",
                  ucs_status_string(status));
    }
}
