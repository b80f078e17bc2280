/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_net.h"
#include "nprdma_tx.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

/* Ids begin with a generation, so that index 0 of a new table is not id 0 */
#define UCT_NPRDMA_CONN_GEN_SHIFT  UCT_NPRDMA_CONN_INDEX_BITS
#define UCT_NPRDMA_CONN_MAX        UCS_BIT(UCT_NPRDMA_CONN_INDEX_BITS)

/* Entries that a table begins with */
#define UCT_NPRDMA_CONN_TABLE_MIN  16u

/* WRs beyond the credits: the last message, and one that asks for a completion
 * where the ones before had not. */
#define UCT_NPRDMA_CONN_RESERVED_WR  2

/* Outstanding READs and atomics, each way */
#define UCT_NPRDMA_MAX_RD_ATOMIC  16


ucs_status_t
uct_nprdma_qp_create(uct_nprdma_device_t *dev, uint8_t port_num,
                     const uct_nprdma_qp_params_t *params, struct ibv_qp **qp_p,
                     uint32_t *inline_p)
{
    struct ibv_qp_init_attr init_attr = {};
    struct ibv_qp_attr attr           = {};
    struct ibv_qp *qp;
    int ret;

    init_attr.qp_context          = params->qp_context;
    init_attr.send_cq             = params->send_cq;
    init_attr.recv_cq             = params->recv_cq;
    init_attr.srq                 = params->srq;
    init_attr.qp_type             = IBV_QPT_RC;
    init_attr.sq_sig_all          = 0;
    init_attr.cap.max_send_wr     = params->max_send_wr;
    init_attr.cap.max_send_sge    = UCT_NPRDMA_MAX_SEND_SGE;
    init_attr.cap.max_inline_data = params->max_inline;
    if (params->srq == NULL) {
        init_attr.cap.max_recv_wr  = params->max_recv_wr;
        init_attr.cap.max_recv_sge = 1;
    }

    qp = dev->verbs->create_qp(dev->pd, &init_attr);
    if (qp == NULL) {
        ucs_error("%s: failed to create a queue pair (%u send WRs, %u bytes "
                  "inline): %m", dev->name, params->max_send_wr,
                  params->max_inline);
        return (errno == ENOMEM) ? UCS_ERR_NO_MEMORY : UCS_ERR_IO_ERROR;
    }

    attr.qp_state        = IBV_QPS_INIT;
    attr.pkey_index      = 0;
    attr.port_num        = port_num;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    ret = dev->verbs->modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                               IBV_QP_ACCESS_FLAGS);
    if (ret != 0) {
        ucs_error("%s: failed to bring queue pair 0x%x to INIT on port %u: %s",
                  dev->name, qp->qp_num, port_num, strerror(ret));
        dev->verbs->destroy_qp(qp);
        return UCS_ERR_IO_ERROR;
    }

    if (inline_p != NULL) {
        *inline_p = init_attr.cap.max_inline_data;
    }
    *qp_p = qp;
    return UCS_OK;
}

/* Verbs encodes a transport timeout as 4.096 us << value */
static uint8_t uct_nprdma_qp_timeout(double seconds)
{
    uint8_t timeout = 1;

    while ((timeout < 31) && ((4.096e-6 * UCS_BIT(timeout)) < seconds)) {
        ++timeout;
    }
    return timeout;
}

/* Verbs encodes the RNR timer by a table (InfiniBand 1.4, table 45) */
static uint8_t uct_nprdma_qp_rnr_timer(double seconds)
{
    static const double msec[32] = {
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32,
        0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36,
        20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68,
        491.52
    };
    uint8_t timer;

    for (timer = 1; timer < 32; ++timer) {
        if ((seconds * 1e3) <= msec[timer]) {
            return timer;
        }
    }
    return 0;
}

ucs_status_t
uct_nprdma_qp_connect(uct_nprdma_device_t *dev, uint8_t port_num,
                      struct ibv_qp *qp, uint32_t local_psn,
                      const uct_nprdma_qp_addr_t *peer, uint8_t rnr_retry)
{
    struct ibv_qp_attr attr = {};
    uct_nprdma_dev_addr_t local;
    ucs_status_t status;
    int ret;

    status = uct_nprdma_device_port_addr(dev, port_num, &local);
    if (status != UCS_OK) {
        return status;
    }

    attr.qp_state           = IBV_QPS_RTR;
    attr.path_mtu           = (enum ibv_mtu)ucs_min(local.mtu, peer->dev.mtu);
    attr.dest_qp_num        = peer->qpn;
    attr.rq_psn             = peer->psn;
    attr.max_dest_rd_atomic = ucs_min(dev->attr.max_qp_rd_atom,
                                      UCT_NPRDMA_MAX_RD_ATOMIC);
    attr.min_rnr_timer      = uct_nprdma_qp_rnr_timer(dev->config.rnr_timeout);
    uct_nprdma_device_fill_ah_attr(dev, port_num, &peer->dev, &attr.ah_attr);
    ret = dev->verbs->modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                               IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC |
                               IBV_QP_MIN_RNR_TIMER);
    if (ret != 0) {
        ucs_error("%s: failed to bring queue pair 0x%x to RTR towards 0x%x "
                  "lid %u: %s", dev->name, qp->qp_num, peer->qpn, peer->dev.lid,
                  strerror(ret));
        return UCS_ERR_IO_ERROR;
    }

    memset(&attr, 0, sizeof(attr));
    attr.qp_state      = IBV_QPS_RTS;
    attr.timeout       = uct_nprdma_qp_timeout(dev->config.timeout);
    attr.retry_cnt     = dev->config.retry_count;
    attr.rnr_retry     = rnr_retry;
    attr.sq_psn        = local_psn;
    attr.max_rd_atomic = ucs_min(dev->attr.max_qp_init_rd_atom,
                                 UCT_NPRDMA_MAX_RD_ATOMIC);
    ret = dev->verbs->modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_TIMEOUT |
                               IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (ret != 0) {
        ucs_error("%s: failed to bring queue pair 0x%x to RTS: %s", dev->name,
                  qp->qp_num, strerror(ret));
        return UCS_ERR_IO_ERROR;
    }

    return UCS_OK;
}

void uct_nprdma_qp_to_err(uct_nprdma_device_t *dev, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    int ret;

    ret = dev->verbs->modify_qp(qp, &attr, IBV_QP_STATE);
    if (ret != 0) {
        ucs_diag("%s: failed to bring queue pair 0x%x to ERR: %s", dev->name,
                 qp->qp_num, strerror(ret));
    }
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
        conns[iface->num_conns].conn = NULL;
        conns[iface->num_conns].id   = iface->num_conns;
        conns[iface->num_conns].next = iface->free_conn;
        iface->free_conn             = iface->num_conns++;
    }
    return UCS_OK;
}

static ucs_status_t
uct_nprdma_conn_id_alloc(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn)
{
    uct_nprdma_conn_entry_t *entry;
    ucs_status_t status;

    if (iface->free_conn == UCT_NPRDMA_CONN_NO_INDEX) {
        status = uct_nprdma_conn_table_grow(iface);
        if (status != UCS_OK) {
            return status;
        }
    }

    entry            = &iface->conns[iface->free_conn];
    iface->free_conn = entry->next;
    entry->id       += 1u << UCT_NPRDMA_CONN_GEN_SHIFT;
    entry->conn      = conn;
    conn->id         = entry->id;
    return UCS_OK;
}

static void
uct_nprdma_conn_id_free(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn)
{
    unsigned idx                   = UCT_NPRDMA_CONN_INDEX(conn->id);
    uct_nprdma_conn_entry_t *entry = &iface->conns[idx];

    entry->conn      = NULL;
    entry->next      = iface->free_conn;
    iface->free_conn = idx;
}

void uct_nprdma_conn_init(uct_nprdma_conn_t *conn)
{
    memset(conn, 0, sizeof(*conn));
    conn->state  = UCT_NPRDMA_CONN_NONE;
    conn->status = UCS_OK;
    ucs_queue_head_init(&conn->ops);
    ucs_queue_head_init(&conn->backlog);
}

/* Credits of a connection that is not there yet */
static int32_t uct_nprdma_conn_early_credits(const uct_nprdma_conn_t *conn)
{
    return ucs_min(conn->max_credits, UCT_NPRDMA_BACKLOG_MAX + conn->reserve);
}

ucs_status_t
uct_nprdma_conn_start(uct_nprdma_net_iface_t *iface, uct_nprdma_net_ep_t *ep,
                      uct_nprdma_conn_t *conn, enum uct_nprdma_conn_kind kind)
{
    uct_nprdma_device_t *dev      = uct_nprdma_net_dev(iface);
    uct_nprdma_qp_params_t params = {};
    ucs_status_t status;

    ucs_assert(conn->state == UCT_NPRDMA_CONN_NONE);

    params.send_cq    = iface->tx.cq;
    params.recv_cq    = iface->rx.cq;
    params.max_inline = iface->config.max_inline;
    if (kind == UCT_NPRDMA_CONN_AM) {
        /* Messages that a slow peer does not take must not be in the way of
         * put and get */
        params.srq         = iface->rx.srq;
        params.max_send_wr = iface->config.tx_queue_len;
        conn->reserve      = 0;
        conn->cq_reserve   = ucs_min((int32_t)iface->config.svc_queue_len,
                                     iface->config.tx_cq_len / 4);
    } else {
        params.max_send_wr = iface->config.svc_queue_len;
        params.max_recv_wr = ucs_max(iface->config.svc_queue_len,
                                     (uint32_t)UCT_NPRDMA_SVC_MAX_REPLIES);
        conn->reserve      = UCT_NPRDMA_CONN_REDO_WR;
        conn->cq_reserve   = ucs_min(UCT_NPRDMA_CONN_REDO_WR,
                                     iface->config.tx_cq_len / 8);
    }
    conn->moderation    = ucs_min(iface->config.tx_moderation,
                                  params.max_send_wr / 2);
    conn->max_credits   = params.max_send_wr + conn->reserve;
    params.max_send_wr  = conn->max_credits + UCT_NPRDMA_CONN_RESERVED_WR;

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

/* The QP is connected, and progress knows */
static void uct_nprdma_conn_open(uct_nprdma_conn_t *conn)
{
    conn->state = UCT_NPRDMA_CONN_CONNECTED;
    if (!conn->broken) {
        conn->credits += conn->max_credits -
                         uct_nprdma_conn_early_credits(conn);
    }
}

void uct_nprdma_conn_connected(uct_nprdma_net_iface_t *iface,
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
    uct_nprdma_op_t *op;

    conn->done_sn       = sn;
    iface->tx.cq_avail += count;
    iface->tx.in_vain   = 0;
    /* A broken one has none: nothing gets past what was refused */
    if (((conn->state == UCT_NPRDMA_CONN_CONNECTED) ||
         (conn->state == UCT_NPRDMA_CONN_CONNECTING)) &&
        ucs_likely(!conn->broken)) {
        conn->credits += count;
    }

    if (ucs_unlikely(conn->ep == NULL)) {
        iface->tx.reap = 1;
    }

    while (!ucs_queue_is_empty(&conn->ops)) {
        op = ucs_queue_head_elem_non_empty(&conn->ops, uct_nprdma_op_t, queue);
        if ((int16_t)(op->sn - sn) > 0) {
            break;
        }
        ucs_queue_pull_non_empty(&conn->ops);
        op->func(iface, conn, op, status);
    }
}

ucs_status_t
uct_nprdma_conn_post_nop(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn,
                         uct_nprdma_op_t *op)
{
    /* Without data no key is looked at, but the peer must be there */
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };

    return uct_nprdma_conn_post_inl(iface, conn, &wr, op, 1);
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
               uct_nprdma_conn_can_post(iface, conn)) {
        /* Otherwise nothing would tell when they are free, and the endpoint
         * tries again only then. If it fails, progress does the rest. */
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

/* There will be no connection for what has been posted for it */
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
        /* Those that were done before the error have no completion at all, nor
         * have those that were never posted: one more WR, which is flushed,
         * tells that they are out. */
        status = uct_nprdma_conn_post_nop(iface, conn, NULL);
    } else {
        status = UCS_OK;
    }
    uct_nprdma_conn_forget_unsignaled(iface, conn);
    conn->credits = 0;
    if (ucs_unlikely(status != UCS_OK)) {
        /* Then nothing would ever tell: without queue pair they are out */
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

/* Whose it is, or was */
static uct_nprdma_net_ep_t *uct_nprdma_conn_owner(uct_nprdma_conn_t *conn)
{
    return (conn->kind == UCT_NPRDMA_CONN_AM) ?
           ucs_container_of(conn, uct_nprdma_net_ep_t, am) :
           ucs_container_of(conn, uct_nprdma_net_ep_t, svc);
}

/* The last message of a connection, after which the responder may go */
static ucs_status_t
uct_nprdma_conn_post_fin(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn)
{
    uct_nprdma_am_hdr_t hdr = { .type = UCT_NPRDMA_AM_FIN };
    struct ibv_send_wr wr   = {};
    struct ibv_sge sge      = {};
    char svc_fin[UCT_NPRDMA_FIN_MAX];

    if (conn->kind == UCT_NPRDMA_CONN_AM) {
        sge.addr   = (uintptr_t)&hdr;
        sge.length = sizeof(hdr);
    } else {
        sge.addr   = (uintptr_t)svc_fin;
        sge.length = iface->ops->build_fin(uct_nprdma_conn_owner(conn),
                                           svc_fin);
    }

    conn->owes_fin = 0;
    wr.sg_list     = &sge;
    wr.num_sge     = 1;
    wr.opcode      = IBV_WR_SEND;
    wr.send_flags  = IBV_SEND_INLINE | IBV_SEND_SOLICITED;
    return uct_nprdma_conn_post_inl(iface, conn, &wr, NULL, 1);
}

void uct_nprdma_conn_close(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_conn_t *conn)
{
    uct_nprdma_net_ep_t *ep = conn->ep;

    if (conn->state == UCT_NPRDMA_CONN_NONE) {
        return;
    }

    /* Progress may not have seen that the QP is connected */
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
            conn->owes_fin = 1;
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

    if (conn->owes_fin && uct_nprdma_net_iface_can_fin(iface) &&
        (uct_nprdma_conn_post_fin(iface, conn) != UCS_OK)) {
        /* The responder finds out by itself. But nothing would tell that those
         * before are out: without queue pair they are. */
        force |= conn->unsignaled > 0;
    }

    if ((conn->owes_fin || (uct_nprdma_conn_outstanding(conn) > 0)) &&
        !force) {
        return 0;
    }

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    ret = uct_nprdma_net_dev(iface)->verbs->destroy_qp(conn->qp);
    if (ret != 0) {
        ucs_warn("%s: failed to destroy queue pair: %s",
                 uct_nprdma_net_dev(iface)->name, strerror(ret));
    }
    conn->qp = NULL;
    uct_nprdma_conn_id_free(iface, conn);
    uct_nprdma_conn_forget_unsignaled(iface, conn);
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);

    /* Nothing more will come for them */
    uct_nprdma_conn_retire(iface, conn, conn->sn,
                           (conn->state == UCT_NPRDMA_CONN_FAILED) ?
                           conn->status : UCS_ERR_CANCELED);
    return 1;
}
