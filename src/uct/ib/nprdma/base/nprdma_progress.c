/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_ep.h"
#include "nprdma_rx_wait.h"
#include "uct/ib/nprdma/net/nprdma_cm.h"
#include "uct/ib/nprdma/net/nprdma_conn.h"
#include "uct/ib/nprdma/net/nprdma_responder.h"
#include "uct/ib/nprdma/rma/nprdma_initiator.h"
#include "uct/ib/nprdma/rma/nprdma_rma_watch.h"
#include "uct/ib/nprdma/service/nprdma_service.h"


#include <ucs/debug/log.h>

/* Progress of an interface: receives, completions of sends, and everything that
 * waits for either */

#define UCT_NPRDMA_POLL_BATCH  16

/* Calls of progress in a row that do not poll the service's queue */
#define UCT_NPRDMA_BUSY_POLLS  4


static ucs_status_t uct_nprdma_wc_status(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS:
        return UCS_OK;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return UCS_ERR_ENDPOINT_TIMEOUT;
    case IBV_WC_WR_FLUSH_ERR:
        return UCS_ERR_CANCELED;
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
        return UCS_ERR_CONNECTION_RESET;
    default:
        return UCS_ERR_IO_ERROR;
    }
}

ucs_status_t uct_nprdma_iface_post_srq(uct_nprdma_iface_t *iface)
{
    struct ibv_recv_wr wrs[UCT_NPRDMA_RX_MAX_BATCH];
    struct ibv_sge sges[UCT_NPRDMA_RX_MAX_BATCH];
    unsigned i, count = ucs_min(iface->rx.pool.num_free,
                                iface->config.rx_max_batch);
    struct ibv_recv_wr *bad_wr;
    uct_nprdma_slot_t *slot;
    int ret;

    if (count == 0) {
        return UCS_OK;
    }

    for (i = 0; i < count; ++i) {
        slot           = uct_nprdma_bounce_get(&iface->rx.pool);
        sges[i].addr   = (uintptr_t)slot->data + iface->rx.hdr_offset;
        sges[i].length = iface->rx.length;
        sges[i].lkey   = slot->lkey;
        wrs[i].wr_id   = (uintptr_t)slot;
        wrs[i].sg_list = &sges[i];
        wrs[i].num_sge = 1;
        wrs[i].next    = &wrs[i + 1];
    }
    wrs[count - 1].next = NULL;

    ret = ibv_post_srq_recv(iface->net.rx.srq, wrs, &bad_wr);
    if (ucs_unlikely(ret != 0)) {
        ucs_error("%s: failed to post receives: %s",
                  uct_nprdma_net_dev(&iface->net)->name, strerror(ret));
        for (; bad_wr != NULL; bad_wr = bad_wr->next) {
            uct_nprdma_bounce_put((uct_nprdma_slot_t*)(uintptr_t)bad_wr->wr_id);
            --count;
        }
    }
    iface->rx.posted += count;
    return (ret == 0) ? UCS_OK : UCS_ERR_IO_ERROR;
}

/* Handle a receive that is not a valid active message: an error, the end of a
 * connection, or malformed data */
static UCS_F_NOINLINE void
uct_nprdma_iface_rx_other(uct_nprdma_iface_t *iface, const struct ibv_wc *wc,
                          uct_nprdma_slot_t *slot, const void *data)
{
    if (wc->status != IBV_WC_SUCCESS) {
        ucs_debug("iface %p: receive failed: work completion status %d", iface,
                  wc->status);
    } else if (uct_nprdma_am_parse(data, wc->byte_len) == UCT_NPRDMA_AM_FIN) {
        uct_nprdma_responder_fin(&iface->net, wc->qp_num);
    } else {
        ++iface->net.stats->am_rx_malformed;
        ucs_debug("iface %p: ignored a malformed message of %u bytes", iface,
                  wc->byte_len);
    }

    uct_nprdma_bounce_put(slot);
}

static UCS_F_ALWAYS_INLINE void
uct_nprdma_iface_rx_am(uct_nprdma_iface_t *iface, const struct ibv_wc *wc)
{
    uct_nprdma_slot_t *slot  = (uct_nprdma_slot_t*)(uintptr_t)wc->wr_id;
    uct_nprdma_am_hdr_t *hdr = UCS_PTR_BYTE_OFFSET(slot->data,
                                                   iface->rx.hdr_offset);
    unsigned flags           = UCT_CB_PARAM_FLAG_DESC;
    ucs_status_t status;
    void *desc;

    --iface->rx.posted;
    /* A WRITE with immediate data would deliver again what is in the slot */
    if (ucs_unlikely((wc->status != IBV_WC_SUCCESS) ||
                     (wc->opcode != IBV_WC_RECV) ||
                     (wc->byte_len < sizeof(*hdr)) ||
                     (hdr->type != UCT_NPRDMA_AM_DATA) ||
                     (hdr->length != (wc->byte_len - sizeof(*hdr))) ||
                     (hdr->am_id >= UCT_AM_ID_MAX))) {
        uct_nprdma_iface_rx_other(iface, wc, slot, hdr);
        return;
    }

    if (ucs_unlikely((wc->wc_flags & IBV_WC_WITH_IMM) ||
                     !ucs_list_is_empty(&iface->net.rx.waiting)) &&
        !uct_nprdma_rx_wait_check(
                &iface->net, uct_nprdma_iface_md(iface)->service, wc, hdr)) {
        uct_nprdma_bounce_put(slot);
        return;
    }

    /* The user may keep slots as long as enough are left for receiving;
     * otherwise it has to copy */
    if (ucs_unlikely((iface->rx.posted + iface->rx.pool.num_free) <
                     iface->config.rx_reserve)) {
        flags = 0;
    }

    uct_iface_trace_am(&iface->net.super, UCT_AM_TRACE_TYPE_RECV, hdr->am_id,
                       hdr + 1, hdr->length, "RX: AM");
    ++iface->net.stats->am_rx;
    iface->net.stats->am_bytes_rx += hdr->length;
    status = uct_iface_invoke_am(&iface->net.super, hdr->am_id, hdr + 1,
                                 hdr->length, flags);
    if (ucs_likely(status == UCS_OK)) {
        uct_nprdma_bounce_put(slot);
    } else {
        desc                = UCS_PTR_BYTE_OFFSET(slot->data,
                                                  iface->rx.headroom_offset);
        uct_recv_desc(desc) = &iface->rx.release_desc;
    }
}

void uct_nprdma_iface_release_desc(uct_recv_desc_t *self, void *desc)
{
    uct_nprdma_iface_t *iface = ucs_container_of(self, uct_nprdma_iface_t,
                                                 rx.release_desc);
    uct_nprdma_rx_head_t *head;

    head = UCS_PTR_BYTE_OFFSET(desc, -(ptrdiff_t)iface->rx.headroom_offset);
    uct_nprdma_bounce_put(head->slot);
}

static UCS_F_ALWAYS_INLINE unsigned
uct_nprdma_iface_handle_rx(uct_nprdma_iface_t *iface, const struct ibv_wc *wc)
{
    uct_nprdma_conn_t *conn;

    if (ucs_likely(!uct_nprdma_wr_id_is_svc(wc->wr_id))) {
        uct_nprdma_iface_rx_am(iface, wc);
        return 1;
    }

    conn = uct_nprdma_conn_find(&iface->net, uct_nprdma_wr_id_conn(wc->wr_id));
    if (conn == NULL) {
        return 0; /* its buffers were released with the connection */
    }

    return uct_nprdma_rma_handle_reply(&iface->rma, conn,
                                       uct_nprdma_wr_id_index(wc->wr_id), wc);
}

static UCS_F_ALWAYS_INLINE int
uct_nprdma_iface_poll_rx(uct_nprdma_iface_t *iface, unsigned *count_p)
{
    struct ibv_wc wc[UCT_NPRDMA_POLL_BATCH];
    int i, num_wcs;

    num_wcs = ibv_poll_cq(iface->net.rx.cq, UCT_NPRDMA_POLL_BATCH, wc);
    for (i = 0; i < num_wcs; ++i) {
        if ((i + 1) < num_wcs) {
            __builtin_prefetch((void*)(uintptr_t)wc[i + 1].wr_id);
        }
        *count_p += uct_nprdma_iface_handle_rx(iface, &wc[i]);
    }

    if (iface->rx.pool.num_free >= iface->config.rx_max_batch) {
        uct_nprdma_iface_post_srq(iface);
    } else if (ucs_unlikely(iface->rx.posted < iface->config.rx_low)) {
        uct_nprdma_iface_rx_low(iface);
    }

    return num_wcs;
}

void uct_nprdma_iface_rx_low(uct_nprdma_iface_t *iface)
{
    if (iface->rx.pool.num_free == 0) {
        if (uct_nprdma_bounce_grow(&iface->rx.pool) == 0) {
            return; /* the user keeps all slots; senders wait (RNR) */
        }
        uct_nprdma_iface_init_rx_slots(iface);
    }

    uct_nprdma_iface_post_srq(iface);
}

/* Find the reason why a device has flushed a queue pair that this side has not
 * stopped: some devices report none. For example, soft-RoCE flushes packets
 * that it cannot send (flush_send_queue in rxe_comp.c), because the port is
 * down or about to be. In no case has the user canceled them. */
static ucs_status_t uct_nprdma_iface_flush_reason(uct_nprdma_iface_t *iface)
{
    const uct_nprdma_device_t *dev = uct_nprdma_net_dev(&iface->net);
    struct ibv_port_attr attr;

    if ((dev->verbs->query_port_attr(dev->context, iface->net.port_num,
                                    &attr) == 0) &&
        (attr.state != IBV_PORT_ACTIVE)) {
        return UCS_ERR_UNREACHABLE;
    }
    return UCS_ERR_IO_ERROR;
}

static UCS_F_NOINLINE void
uct_nprdma_iface_tx_error(uct_nprdma_iface_t *iface, const struct ibv_wc *wc,
                          uct_nprdma_conn_t *conn)
{
    ucs_status_t status = uct_nprdma_wc_status(wc->status);

    /* The first error is the reason; later WRs are only flushed. It may come
     * before progress has seen that the connection is established. */
    if ((conn->state == UCT_NPRDMA_CONN_CONNECTED) ||
        (conn->state == UCT_NPRDMA_CONN_CONNECTING)) {
        if (wc->status == IBV_WC_WR_FLUSH_ERR) {
            status = uct_nprdma_iface_flush_reason(iface);
        }
        ucs_debug("iface %p: send on connection 0x%x kind %u failed: work "
                  "completion status %d vendor error 0x%x", iface, conn->id,
                  conn->kind, wc->status, wc->vendor_err);
        uct_nprdma_conn_retire(&iface->net, conn, (uint16_t)wc->wr_id, status);
        uct_nprdma_conn_fail(&iface->net, conn, status);
    } else {
        uct_nprdma_conn_retire(&iface->net, conn, (uint16_t)wc->wr_id,
                               (conn->state == UCT_NPRDMA_CONN_FAILED) ?
                               conn->status : status);
    }
}

static UCS_F_ALWAYS_INLINE void
uct_nprdma_iface_handle_tx(uct_nprdma_iface_t *iface, const struct ibv_wc *wc)
{
    uct_nprdma_conn_t *conn;
    uct_nprdma_net_ep_t *ep;

    conn = uct_nprdma_conn_find(&iface->net, uct_nprdma_wr_id_conn(wc->wr_id));
    if (ucs_unlikely(conn == NULL)) {
        return;
    }

    if (ucs_unlikely(wc->status != IBV_WC_SUCCESS)) {
        uct_nprdma_iface_tx_error(iface, wc, conn);
        return;
    }

    ep = conn->ep;
    uct_nprdma_conn_retire(&iface->net, conn, (uint16_t)wc->wr_id, UCS_OK);
    if (ucs_likely(ep != NULL)) {
        uct_nprdma_net_ep_schedule(&iface->net, ep);
    }
}

static UCS_F_ALWAYS_INLINE unsigned
uct_nprdma_iface_poll_tx(uct_nprdma_iface_t *iface)
{
    struct ibv_wc wc[UCT_NPRDMA_POLL_BATCH];
    int i, num_wcs;

    num_wcs = ibv_poll_cq(iface->net.tx.cq, UCT_NPRDMA_POLL_BATCH, wc);
    for (i = 0; i < num_wcs; ++i) {
        uct_nprdma_iface_handle_tx(iface, &wc[i]);
    }
    return ucs_max(num_wcs, 0);
}

void uct_nprdma_iface_reap_tx(uct_nprdma_iface_t *iface)
{
    uct_nprdma_iface_poll_tx(iface);
}

static uct_nprdma_ep_t *uct_nprdma_iface_find_broken(uct_nprdma_iface_t *iface)
{
    uct_nprdma_ep_t *ep;

    ucs_list_for_each(ep, &iface->net.eps, net.list) {
        if ((ep->net.am.broken || ep->net.svc.broken ||
             ep->net.bulk.broken) &&
            !(ep->net.blocked & UCT_NPRDMA_EP_FAILED)) {
            return ep;
        }
    }
    return NULL;
}

/* A refused post has the same effect as a failed completion. But the error
 * handler must not be called within an operation of the user, so progress does
 * it */
static UCS_F_NOINLINE void
uct_nprdma_iface_fail_broken(uct_nprdma_iface_t *iface)
{
    uct_nprdma_ep_t *ep;

    iface->net.tx.post_failed = 0;
    /* From the start each time, because the error handler may destroy any
     * endpoint */
    while ((ep = uct_nprdma_iface_find_broken(iface)) != NULL) {
        uct_nprdma_ep_fail(iface, ep, UCS_ERR_CONNECTION_RESET);
    }
}

/* Handle the completion that event_arm has found */
static UCS_F_NOINLINE unsigned
uct_nprdma_iface_handle_stash(uct_nprdma_iface_t *iface)
{
    struct ibv_wc wc = iface->stash.wc;
    int is_rx        = iface->stash.is_rx;

    iface->stash.valid = 0;
    if (is_rx) {
        return uct_nprdma_iface_handle_rx(iface, &wc);
    }

    uct_nprdma_iface_handle_tx(iface, &wc);
    return 1;
}

/* The parts of progress that most calls do not need */
static UCS_F_NOINLINE unsigned
uct_nprdma_iface_progress_slow(uct_nprdma_iface_t *iface, int rx_empty)
{
    unsigned count = 0;

    if (iface->net.tx.post_failed) {
        uct_nprdma_iface_fail_broken(iface);
        ++count;
    }

    if (iface->net.tx.reap) {
        uct_nprdma_ep_reap(iface, 0);
    }

    if (uct_nprdma_cm_hint(&iface->net.cm.attention) ||
        (uct_nprdma_cm_hint(&iface->net.cm.num_in_flight) > 0)) {
        count += uct_nprdma_conn_progress(&iface->net);
    }

    if ((uct_nprdma_cm_hint(&iface->net.cm.num_dying) > 0) && rx_empty) {
        uct_nprdma_responder_reap(&iface->net);
    }

    uct_nprdma_ep_try_lacking(iface);
    ucs_arbiter_dispatch(&iface->net.tx.arbiter, 1,
                         uct_nprdma_ep_process_pending, iface);
    return count;
}

static unsigned uct_nprdma_iface_poll(uct_nprdma_iface_t *iface)
{
    unsigned count = 0;
    int num_rx;

    if (uct_nprdma_fork_is_child()) {
        return 0;
    }

    if (ucs_unlikely(iface->stash.valid)) {
        if (iface->net.forked) {
            return 0;
        }
        count = uct_nprdma_iface_handle_stash(iface);
    }

    if (ucs_unlikely(!ucs_list_is_empty(&iface->net.rx.waiting))) {
        count += uct_nprdma_rx_wait_progress(&iface->net);
    }

    num_rx = uct_nprdma_iface_poll_rx(iface, &count);
    if ((count == 0) || (iface->net.tx.num_awaited > 0) ||
        (iface->net.tx.cq_avail < (iface->net.config.tx_cq_len / 2)) ||
        (iface->net.tx.pool.num_free < iface->config.tx_slots_low)) {
        count += uct_nprdma_iface_poll_tx(iface);
    }

    /* Poll the service at intervals even if each call has work of its own, and
     * in each call that may take as long as slices */
    if ((count == 0) || (++iface->num_busy >= UCT_NPRDMA_BUSY_POLLS) ||
        uct_nprdma_rma_has_slices(&iface->rma)) {
        iface->num_busy = 0;
        uct_nprdma_rma_watch_poll(&iface->rma);
        count          += uct_nprdma_service_progress(
                uct_nprdma_iface_md(iface)->service);
        if (ucs_unlikely(iface->net.cm.is_polled)) {
            count += uct_nprdma_cm_poll(&iface->net);
        }
    }

    if ((iface->rma.res != NULL) &&
        ucs_unlikely(uct_nprdma_rma_has_work(&iface->rma))) {
        count += uct_nprdma_rma_progress(&iface->rma);
    }

    if (ucs_unlikely(!ucs_arbiter_is_empty(&iface->net.tx.arbiter) ||
                     !ucs_list_is_empty(&iface->lacking) ||
                     iface->net.tx.reap || iface->net.tx.post_failed ||
                     uct_nprdma_cm_hint(&iface->net.cm.attention) ||
                     uct_nprdma_cm_hint(&iface->net.cm.num_in_flight) ||
                     uct_nprdma_cm_hint(&iface->net.cm.num_dying))) {
        count += uct_nprdma_iface_progress_slow(iface, num_rx == 0);
    }

    if (count > 0) {
        uct_nprdma_idle_reset(&iface->idle);
    } else if (uct_nprdma_idle_poll(&iface->idle)) {
        uct_nprdma_idle_pause();
    }
    return count;
}

/* UCP polls an interface that it has just opened, and asserts that this finds
 * nothing (ucp_worker_iface_check_events(), forced). But peers may connect, and
 * use memory that other workers have exported, at any time. */
unsigned uct_nprdma_iface_progress(uct_iface_h tl_iface)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);
    unsigned count            = uct_nprdma_iface_poll(iface);

    return (iface->net.super.progress_flags != 0) ? count : 0;
}

static unsigned uct_nprdma_iface_serve_progress(void *arg)
{
    uct_nprdma_iface_t *iface = arg;

    /* The progress of the interface polls it as well; a child must not */
    if ((iface->net.super.progress_flags != 0) || iface->net.forked) {
        return 0;
    }

    /* UCP starts the progress of an interface in UCX's thread, when the first
     * message arrives */
    if (iface->net.cm.is_polled) {
        return uct_nprdma_iface_poll(iface);
    }

    return uct_nprdma_service_progress(uct_nprdma_iface_md(iface)->service);
}

void uct_nprdma_iface_serve(uct_nprdma_iface_t *iface)
{
    uct_worker_progress_register_safe(&iface->net.super.worker->super,
                                      uct_nprdma_iface_serve_progress, iface,
                                      UCS_CALLBACKQ_FLAG_FAST,
                                      &iface->serve_id);
}

void uct_nprdma_iface_serve_no_more(uct_nprdma_iface_t *iface)
{
    /* Not unregister_safe: after that the callback may be called once more */
    if (iface->serve_id != UCS_CALLBACKQ_ID_NULL) {
        ucs_callbackq_remove(&iface->net.super.worker->super.progress_q,
                             iface->serve_id);
        iface->serve_id = UCS_CALLBACKQ_ID_NULL;
    }
}

/* Nothing that has a time limit is outstanding, if progress is the timer */
static int uct_nprdma_iface_may_sleep(uct_nprdma_iface_t *iface)
{
    return uct_nprdma_cm_sleep(&iface->net) &&
           ((iface->rma.res == NULL) ||
            !uct_nprdma_rma_watch_is_needed(&iface->rma));
}

ucs_status_t uct_nprdma_iface_event_arm(uct_iface_h tl_iface, unsigned events)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);
    unsigned count;
    int ret;

    ucs_trace_func("iface=%p events=0x%x", iface, events);
    count = uct_nprdma_device_take_events(uct_nprdma_net_dev(&iface->net),
                                          iface->net.channel);
    /* The service raises no event when it has executed a request */
    if ((count > 0) || iface->stash.valid ||
        !ucs_list_is_empty(&iface->net.rx.waiting) ||
        uct_nprdma_cm_hint(&iface->net.cm.attention) ||
        uct_nprdma_cm_hint(&iface->net.cm.num_dying) ||
        uct_nprdma_rma_retry(&iface->rma) || iface->net.tx.post_failed ||
        !(iface->net.tx.exhausted ||
          (ucs_arbiter_is_empty(&iface->net.tx.arbiter) &&
           ucs_list_is_empty(&iface->lacking)))) {
        return UCS_ERR_BUSY;
    }

    /* Replies of the service arrive as receives and complete operations.
     * Therefore both queues are armed for either kind of event. */
    ret = ibv_req_notify_cq(iface->net.rx.cq, 0);
    if (ret == 0) {
        ret = ibv_req_notify_cq(iface->net.tx.cq, 0);
    }
    if (ret != 0) {
        ucs_error("%s: failed to arm a completion queue: %s",
                  uct_nprdma_net_dev(&iface->net)->name, strerror(ret));
        return UCS_ERR_IO_ERROR;
    }

    /* Some devices raise no event for a completion that arrived before
     * arming */
    if (ibv_poll_cq(iface->net.rx.cq, 1, &iface->stash.wc) > 0) {
        iface->stash.is_rx = 1;
        iface->stash.valid = 1;
    } else if (ibv_poll_cq(iface->net.tx.cq, 1, &iface->stash.wc) > 0) {
        iface->stash.is_rx = 0;
        iface->stash.valid = 1;
    }

    if (iface->stash.valid ||
        (iface->net.cm.is_polled && !uct_nprdma_iface_may_sleep(iface))) {
        return UCS_ERR_BUSY;
    }

    uct_nprdma_rma_watch_sleep(&iface->rma);
    return UCS_OK;
}
