/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_cm.h"
#include "nprdma_backlog.h"
#include "nprdma_qp.h"
#include "nprdma_responder.h"
#include "nprdma_ud.h"

#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"


#include <ucs/async/async.h>
#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/sys.h>
#include <ucs/time/time.h>

#include <sys/eventfd.h>
#include <unistd.h>

/* Maximum number of REQs of an interface that are not answered */
#define UCT_NPRDMA_CM_WINDOW  32


ucs_time_t uct_nprdma_cm_backoff(uct_nprdma_cm_t *cm, ucs_time_t *interval)
{
    ucs_time_t next = ucs_get_time() + *interval;

    *interval = ucs_min(*interval * 2,
                        ucs_time_from_sec(cm->config.retry_max));
    return next;
}

static void uct_nprdma_cm_send_req(uct_nprdma_net_iface_t *iface,
                                   uct_nprdma_cm_conn_t *entry)
{
    uct_nprdma_cm_packet_t packet = {
        .type      = UCT_NPRDMA_CM_REQ,
        .kind      = entry->conn->kind,
        .dst_nonce = entry->iface_addr.nonce,
        .conn_id   = entry->conn->id,
        .am_id     = entry->am_id,
        .qp        = { .qpn = entry->conn->qp->qp_num, .psn = entry->psn,
                       .dev = iface->dev_addr }
    };

    uct_nprdma_ud_send(iface, &entry->dev_addr, entry->iface_addr.ud_qpn,
                       &packet);
    entry->next = uct_nprdma_cm_backoff(&iface->cm, &entry->interval);
}

/* Whether the device knows that nobody receives the REQ: a timeout, known at
 * once. UCP gives that status to all that it does later. */
static int uct_nprdma_cm_is_lost(uct_nprdma_net_iface_t *iface,
                                 const uct_nprdma_cm_conn_t *entry)
{
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);

    return (dev->verbs->has_qp != NULL) &&
           !dev->verbs->has_qp(dev->context, entry->iface_addr.ud_qpn);
}

void uct_nprdma_cm_wakeup(uct_nprdma_cm_t *cm)
{
    uint64_t one = 1;
    ssize_t ret;

    cm->attention = 1;
    ret           = write(cm->wakeup_fd, &one, sizeof(one));
    if (ret < 0) {
        ucs_debug("eventfd is full, its reader is awake: %m");
    }
}

/* Hand the outcome of a REQ to progress */
static void uct_nprdma_cm_end(uct_nprdma_net_iface_t *iface,
                              uct_nprdma_cm_conn_t *entry, ucs_status_t status)
{
    ucs_assert(entry->in_flight);

    entry->status    = status;
    entry->in_flight = 0;
    --iface->cm.num_in_flight;
    ucs_list_del(&entry->list);
    ucs_list_add_tail(&iface->cm.outcomes, &entry->list);
    uct_nprdma_cm_wakeup(&iface->cm);
}

/* Send first REQs as far as the window allows. A peer's receive queue is small,
 * and many interfaces may connect to it at the same time. */
static void uct_nprdma_cm_kick(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm = &iface->cm;
    uct_nprdma_cm_conn_t *entry;

    while (!ucs_list_is_empty(&cm->waiting) &&
           (cm->num_in_flight < UCT_NPRDMA_CM_WINDOW)) {
        entry = ucs_list_extract_head(&cm->waiting, uct_nprdma_cm_conn_t, list);
        ucs_list_add_tail(&cm->in_flight, &entry->list);
        entry->in_flight = 1;
        entry->deadline  = ucs_get_time() +
                           ucs_time_from_sec(cm->config.timeout);
        ++cm->num_in_flight;
        if (uct_nprdma_cm_is_lost(iface, entry)) {
            uct_nprdma_cm_end(iface, entry, UCS_ERR_ENDPOINT_TIMEOUT);
        } else {
            uct_nprdma_cm_send_req(iface, entry);
        }
    }

    if (cm->num_in_flight > 0) {
        uct_nprdma_cm_start_timer(iface);
    }
}

static void uct_nprdma_cm_done(uct_nprdma_net_iface_t *iface,
                               uct_nprdma_cm_conn_t *entry, ucs_status_t status)
{
    uct_nprdma_cm_end(iface, entry, status);
    uct_nprdma_cm_kick(iface);
}

/* Make progress ask the peer's QP */
static void uct_nprdma_cm_doubt(uct_nprdma_net_iface_t *iface,
                                uct_nprdma_conn_t *conn)
{
    conn->doubted         = 1;
    iface->cm.has_doubted = 1;
    uct_nprdma_cm_wakeup(&iface->cm);
}

/* The peer does not answer the REQ of another connection */
static void uct_nprdma_cm_doubt_ep(uct_nprdma_net_iface_t *iface,
                                   const uct_nprdma_conn_t *conn)
{
    if ((conn->ep != NULL) && (conn->kind != UCT_NPRDMA_CONN_AM)) {
        uct_nprdma_cm_doubt(iface, &conn->ep->am);
    }
}

/* Answer to a REP: RTU, or RST if the connection no longer exists */
static void uct_nprdma_cm_answer_rep(uct_nprdma_net_iface_t *iface,
                                     const uct_nprdma_cm_packet_t *rep,
                                     enum uct_nprdma_cm_type type)
{
    uct_nprdma_cm_packet_t packet = {
        .type      = type,
        .kind      = rep->kind,
        .dst_nonce = rep->src_nonce,
        .conn_id   = rep->conn_id
    };

    uct_nprdma_ud_send(iface, &rep->qp.dev, rep->ud_qpn, &packet);
}

static void uct_nprdma_cm_handle_rep(uct_nprdma_net_iface_t *iface,
                                     const uct_nprdma_cm_packet_t *packet)
{
    uct_nprdma_conn_t *conn = uct_nprdma_conn_find(iface, packet->conn_id);
    uct_nprdma_cm_conn_t *entry;
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);
    ucs_status_t status;

    if ((conn == NULL) || (conn->kind != packet->kind)) {
        uct_nprdma_cm_answer_rep(iface, packet, UCT_NPRDMA_CM_RST);
        return;
    }

    if (conn->established) {
        uct_nprdma_cm_answer_rep(iface, packet, UCT_NPRDMA_CM_RTU);
        return;
    }

    entry = conn->cm;
    if ((entry == NULL) || !entry->in_flight) {
        uct_nprdma_cm_answer_rep(iface, packet, UCT_NPRDMA_CM_RST);
        return;
    }

    if (packet->src_nonce != entry->iface_addr.nonce) {
        ++iface->stats->cm_stale;
        return;
    }

    status = uct_nprdma_qp_connect(dev, iface->port_num, conn->qp, entry->psn,
                                   &packet->qp,
                                   uct_nprdma_conn_path(dev, conn->kind),
                                   UCT_NPRDMA_RNR_FOREVER);
    if (status == UCS_OK) {
        conn->established = 1;
        uct_nprdma_cm_answer_rep(iface, packet, UCT_NPRDMA_CM_RTU);
        status = uct_nprdma_backlog_post(iface, conn);
    } else {
        uct_nprdma_cm_answer_rep(iface, packet, UCT_NPRDMA_CM_RST);
    }
    uct_nprdma_cm_done(iface, entry, status);
}

static void uct_nprdma_cm_handle_rej(uct_nprdma_net_iface_t *iface,
                                     const uct_nprdma_cm_packet_t *packet)
{
    uct_nprdma_conn_t *conn = uct_nprdma_conn_find(iface, packet->conn_id);

    if ((conn == NULL) || (conn->cm == NULL) || !conn->cm->in_flight) {
        return;
    }

    /* Only the receiver of the REQ knows these, and the peer may have closed
     * the interface whose nonce would tell */
    if ((packet->qp.qpn != conn->qp->qp_num) ||
        (packet->qp.psn != conn->cm->psn)) {
        ++iface->stats->cm_stale;
        return;
    }

    ucs_debug("iface %p: connection 0x%x was refused: %s", iface, conn->id,
              (packet->reason == UCT_NPRDMA_CM_REASON_STALE) ?
              "the peer's interface is gone" : "the peer has no resources");
    ++iface->stats->cm_rejected;
    uct_nprdma_cm_done(iface, conn->cm, UCS_ERR_CONNECTION_RESET);
}

void uct_nprdma_cm_handle_packet(uct_nprdma_net_iface_t *iface,
                                 const void *data, size_t length)
{
    uct_nprdma_cm_packet_t packet;

    if (!uct_nprdma_cm_parse(data, length, &packet)) {
        ++iface->stats->cm_malformed;
        ucs_debug("iface %p: ignored a malformed wire-up packet of %zu bytes",
                  iface, length);
        return;
    }

    if (packet.type == UCT_NPRDMA_CM_REQ) {
        uct_nprdma_responder_req(iface, &packet);
        return;
    }

    if (packet.dst_nonce != iface->iface_addr.nonce) {
        ++iface->stats->cm_stale;
        return;
    }

    if (packet.type == UCT_NPRDMA_CM_REP) {
        uct_nprdma_cm_handle_rep(iface, &packet);
    } else if (packet.type == UCT_NPRDMA_CM_REJ) {
        uct_nprdma_cm_handle_rej(iface, &packet);
    } else {
        uct_nprdma_responder_confirm(iface, &packet);
    }
}

/* Request an event, and handle the packets that arrived before that */
static unsigned uct_nprdma_cm_arm(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);
    int ret;

    uct_nprdma_device_take_events(dev, iface->cm.channel);

    /* Armed before the poll: a packet that arrives after the poll causes
     * another event */
    ret = ibv_req_notify_cq(iface->cm.cq, 0);
    if (ret != 0) {
        ucs_error("%s: failed to arm the wire-up completion queue: %s",
                  dev->name, strerror(ret));
    }
    return uct_nprdma_ud_poll(iface);
}

static void uct_nprdma_cm_event_handler(int fd, ucs_event_set_types_t events,
                                        void *arg)
{
    uct_nprdma_net_iface_t *iface = arg;

    if (!iface->forked) {
        uct_nprdma_cm_arm(iface);
    }
}

/* Repeat what is not answered, and end what has not been answered for long */
static void uct_nprdma_cm_tick(uct_nprdma_net_iface_t *iface, ucs_time_t now)
{
    uct_nprdma_cm_t *cm = &iface->cm;
    uct_nprdma_cm_conn_t *entry, *tmp;

    ucs_list_for_each_safe(entry, tmp, &cm->in_flight, list) {
        if (cm->dead) {
            uct_nprdma_cm_done(iface, entry, UCS_ERR_IO_ERROR);
        } else if (uct_nprdma_cm_is_lost(iface, entry) ||
                   (now > entry->deadline)) {
            uct_nprdma_cm_done(iface, entry, UCS_ERR_ENDPOINT_TIMEOUT);
        } else if (now >= entry->next) {
            ++iface->stats->cm_retransmits;
            uct_nprdma_cm_send_req(iface, entry);
            uct_nprdma_cm_doubt_ep(iface, entry->conn);
        }
    }

    uct_nprdma_responder_timer(iface, now);
}

static void uct_nprdma_cm_timer_handler(int id, ucs_event_set_types_t events,
                                        void *arg)
{
    uct_nprdma_net_iface_t *iface = arg;
    uct_nprdma_cm_t *cm           = &iface->cm;

    if (iface->forked) {
        return;
    }

    uct_nprdma_ud_poll(iface);
    uct_nprdma_cm_tick(iface, ucs_get_time());
    if (ucs_list_is_empty(&cm->in_flight) &&
        ucs_list_is_empty(&cm->unconfirmed) && (cm->timer_id == id)) {
        cm->timer_id = -1;
        ucs_async_remove_handler(id, 0);
    }
}

static void uct_nprdma_cm_probe_handler(int id, ucs_event_set_types_t events,
                                        void *arg)
{
    uct_nprdma_net_iface_t *iface = arg;

    if (!iface->forked) {
        uct_nprdma_responder_probe_all(iface);
    }
}

void uct_nprdma_cm_start_timer(uct_nprdma_net_iface_t *iface)
{
    ucs_async_context_t *async = iface->super.worker->async;
    uct_nprdma_cm_t *cm        = &iface->cm;
    ucs_status_t status;

    if (cm->is_polled || (cm->timer_id >= 0)) {
        return;
    }

    status = ucs_async_add_timer(async->mode,
                                 ucs_time_from_sec(cm->config.retry_interval),
                                 uct_nprdma_cm_timer_handler, iface, async,
                                 &cm->timer_id);
    if (status != UCS_OK) {
        cm->timer_id = -1;
        ucs_error("failed to start the wire-up timer: %s",
                  ucs_status_string(status));
    }
}

ucs_status_t
uct_nprdma_cm_connect(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn,
                      const uct_nprdma_dev_addr_t *dev_addr,
                      const uct_nprdma_iface_addr_t *iface_addr)
{
    uct_nprdma_cm_t *cm = &iface->cm;
    uct_nprdma_cm_conn_t *entry;

    entry = ucs_calloc(1, sizeof(*entry), "nprdma_cm_conn");
    if (entry == NULL) {
        ucs_error("failed to allocate a connection request");
        return UCS_ERR_NO_MEMORY;
    }

    entry->conn       = conn;
    entry->am_id      = (conn->kind == UCT_NPRDMA_CONN_SVC) ? conn->ep->am.id :
                                                              0;
    entry->dev_addr   = *dev_addr;
    entry->iface_addr = *iface_addr;
    entry->psn        = rand_r(&cm->rand_state) & 0xffffff;
    entry->interval   = ucs_time_from_sec(cm->config.retry_interval);
    entry->status     = UCS_INPROGRESS;
    conn->cm          = entry;
    ucs_list_add_tail(&cm->waiting, &entry->list);
    uct_nprdma_cm_kick(iface);
    return UCS_OK;
}

void uct_nprdma_cm_reset(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn,
                         const uct_nprdma_dev_addr_t *dev_addr,
                         const uct_nprdma_iface_addr_t *iface_addr)
{
    uct_nprdma_cm_packet_t packet = {
        .type      = UCT_NPRDMA_CM_RST,
        .kind      = conn->kind,
        .dst_nonce = iface_addr->nonce,
        .conn_id   = conn->id
    };

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    uct_nprdma_ud_send(iface, dev_addr, iface_addr->ud_qpn, &packet);
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
}

void uct_nprdma_cm_cancel(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn)
{
    uct_nprdma_cm_conn_t *entry;

    if (conn->cm == NULL) {
        return;
    }

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    entry    = conn->cm;
    conn->cm = NULL;
    ucs_list_del(&entry->list);
    if (entry->in_flight) {
        --iface->cm.num_in_flight;
        uct_nprdma_cm_kick(iface);
    }
    ucs_free(entry);
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
}

uct_nprdma_conn_t *
uct_nprdma_cm_pop_outcome(uct_nprdma_net_iface_t *iface, ucs_status_t *status_p)
{
    uct_nprdma_cm_t *cm     = &iface->cm;
    uct_nprdma_conn_t *conn = NULL;
    uct_nprdma_cm_conn_t *entry;
    uint64_t dummy;

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    if (ucs_list_is_empty(&cm->outcomes)) {
        cm->attention = 0;
        if (read(cm->wakeup_fd, &dummy, sizeof(dummy)) < 0) {
            ucs_trace("eventfd was read before: %m");
        }
    } else {
        entry     = ucs_list_extract_head(&cm->outcomes, uct_nprdma_cm_conn_t,
                                          list);
        conn      = entry->conn;
        conn->cm  = NULL;
        *status_p = entry->status;
        ucs_free(entry);
    }
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
    return conn;
}

unsigned uct_nprdma_cm_poll(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);
    uct_nprdma_cm_t *cm      = &iface->cm;
    ucs_time_t now           = ucs_get_time();
    unsigned count;

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    count = uct_nprdma_ud_poll(iface);
    if (now >= cm->next_tick) {
        cm->next_tick = now + ucs_time_from_sec(cm->config.retry_interval);
        uct_nprdma_cm_tick(iface, now);
        /* UCP gives the event descriptor to UCX. As long as it is readable,
         * UCX's thread in the parent finds it and does not sleep. */
        uct_nprdma_device_take_events(dev, iface->channel);
        uct_nprdma_device_take_events(dev, cm->channel);
    }
    if (now >= cm->next_probe) {
        cm->next_probe = now + ucs_time_from_sec(cm->config.probe_interval);
        uct_nprdma_responder_probe_all(iface);
    }
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
    return count;
}

int uct_nprdma_cm_sleep(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm = &iface->cm;
    int may_sleep;

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    may_sleep = (uct_nprdma_cm_arm(iface) == 0) &&
                ucs_list_is_empty(&cm->in_flight) &&
                ucs_list_is_empty(&cm->outcomes) &&
                ucs_list_is_empty(&cm->unconfirmed);
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
    return may_sleep;
}

unsigned uct_nprdma_cm_progress(uct_nprdma_net_iface_t *iface)
{
    unsigned count = 0;

    if (uct_nprdma_cm_hint(&iface->cm.num_in_flight) > 0) {
        UCS_ASYNC_BLOCK(iface->super.worker->async);
        count = uct_nprdma_ud_poll(iface);
        UCS_ASYNC_UNBLOCK(iface->super.worker->async);
    }

    return count;
}

/* From here on packets are handled, possibly in another thread */
static ucs_status_t uct_nprdma_cm_start(uct_nprdma_net_iface_t *iface)
{
    ucs_async_context_t *async = iface->super.worker->async;
    uct_nprdma_cm_t *cm        = &iface->cm;
    ucs_status_t status;
    int ret;

    if (cm->is_polled) {
        return UCS_OK;
    }

    ret = ibv_req_notify_cq(cm->cq, 0);
    if (ret != 0) {
        ucs_error("failed to arm the wire-up completion queue: %s",
                  strerror(ret));
        return UCS_ERR_IO_ERROR;
    }

    status = ucs_async_set_event_handler(async->mode, cm->channel->fd,
                                         UCS_EVENT_SET_EVREAD,
                                         uct_nprdma_cm_event_handler, iface,
                                         async);
    if (status != UCS_OK) {
        return status;
    }

    status = ucs_async_add_timer(async->mode,
                                 ucs_time_from_sec(cm->config.probe_interval),
                                 uct_nprdma_cm_probe_handler, iface, async,
                                 &cm->probe_timer_id);
    if (status != UCS_OK) {
        ucs_async_remove_handler(cm->channel->fd, 1);
    }
    return status;
}

ucs_status_t uct_nprdma_cm_init(uct_nprdma_net_iface_t *iface,
                                const uct_nprdma_cm_config_t *config)
{
    uct_nprdma_cm_t *cm = &iface->cm;
    ucs_status_t status;

    memset(cm, 0, sizeof(*cm));
    cm->config         = *config;
    cm->rand_state     = (unsigned)ucs_generate_uuid((uintptr_t)cm);
    cm->timer_id       = -1;
    cm->probe_timer_id = -1;
    cm->is_polled      = uct_nprdma_net_dev(iface)->generation !=
                         UCT_NPRDMA_FORK_FIRST;
    cm->next_probe     = ucs_get_time() +
                         ucs_time_from_sec(config->probe_interval);
    ucs_list_head_init(&cm->waiting);
    ucs_list_head_init(&cm->in_flight);
    ucs_list_head_init(&cm->outcomes);
    uct_nprdma_responder_init(iface);

    cm->wakeup_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (cm->wakeup_fd < 0) {
        ucs_error("failed to create an eventfd: %m");
        return UCS_ERR_IO_ERROR;
    }

    status = uct_nprdma_ud_init(iface);
    if (status != UCS_OK) {
        goto err_close;
    }

    iface->iface_addr.version = UCT_NPRDMA_WIRE_VERSION;
    if (uct_nprdma_net_dev(iface)->config.max_piece <
        UCT_NPRDMA_SVC_MAX_PIECE) {
        iface->iface_addr.version |= UCT_NPRDMA_WIRE_SHORT;
    }
    iface->iface_addr.ud_qpn  = cm->qp->qp_num;
    iface->iface_addr.nonce   = ucs_generate_uuid((uintptr_t)iface);

    status = uct_nprdma_cm_start(iface);
    if (status != UCS_OK) {
        goto err_ud;
    }
    return UCS_OK;

err_ud:
    uct_nprdma_ud_cleanup(iface);
err_close:
    close(cm->wakeup_fd);
    return status;
}

/* The running timer, or -1. Its handler removes it, with the async context
 * blocked. */
static int uct_nprdma_cm_take_timer(uct_nprdma_net_iface_t *iface)
{
    ucs_async_context_t *async = iface->super.worker->async;
    int timer_id;

    UCS_ASYNC_BLOCK(async);
    timer_id           = iface->cm.timer_id;
    iface->cm.timer_id = -1;
    UCS_ASYNC_UNBLOCK(async);
    return timer_id;
}

void uct_nprdma_cm_cleanup(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm = &iface->cm;
    int timer_id;

    /* Not with the context blocked, because this waits for a running handler */
    if (!cm->is_polled) {
        ucs_async_remove_handler(cm->channel->fd, 1);
        ucs_async_remove_handler(cm->probe_timer_id, 1);
    }
    while ((timer_id = uct_nprdma_cm_take_timer(iface)) >= 0) {
        ucs_async_remove_handler(timer_id, 1);
    }

    uct_nprdma_responder_cleanup(iface);
    uct_nprdma_ud_cleanup(iface);
    close(cm->wakeup_fd);
}
