/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_conn.h"
#include "nprdma_backlog.h"
#include "nprdma_cm.h"
#include "nprdma_qp.h"

#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

/* An id contains a generation, so that the first connection of a new table does
 * not have id 0 */
#define UCT_NPRDMA_CONN_GEN_SHIFT  UCT_NPRDMA_CONN_INDEX_BITS
#define UCT_NPRDMA_CONN_MAX        UCS_BIT(UCT_NPRDMA_CONN_INDEX_BITS)

/* Entries of a new table */
#define UCT_NPRDMA_CONN_TABLE_MIN  16u

/* WRs beyond the credits: the last message, and one signaled WR behind
 * unsignaled ones. */
#define UCT_NPRDMA_CONN_RESERVED_WR  2


/* Free entries form a ring. The one that became free first is used first, so
 * that an id returns as late as possible. */
static void uct_nprdma_conn_entry_put(uct_nprdma_net_iface_t *iface,
                                      uint32_t idx)
{
    uct_nprdma_conn_entry_t *conns = iface->conns;
    uint32_t last                  = iface->last_free;

    conns[idx].conn = NULL;
    if (last == UCT_NPRDMA_CONN_NO_INDEX) {
        conns[idx].next = idx;
    } else {
        conns[idx].next  = conns[last].next;
        conns[last].next = idx;
    }
    iface->last_free = idx;
}

/* There is a free entry */
static uct_nprdma_conn_entry_t *
uct_nprdma_conn_entry_get(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_conn_entry_t *last = &iface->conns[iface->last_free];
    uint32_t first                = last->next;

    if (first == iface->last_free) {
        iface->last_free = UCT_NPRDMA_CONN_NO_INDEX;
    } else {
        last->next = iface->conns[first].next;
    }
    return &iface->conns[first];
}

static ucs_status_t uct_nprdma_conn_table_grow(uct_nprdma_net_iface_t *iface)
{
    unsigned num_conns = ucs_max(iface->num_conns * 2,
                                 UCT_NPRDMA_CONN_TABLE_MIN);
    uct_nprdma_conn_entry_t *conns;

    if (num_conns > UCT_NPRDMA_CONN_MAX) {
        ucs_error("%s: too many connections: the limit is %lu",
                  uct_nprdma_net_dev(iface)->name, UCT_NPRDMA_CONN_MAX);
        return UCS_ERR_EXCEEDS_LIMIT;
    }

    conns = ucs_realloc(iface->conns, num_conns * sizeof(*conns),
                        "nprdma_conns");
    if (conns == NULL) {
        ucs_error("failed to allocate a table of %u connections", num_conns);
        return UCS_ERR_NO_MEMORY;
    }

    iface->conns = conns;
    while (iface->num_conns < num_conns) {
        conns[iface->num_conns].id = iface->num_conns;
        uct_nprdma_conn_entry_put(iface, iface->num_conns++);
    }
    return UCS_OK;
}

static ucs_status_t
uct_nprdma_conn_id_alloc(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn)
{
    uct_nprdma_conn_entry_t *entry;
    ucs_status_t status;

    if (iface->last_free == UCT_NPRDMA_CONN_NO_INDEX) {
        status = uct_nprdma_conn_table_grow(iface);
        if (status != UCS_OK) {
            return status;
        }
    }

    entry      = uct_nprdma_conn_entry_get(iface);
    entry->id += 1u << UCT_NPRDMA_CONN_GEN_SHIFT;
    if (entry->id == 0) {
        entry->id = 1u << UCT_NPRDMA_CONN_GEN_SHIFT; /* 0: no connection */
    }
    entry->conn = conn;
    conn->id    = entry->id;
    return UCS_OK;
}

static void
uct_nprdma_conn_id_free(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn)
{
    uct_nprdma_conn_entry_put(iface, UCT_NPRDMA_CONN_INDEX(conn->id));
}

void uct_nprdma_conn_init(uct_nprdma_conn_t *conn)
{
    memset(conn, 0, sizeof(*conn));
    conn->state  = UCT_NPRDMA_CONN_NONE;
    conn->status = UCS_OK;
    ucs_queue_head_init(&conn->comps);
    ucs_queue_head_init(&conn->backlog);
}

/* Credits of a connection that is not connected yet */
static int32_t uct_nprdma_conn_early_credits(const uct_nprdma_conn_t *conn)
{
    return ucs_min(conn->max_credits, UCT_NPRDMA_BACKLOG_MAX + conn->reserve);
}

/* The queues of a connection, and what it may hold of the completion queue */
static void uct_nprdma_conn_set_limits(const uct_nprdma_net_iface_t *iface,
                                       uct_nprdma_conn_t *conn,
                                       enum uct_nprdma_conn_kind kind,
                                       uct_nprdma_qp_params_t *params)
{
    params->send_cq    = iface->tx.cq;
    params->recv_cq    = iface->rx.cq;
    params->max_inline = iface->config.max_inline;
    if (kind == UCT_NPRDMA_CONN_AM) {
        /* Messages that a slow peer does not receive must not block put and
         * get */
        params->srq         = iface->rx.srq;
        params->max_send_wr = iface->config.tx_queue_len;
        conn->reserve       = 0;
        conn->small_reserve = 0;
        conn->cq_reserve    = ucs_min((int32_t)iface->config.svc_queue_len,
                                      iface->config.tx_cq_len / 4);
    } else {
        params->max_send_wr = iface->config.svc_queue_len;
        conn->reserve       = UCT_NPRDMA_CONN_REDO_WR;
        conn->small_reserve = conn->reserve;
        conn->cq_reserve    = ucs_min(UCT_NPRDMA_CONN_REDO_WR,
                                      iface->config.tx_cq_len / 8);
        if (kind == UCT_NPRDMA_CONN_BULK) {
            params->srq         = iface->rx.srq; /* It receives nothing */
            params->is_optional = 1;
        } else {
            params->max_recv_wr  = ucs_max(iface->config.svc_queue_len,
                                           (uint32_t)
                                                   UCT_NPRDMA_SVC_MAX_REPLIES);
            conn->small_reserve += ucs_min(UCT_NPRDMA_CONN_SMALL_WR,
                                           (int32_t)params->max_send_wr / 4);
        }
    }
    conn->moderation    = ucs_min(iface->config.tx_moderation,
                                  params->max_send_wr / 2);
    conn->max_credits   = params->max_send_wr + conn->reserve;
    params->max_send_wr = conn->max_credits + UCT_NPRDMA_CONN_RESERVED_WR;
}

ucs_status_t
uct_nprdma_conn_start(uct_nprdma_net_iface_t *iface, uct_nprdma_net_ep_t *ep,
                      uct_nprdma_conn_t *conn, enum uct_nprdma_conn_kind kind)
{
    uct_nprdma_device_t *dev      = uct_nprdma_net_dev(iface);
    uct_nprdma_qp_params_t params = {};
    ucs_status_t status;

    ucs_assert(conn->state == UCT_NPRDMA_CONN_NONE);

    uct_nprdma_conn_set_limits(iface, conn, kind, &params);

    UCS_ASYNC_BLOCK(iface->super.worker->async);

    status = uct_nprdma_qp_create(dev, iface->port_num, &params, &conn->qp,
                                  NULL);
    if (status != UCS_OK) {
        goto out;
    }

    status = uct_nprdma_conn_id_alloc(iface, conn);
    if (status != UCS_OK) {
        goto err_destroy_qp;
    }

    conn->kind    = kind;
    conn->ep      = ep;
    conn->state   = UCT_NPRDMA_CONN_CONNECTING;
    conn->credits = uct_nprdma_conn_early_credits(conn);
    status        = uct_nprdma_cm_connect(iface, conn, &ep->dev_addr,
                                          &ep->iface_addr);
    if (status != UCS_OK) {
        goto err_free_id;
    }
    iface->num_bulk += (kind == UCT_NPRDMA_CONN_BULK);
    goto out;

err_free_id:
    uct_nprdma_conn_id_free(iface, conn);
err_destroy_qp:
    dev->verbs->destroy_qp(conn->qp);
    conn->qp      = NULL;
    conn->state   = UCT_NPRDMA_CONN_NONE;
    conn->credits = 0;
out:
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
    return status;
}

/* The QP is connected, and progress has seen it */
static void uct_nprdma_conn_open(uct_nprdma_conn_t *conn)
{
    conn->state = UCT_NPRDMA_CONN_CONNECTED;
    if (!conn->broken) {
        conn->credits += conn->max_credits -
                         uct_nprdma_conn_early_credits(conn);
    }
}

static void uct_nprdma_conn_connected(uct_nprdma_net_iface_t *iface,
                                      uct_nprdma_conn_t *conn)
{
    ucs_assert(conn->state == UCT_NPRDMA_CONN_CONNECTING);

    uct_nprdma_conn_open(conn);
    uct_nprdma_net_ep_schedule(iface, conn->ep);
}

void uct_nprdma_conn_retire(uct_nprdma_net_iface_t *iface,
                            uct_nprdma_conn_t *conn, uint16_t sn,
                            ucs_status_t status)
{
    uint16_t count = sn - conn->done_sn;
    uct_nprdma_comp_t *comp;

    conn->done_sn       = sn;
    iface->tx.cq_avail += count;
    iface->tx.exhausted   = 0;
    /* A broken connection has no credits: nothing is posted behind a refused
     * WR */
    if (((conn->state == UCT_NPRDMA_CONN_CONNECTED) ||
         (conn->state == UCT_NPRDMA_CONN_CONNECTING)) &&
        ucs_likely(!conn->broken)) {
        conn->credits += count;
    }

    if (ucs_unlikely(conn->ep == NULL)) {
        iface->tx.reap = 1;
    }

    while (!ucs_queue_is_empty(&conn->comps)) {
        comp = ucs_queue_head_elem_non_empty(&conn->comps, uct_nprdma_comp_t,
                                             queue);
        if ((int16_t)(comp->sn - sn) > 0) {
            break;
        }
        ucs_queue_pull_non_empty(&conn->comps);
        comp->func(iface, conn, comp, status);
    }
}

ucs_status_t
uct_nprdma_conn_post_nop(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn,
                         uct_nprdma_comp_t *comp)
{
    /* A WRITE of zero bytes: no key is checked, but the peer's QP has to
     * answer */
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };

    return uct_nprdma_conn_post_inl(iface, conn, &wr, comp, 1);
}

ucs_status_t
uct_nprdma_conn_check(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn)
{
    if ((conn->state != UCT_NPRDMA_CONN_CONNECTED) ||
        uct_nprdma_conn_is_watched(conn) ||
        !uct_nprdma_conn_admit_post(iface, conn)) {
        return UCS_OK;
    }
    return uct_nprdma_conn_post_nop(iface, conn, NULL);
}

ucs_status_t
uct_nprdma_conn_post_recv(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, uct_nprdma_slot_t *slot,
                          uint32_t index)
{
    struct ibv_sge sge    = {
        .addr   = (uintptr_t)slot->data,
        .length = slot->pool->slot_size,
        .lkey   = slot->lkey
    };
    struct ibv_recv_wr wr = {
        .wr_id   = uct_nprdma_wr_id_svc(conn->id, index),
        .sg_list = &sge,
        .num_sge = 1
    };
    struct ibv_recv_wr *bad_wr;
    int ret;

    ret = ibv_post_recv(conn->qp, &wr, &bad_wr);
    if (ucs_unlikely(ret != 0)) {
        ucs_error("%s: failed to post a receive on queue pair 0x%x: %s",
                  uct_nprdma_net_dev(iface)->name, conn->qp->qp_num,
                  strerror(ret));
        return UCS_ERR_IO_ERROR;
    }
    return UCS_OK;
}

void uct_nprdma_conn_no_slot(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_conn_t *conn, unsigned held)
{
    if (held == 0) {
        iface->tx.starved = 1;
    } else if ((conn->unsignaled > 0) &&
               uct_nprdma_conn_admit_post(iface, conn)) {
        /* Without a completion nothing would return the slots, and the endpoint
         * tries again only then. If the post fails, progress fails the
         * connection. */
        (void)uct_nprdma_conn_post_nop(iface, conn, NULL);
    }
}

uct_nprdma_slot_t *uct_nprdma_conn_tx_slot_slow(uct_nprdma_net_iface_t *iface,
                                                uct_nprdma_conn_t *conn)
{
    uct_nprdma_bounce_t *pool = &iface->tx.pool;

    if (uct_nprdma_bounce_has_share(pool, conn->num_slots, 0) &&
        ((pool->free != NULL) || (uct_nprdma_bounce_grow(pool) > 0))) {
        return uct_nprdma_bounce_get(pool);
    }

    uct_nprdma_conn_no_slot(iface, conn, conn->num_slots);
    return NULL;
}

static void uct_nprdma_conn_forget_unsignaled(uct_nprdma_net_iface_t *iface,
                                              uct_nprdma_conn_t *conn)
{
    iface->tx.unsignaled -= conn->unsignaled;
    conn->unsignaled      = 0;
}

void uct_nprdma_conn_post_failed(uct_nprdma_net_iface_t *iface,
                                 uct_nprdma_conn_t *conn, int error)
{
    ucs_debug("iface %p: connection 0x%x refuses to post: %s", iface, conn->id,
              strerror(error));
    conn->broken          = 1;
    conn->credits         = 0;
    iface->tx.post_failed = 1;
}

/* The connection ends before it was established, and its backlog with it */
static void uct_nprdma_conn_abandon(uct_nprdma_net_iface_t *iface,
                                    uct_nprdma_conn_t *conn,
                                    ucs_status_t status)
{
    conn->state   = UCT_NPRDMA_CONN_FAILED;
    conn->credits = 0;
    uct_nprdma_backlog_drop(conn);
    uct_nprdma_conn_forget_unsignaled(iface, conn);
    uct_nprdma_conn_retire(iface, conn, conn->sn, status);
}

void uct_nprdma_conn_stop(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status)
{
    if ((conn->state != UCT_NPRDMA_CONN_CONNECTING) &&
        (conn->state != UCT_NPRDMA_CONN_CONNECTED)) {
        return;
    }

    uct_nprdma_cm_cancel(iface, conn);
    conn->status = status;
    if ((conn->state == UCT_NPRDMA_CONN_CONNECTING) && !conn->established) {
        uct_nprdma_conn_abandon(iface, conn, status);
    }
    conn->state = UCT_NPRDMA_CONN_FAILED;
    uct_nprdma_qp_to_err(uct_nprdma_net_dev(iface), conn->qp);
    if ((conn->unsignaled > 0) || conn->refused) {
        /* WRs that were unsignaled and done before the error have no
         * completion, nor have WRs that were never posted. One more WR, which
         * is flushed, reports that all before it are done. */
        status = uct_nprdma_net_iface_can_stop(iface) ?
                         uct_nprdma_conn_post_nop(iface, conn, NULL) :
                         UCS_ERR_NO_RESOURCE;
    } else {
        status = UCS_OK;
    }
    uct_nprdma_conn_forget_unsignaled(iface, conn);
    conn->credits = 0;
    if (ucs_unlikely(status != UCS_OK)) {
        /* Without a completion nothing would report the end. After the QP is
         * destroyed, no WR is outstanding. */
        uct_nprdma_conn_release(iface, conn, 1);
    }
}

void uct_nprdma_conn_fail(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status)
{
    uct_nprdma_conn_stop(iface, conn, status);
    if (conn->ep != NULL) {
        iface->ops->failed(iface, conn->ep, status);
    }
}

/* Forget a connection whose wire-up has ended with an error, and tell the peer.
 * An answer that arrives later finds no connection, and the peer is told
 * again. */
static void uct_nprdma_conn_give_up(uct_nprdma_net_iface_t *iface,
                                    uct_nprdma_conn_t *conn)
{
    ucs_assert((conn->state == UCT_NPRDMA_CONN_CONNECTING) &&
               !conn->established &&
               (uct_nprdma_conn_outstanding(conn) == 0));

    uct_nprdma_cm_reset(iface, conn, &conn->ep->dev_addr,
                        &conn->ep->iface_addr);
    uct_nprdma_conn_abandon(iface, conn, UCS_ERR_CANCELED);
    uct_nprdma_conn_release(iface, conn, 1);
    uct_nprdma_conn_init(conn);
}

/* Wire-up of a connection has failed */
static void uct_nprdma_conn_refused(uct_nprdma_net_iface_t *iface,
                                    uct_nprdma_conn_t *conn,
                                    ucs_status_t status)
{
    uct_nprdma_net_ep_t *ep = conn->ep;

    if (conn->kind == UCT_NPRDMA_CONN_BULK) {
        /* The endpoint can do without it */
        uct_nprdma_conn_give_up(iface, conn);
        iface->ops->no_bulk(iface, ep, status);
    } else {
        uct_nprdma_conn_fail(iface, conn, status);
    }
}

static void uct_nprdma_conn_check_doubted(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_net_ep_t *ep;

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    if (iface->cm.has_doubted) {
        iface->cm.has_doubted = 0;
        ucs_list_for_each(ep, &iface->eps, list) {
            if (ep->am.doubted) {
                ep->am.doubted = 0;
                /* If the post fails, progress fails the connection */
                (void)uct_nprdma_conn_check(iface, &ep->am);
            }
        }
    }
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
}

unsigned uct_nprdma_conn_progress(uct_nprdma_net_iface_t *iface)
{
    unsigned count = uct_nprdma_cm_progress(iface);
    uct_nprdma_conn_t *conn;
    ucs_status_t status;

    if (!uct_nprdma_cm_hint(&iface->cm.attention)) {
        return count;
    }

    while ((conn = uct_nprdma_cm_pop_outcome(iface, &status)) != NULL) {
        ++count;
        if (status == UCS_OK) {
            ++iface->stats->cm_connected;
            uct_nprdma_conn_connected(iface, conn);
        } else {
            uct_nprdma_conn_refused(iface, conn, status);
        }
    }

    uct_nprdma_conn_check_doubted(iface);
    return count;
}

/* The endpoint that the connection is part of, also after conn->ep is NULL */
static uct_nprdma_net_ep_t *uct_nprdma_conn_owner(uct_nprdma_conn_t *conn)
{
    return ucs_container_of(conn - conn->kind, uct_nprdma_net_ep_t, conns[0]);
}

/* Post the last message of a connection. The responder may then destroy its
 * QP. */
static ucs_status_t
uct_nprdma_conn_post_fin(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn)
{
    uct_nprdma_am_hdr_t hdr = { .type = UCT_NPRDMA_AM_FIN };
    struct ibv_send_wr wr   = {};
    struct ibv_sge sge      = {};
    int is_svc              = (conn->kind == UCT_NPRDMA_CONN_SVC);
    char svc_fin[UCT_NPRDMA_FIN_MAX];

    if (!is_svc) {
        sge.addr   = (uintptr_t)&hdr;
        sge.length = sizeof(hdr);
    } else {
        sge.addr   = (uintptr_t)svc_fin;
        sge.length = iface->ops->build_fin(uct_nprdma_conn_owner(conn),
                                           svc_fin);
    }

    conn->fin_due = 0;
    wr.sg_list    = &sge;
    wr.num_sge    = 1;
    wr.opcode     = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SOLICITED;
    return uct_nprdma_conn_post_inl(iface, conn, &wr, NULL, 1);
}

void uct_nprdma_conn_close(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_conn_t *conn)
{
    uct_nprdma_net_ep_t *ep = conn->ep;

    if (conn->state == UCT_NPRDMA_CONN_NONE) {
        return;
    }

    /* The QP may be connected without progress having seen it */
    uct_nprdma_cm_cancel(iface, conn);
    if (conn->state == UCT_NPRDMA_CONN_CONNECTING) {
        if (!conn->established) {
            uct_nprdma_conn_abandon(iface, conn, UCS_ERR_CANCELED);
        } else if (conn->refused) {
            uct_nprdma_conn_stop(iface, conn, UCS_ERR_CANCELED);
        } else {
            uct_nprdma_conn_open(conn);
        }
    }

    if (conn->state == UCT_NPRDMA_CONN_CONNECTED) {
        if (!uct_nprdma_net_iface_can_fin(iface)) {
            conn->fin_due = 1;
        } else if (uct_nprdma_conn_post_fin(iface, conn) != UCS_OK) {
            uct_nprdma_conn_stop(iface, conn, UCS_ERR_IO_ERROR);
        }
    }

    if (conn->state != UCT_NPRDMA_CONN_CONNECTED) {
        uct_nprdma_cm_reset(iface, conn, &ep->dev_addr, &ep->iface_addr);
    }

    conn->state   = UCT_NPRDMA_CONN_CLOSING;
    conn->credits = 0;
    conn->ep      = NULL;
}

int uct_nprdma_conn_release(uct_nprdma_net_iface_t *iface,
                            uct_nprdma_conn_t *conn, int force)
{
    int ret;

    if (conn->qp == NULL) {
        return 1;
    }

    if (conn->fin_due && uct_nprdma_net_iface_can_fin(iface) &&
        (uct_nprdma_conn_post_fin(iface, conn) != UCS_OK)) {
        /* The responder's probe finds the end by itself. But no completion
         * would report the unsignaled WRs before it, so the QP is destroyed. */
        force |= conn->unsignaled > 0;
    }

    if ((conn->fin_due || (uct_nprdma_conn_outstanding(conn) > 0)) &&
        !force) {
        return 0;
    }

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    ret = uct_nprdma_net_dev(iface)->verbs->destroy_qp(conn->qp);
    if (ret != 0) {
        ucs_warn("%s: failed to destroy queue pair: %s",
                 uct_nprdma_net_dev(iface)->name, strerror(ret));
    }
    conn->qp         = NULL;
    iface->num_bulk -= (conn->kind == UCT_NPRDMA_CONN_BULK);
    uct_nprdma_conn_id_free(iface, conn);
    uct_nprdma_conn_forget_unsignaled(iface, conn);
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);

    /* No more completions can follow */
    uct_nprdma_conn_retire(iface, conn, conn->sn,
                           (conn->state == UCT_NPRDMA_CONN_FAILED) ?
                           conn->status : UCS_ERR_CANCELED);
    return 1;
}
