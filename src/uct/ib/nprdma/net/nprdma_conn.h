/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CONN_H_
#define UCT_NPRDMA_CONN_H_

#include "nprdma_net.h"

/*
 * Functions of connections (nprdma_conn_types.h). Posting is in nprdma_tx.h.
 */

/**
 * Start connecting. Progress changes the state to CONNECTED later and calls
 * uct_nprdma_net_ep_schedule(). Until then up to UCT_NPRDMA_BACKLOG_MAX WRs can
 * be posted.
 *
 * @param [in] iface  Interface.
 * @param [in] ep     Endpoint of the connection.
 * @param [in] conn   Connection in state NONE; &ep->conns[kind].
 * @param [in] kind   Kind of the connection.
 *
 * @return UCS_OK: connecting. UCS_ERR_NO_MEMORY, UCS_ERR_IO_ERROR, or
 *         UCS_ERR_EXCEEDS_LIMIT for too many connections, with a logged reason.
 */
ucs_status_t
uct_nprdma_conn_start(uct_nprdma_net_iface_t *iface,
                      uct_nprdma_net_ep_t *ep, uct_nprdma_conn_t *conn,
                      enum uct_nprdma_conn_kind kind);


/** @return Number of WRs that are posted and not known to be done. */
static inline unsigned
uct_nprdma_conn_outstanding(const uct_nprdma_conn_t *conn)
{
    return (uint16_t)(conn->sn - conn->done_sn);
}

/**
 * @return Nonzero if an outstanding WR will have a completion, so that the end
 *         of the peer would be noticed. An unsignaled WR may be done already.
 */
static inline int uct_nprdma_conn_is_watched(const uct_nprdma_conn_t *conn)
{
    return uct_nprdma_conn_outstanding(conn) > conn->unsignaled;
}


/**
 * Find out whether the peer still exists, if nothing outstanding does: post a
 * WRITE of zero bytes, which fails the endpoint if the peer's QP does not
 * answer.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection; one that is not connected is not asked.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR, and progress will fail the connection.
 */
ucs_status_t
uct_nprdma_conn_check(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn);


/**
 * Fail a connection after an error. Outstanding completions get the status as
 * their WRs are flushed. The user's error handler is called once per endpoint.
 *
 * @param [in] iface   Interface.
 * @param [in] conn    Connection.
 * @param [in] status  Reason.
 */
void uct_nprdma_conn_fail(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status);

/**
 * Queue a completion that is called when everything posted up to now is done.
 *
 * @param [in] conn  Connection.
 * @param [in] comp  Completion, owned by the caller and valid until its
 *                   function is called.
 */
static inline void uct_nprdma_conn_add_drain_comp(uct_nprdma_conn_t *conn,
                                                  uct_nprdma_comp_t *comp)
{
    comp->sn = conn->sn;
    ucs_queue_push(&conn->comps, &comp->queue);
}


/**
 * Forget a connection that was never established, and tell the peer. It has no
 * WRs. An answer of the peer that arrives later finds no connection, and the
 * peer is told again.
 *
 * @param [in]     iface  Interface.
 * @param [in,out] conn   Connection in state CONNECTING, whose wire-up has
 *                        ended with an error; then in state NONE.
 */
void uct_nprdma_conn_give_up(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_conn_t *conn);


/** Initialize a connection in state NONE. */
void uct_nprdma_conn_init(uct_nprdma_conn_t *conn);


/**
 * Part of progress: handle the outcomes of wire-up.
 *
 * @param [in] iface  Interface.
 *
 * @return Number of completions and outcomes handled.
 */
unsigned uct_nprdma_conn_progress(uct_nprdma_net_iface_t *iface);


/**
 * WRs up to a sequence number are done: return their resources and call their
 * completions.
 *
 * @param [in] iface   Interface.
 * @param [in] conn    Connection.
 * @param [in] sn      Sequence number of the last WR that is done.
 * @param [in] status  Status for the completions.
 */
void uct_nprdma_conn_retire(uct_nprdma_net_iface_t *iface,
                            uct_nprdma_conn_t *conn, uint16_t sn,
                            ucs_status_t status);


/**
 * Post a WR that moves no data. It completes after all earlier WRs, and fails
 * if the peer's QP is gone. May use the WRs that are reserved beyond the
 * credits.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection.
 * @param [in] comp   As for uct_nprdma_conn_post_inl().
 *
 * @return UCS_OK or UCS_ERR_IO_ERROR, as uct_nprdma_conn_post_inl().
 */
ucs_status_t uct_nprdma_conn_post_nop(uct_nprdma_net_iface_t *iface,
                                      uct_nprdma_conn_t *conn,
                                      uct_nprdma_comp_t *comp);


/**
 * A connection gets no more slots. Make sure that a completion returns those
 * that it holds. If it holds none, mark the interface as starved for the
 * dispatcher of pending requests.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection.
 * @param [in] held   Slots that it holds.
 */
void uct_nprdma_conn_no_slot(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_conn_t *conn, unsigned held);

/**
 * Slow path of uct_nprdma_conn_tx_slot(): grow the empty pool, or do as
 * uct_nprdma_conn_no_slot() does.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection.
 *
 * @return A slot, or NULL.
 */
uct_nprdma_slot_t *
uct_nprdma_conn_tx_slot_slow(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_conn_t *conn);


/**
 * Post one receive on the own RQ of an SVC connection. The wr_id of its
 * completion contains the id of the connection and the index.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection of kind SVC with a QP in any state.
 * @param [in] slot   Destination of the reply; the whole slot.
 * @param [in] index  Number chosen by the caller, below 2^31.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR with a logged reason.
 */
ucs_status_t
uct_nprdma_conn_post_recv(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, uct_nprdma_slot_t *slot,
                          uint32_t index);


/**
 * The device refused a post: take the credits away. Progress fails the
 * connection.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection.
 * @param [in] error  errno value of the post, for the log.
 */
void uct_nprdma_conn_post_failed(uct_nprdma_net_iface_t *iface,
                                 uct_nprdma_conn_t *conn, int error);


/**
 * Fail a connection without reporting that to the endpoint.
 *
 * @param [in] iface   Interface.
 * @param [in] conn    Connection.
 * @param [in] status  Reason; status of outstanding completions.
 */
void uct_nprdma_conn_stop(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status);


/**
 * The endpoint is being destroyed. Send the last message if the peer is
 * connected: at once, or in uct_nprdma_conn_release() if many endpoints are
 * destroyed at the same time and the completion queue has no room.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection in any state.
 */
void uct_nprdma_conn_close(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_conn_t *conn);


/**
 * Destroy the QP when no WR is outstanding and the last message has been sent.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection in state CLOSING or FAILED, or without a QP.
 * @param [in] force  Destroy it in any case. Outstanding completions get the
 *                    status of the failure, or UCS_ERR_CANCELED.
 *
 * @return Nonzero if the QP is destroyed.
 */
int uct_nprdma_conn_release(uct_nprdma_net_iface_t *iface,
                            uct_nprdma_conn_t *conn, int force);

#endif
