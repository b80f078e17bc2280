/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CONN_H_
#define UCT_NPRDMA_CONN_H_

#include "nprdma_backlog.h"

#include <ucs/debug/log.h>

/* Functions of connections (nprdma_conn_types.h) */

/* Start connecting &ep->conns[kind]. Progress changes the state to CONNECTED
 * later and calls uct_nprdma_net_ep_schedule(). Until then up to
 * UCT_NPRDMA_BACKLOG_MAX WRs can be posted. UCS_ERR_EXCEEDS_LIMIT: too many
 * connections. */
ucs_status_t
uct_nprdma_conn_start(uct_nprdma_net_iface_t *iface,
                      uct_nprdma_net_ep_t *ep, uct_nprdma_conn_t *conn,
                      enum uct_nprdma_conn_kind kind);


/* WRs that are posted and not known to be done */
static inline unsigned
uct_nprdma_conn_outstanding(const uct_nprdma_conn_t *conn)
{
    return (uint16_t)(conn->sn - conn->done_sn);
}

/* Whether an outstanding WR will have a completion, so that the end of the peer
 * would be noticed: an unsignaled WR may be done already */
static inline int uct_nprdma_conn_is_watched(const uct_nprdma_conn_t *conn)
{
    return uct_nprdma_conn_outstanding(conn) > conn->unsignaled;
}


/* Find out whether the peer still exists, if nothing outstanding does: post a
 * WRITE of zero bytes, which fails the endpoint if the peer's QP does not
 * answer */
ucs_status_t
uct_nprdma_conn_check(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn);


/* Outstanding completions get the status as their WRs are flushed. The user's
 * error handler is called once per endpoint. */
void uct_nprdma_conn_fail(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status);

/* The completion is called when everything posted up to now is done */
static inline void uct_nprdma_conn_add_drain_comp(uct_nprdma_conn_t *conn,
                                                  uct_nprdma_comp_t *comp)
{
    comp->sn = conn->sn;
    ucs_queue_push(&conn->comps, &comp->queue);
}


void uct_nprdma_conn_init(uct_nprdma_conn_t *conn);


/* Part of progress: handle the outcomes of wire-up */
unsigned uct_nprdma_conn_progress(uct_nprdma_net_iface_t *iface);


/* WRs up to a sequence number are done */
void uct_nprdma_conn_retire(uct_nprdma_net_iface_t *iface,
                            uct_nprdma_conn_t *conn, uint16_t sn,
                            ucs_status_t status);


/* Post a WR that moves no data, and that completes after all earlier ones. It
 * may use the WRs that are reserved beyond the credits. */
ucs_status_t uct_nprdma_conn_post_nop(uct_nprdma_net_iface_t *iface,
                                      uct_nprdma_conn_t *conn,
                                      uct_nprdma_comp_t *comp);


/* A connection gets no more slots: make sure that a completion returns those
 * that it holds. If it holds none, mark the interface as starved. */
void uct_nprdma_conn_no_slot(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_conn_t *conn, unsigned held);

/* Grow the empty pool, or do as uct_nprdma_conn_no_slot() does */
uct_nprdma_slot_t *
uct_nprdma_conn_tx_slot_slow(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_conn_t *conn);


/* Post a receive on the own RQ of an SVC connection. The wr_id of its
 * completion has the id of the connection and the index, below 2^31. */
ucs_status_t
uct_nprdma_conn_post_recv(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, uct_nprdma_slot_t *slot,
                          uint32_t index);


/* The device refused a post: take the credits away, so that progress fails the
 * connection */
void uct_nprdma_conn_post_failed(uct_nprdma_net_iface_t *iface,
                                 uct_nprdma_conn_t *conn, int error);


/* Fail a connection without reporting that to the endpoint */
void uct_nprdma_conn_stop(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status);


/* The endpoint is being destroyed. Send the last message: at once, or in
 * uct_nprdma_conn_release() if many endpoints are destroyed at the same time
 * and the completion queue has no room. */
void uct_nprdma_conn_close(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_conn_t *conn);


/* Destroy the QP when no WR is outstanding and the last message has been sent,
 * or by force. Whether it is destroyed. */
int uct_nprdma_conn_release(uct_nprdma_net_iface_t *iface,
                            uct_nprdma_conn_t *conn, int force);


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
