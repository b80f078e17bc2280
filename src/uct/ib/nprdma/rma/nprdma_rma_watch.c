/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_watch.h"
#include "nprdma_longest.h"
#include "uct/ib/nprdma/net/nprdma_cm.h"
#include "uct/ib/nprdma/net/nprdma_tx.h"

#include <ucs/async/async.h>
#include <ucs/debug/log.h>
#include <ucs/time/time.h>

/* Calls of progress between two reads of the clock */
#define UCT_NPRDMA_RMA_WATCH_POLLS  64

/* Shortest time between probes, in seconds */
#define UCT_NPRDMA_RMA_WATCH_MIN    2e-3


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

    uct_nprdma_longest_check(iface, now);
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
