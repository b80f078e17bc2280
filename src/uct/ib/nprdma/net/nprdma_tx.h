/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_TX_H_
#define UCT_NPRDMA_TX_H_

#include "nprdma_backlog.h"
#include "nprdma_conn.h"

#include <ucs/debug/log.h>

/*
 * Posting of work requests, inlined into the operations of the fast path.
 *
 * An unsignaled send holds a place in the send queue and in the completion
 * queue until a later signaled send of the same connection completes: after an
 * error each of them has a completion. Therefore unsignaled WRs hold at most
 * half of the completion queue. The other half is always returned, for any
 * number of endpoints.
 */
static UCS_F_ALWAYS_INLINE int
uct_nprdma_tx_must_signal(const uct_nprdma_net_iface_t *iface,
                          const uct_nprdma_conn_t *conn)
{
    return (conn->unsignaled + 1u >= conn->moderation) ||
           (iface->tx.unsignaled >= iface->config.max_unsignaled);
}

/* Whether one more WR may be posted. If not, and the connections share the
 * missing resource, mark the interface as starved for the dispatcher. */
static inline int uct_nprdma_conn_admit_post(uct_nprdma_net_iface_t *iface,
                                             const uct_nprdma_conn_t *conn)
{
    if (ucs_unlikely(conn->credits <= conn->reserve)) {
        return 0;
    }
    if (ucs_unlikely(iface->tx.cq_avail <= conn->cq_reserve)) {
        iface->tx.starved = 1;
        return 0;
    }
    return 1;
}


/* Whether WRs that verify or redo earlier ones may all be posted: a share of
 * the credits is reserved for them. Without, the interface is starved as above:
 * an endpoint with nothing in flight that has only to flush is dispatched again
 * when others return the resource. */
static inline int uct_nprdma_conn_admit_redo(uct_nprdma_net_iface_t *iface,
                                             const uct_nprdma_conn_t *conn,
                                             int32_t count)
{
    if (ucs_unlikely(iface->tx.cq_avail < count)) {
        iface->tx.starved = 1;
        return 0;
    }
    return conn->credits >= count;
}


/* A slot to send from, or NULL if the connection has its share */
static inline uct_nprdma_slot_t *
uct_nprdma_conn_tx_slot(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn)
{
    uct_nprdma_bounce_t *pool = &iface->tx.pool;

    if (ucs_unlikely((pool->free == NULL) ||
                     !uct_nprdma_bounce_has_share(pool, conn->num_slots, 0))) {
        return uct_nprdma_conn_tx_slot_slow(iface, conn);
    }
    return uct_nprdma_bounce_get(pool);
}


/* Post a WR for which uct_nprdma_conn_admit_post() is true. Sets wr_id and
 * IBV_SEND_SIGNALED. Without `signal`, the completion (or NULL) is called when
 * a later WR of the connection completes, after at most tx_moderation of them.
 * After an error it is not queued, and progress fails the connection. */
static UCS_F_ALWAYS_INLINE ucs_status_t
uct_nprdma_conn_post_inl(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn,
                         struct ibv_send_wr *wr, uct_nprdma_comp_t *comp,
                         int signal)
{
    struct ibv_send_wr *bad_wr;
    uint16_t sn = conn->sn + 1;
    int ret;

    signal    = signal || uct_nprdma_tx_must_signal(iface, conn);
    wr->wr_id = uct_nprdma_wr_id_tx(conn->id, sn);
    if (signal) {
        wr->send_flags |= IBV_SEND_SIGNALED;
    }

    ucs_trace_data("conn 0x%x kind %u: post opcode %u sn %u%s", conn->id,
                   conn->kind, (unsigned)wr->opcode, sn,
                   signal ? " signaled" : "");
    if (ucs_likely(conn->state != UCT_NPRDMA_CONN_CONNECTING)) {
        ret = ibv_post_send(conn->qp, wr, &bad_wr);
    } else {
        ret = uct_nprdma_backlog_add(iface, conn, wr);
    }
    if (ucs_unlikely(ret != 0)) {
        uct_nprdma_conn_post_failed(iface, conn, ret);
        return UCS_ERR_IO_ERROR;
    }

    if (signal) {
        iface->tx.unsignaled -= conn->unsignaled;
        conn->unsignaled      = 0;
    } else {
        ++iface->tx.unsignaled;
        ++conn->unsignaled;
    }

    conn->sn = sn;
    --conn->credits;
    --iface->tx.cq_avail;
    if (comp != NULL) {
        comp->sn = sn;
        ucs_queue_push(&conn->comps, &comp->queue);
    }
    return UCS_OK;
}

#endif
