/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CONN_H_
#define UCT_NPRDMA_CONN_H_

#include "nprdma_net.h"

/*
 * What is done with a connection (nprdma_conn_types.h). Posting is in
 * nprdma_tx.h.
 */

/**
 * Start connecting. Posting is possible once the state is CONNECTED, which
 * progress brings about together with uct_nprdma_net_ep_schedule().
 *
 * @param [in] iface  Interface.
 * @param [in] ep     Endpoint that the connection is for.
 * @param [in] conn   Connection in state NONE; &ep->am or &ep->svc.
 * @param [in] kind   What for.
 *
 * @return UCS_OK: connecting; or an error with a logged reason.
 */
ucs_status_t
uct_nprdma_conn_start(uct_nprdma_net_iface_t *iface,
                      uct_nprdma_net_ep_t *ep, uct_nprdma_conn_t *conn,
                      enum uct_nprdma_conn_kind kind);


/** @return Number of WRs posted and not known done. */
static inline unsigned
uct_nprdma_conn_outstanding(const uct_nprdma_conn_t *conn)
{
    return (uint16_t)(conn->sn - conn->done_sn);
}

/**
 * @return Nonzero if a WR is on its way that will have a completion, so that
 *         the death of the peer would be noticed. One without may be done.
 */
static inline int uct_nprdma_conn_is_watched(const uct_nprdma_conn_t *conn)
{
    return uct_nprdma_conn_outstanding(conn) > conn->unsignaled;
}


/**
 * Take a connection out of use after an error. Outstanding ops get the status
 * as their WRs are flushed; the user's error handler is called once per
 * endpoint.
 *
 * @param [in] iface   Interface.
 * @param [in] conn    Connection.
 * @param [in] status  Why.
 */
void uct_nprdma_conn_fail(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status);

/** Let an op be called when everything posted up to now is done. */
static inline void uct_nprdma_conn_add_drain_op(uct_nprdma_conn_t *conn,
                                                uct_nprdma_op_t *op)
{
    op->sn = conn->sn;
    ucs_queue_push(&conn->ops, &op->queue);
}


/** Initialize a connection in state NONE. */
void uct_nprdma_conn_init(uct_nprdma_conn_t *conn);


/**
 * Part of progress: act on what wire-up has decided about connections.
 *
 * @return Number of things done.
 */
unsigned uct_nprdma_conn_progress(uct_nprdma_net_iface_t *iface);


/**
 * WRs up to a sequence number are done: return their resources and call their
 * ops.
 */
void uct_nprdma_conn_retire(uct_nprdma_net_iface_t *iface,
                            uct_nprdma_conn_t *conn, uint16_t sn,
                            ucs_status_t status);


/**
 * Post a WR that moves nothing, but completes after all before it, and fails
 * if the peer is gone. May use the WRs that are reserved beyond the credits.
 */
ucs_status_t uct_nprdma_conn_post_nop(uct_nprdma_net_iface_t *iface,
                                      uct_nprdma_conn_t *conn,
                                      uct_nprdma_op_t *op);


/**
 * A connection gets no more slots: see to it that those it has come back, or
 * tell the dispatcher if it has none.
 *
 * @param [in] held  How many it has.
 */
void uct_nprdma_conn_no_slot(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_conn_t *conn, unsigned held);

/** The pool is empty: grow it, or as uct_nprdma_conn_no_slot(). */
uct_nprdma_slot_t *
uct_nprdma_conn_tx_slot_slow(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_conn_t *conn);


/**
 * Post one receive on the own RQ of an SVC connection. The wr_id of its
 * completion tells the connection and the index.
 *
 * @param [in] conn   Connection of kind SVC with a QP (any state).
 * @param [in] slot   Where the reply goes; slot->data, whole slot.
 * @param [in] index  Number of the caller's choice, below 2^31.
 *
 * @return UCS_OK or UCS_ERR_IO_ERROR.
 */
ucs_status_t
uct_nprdma_conn_post_recv(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, uct_nprdma_slot_t *slot,
                          uint32_t index);


/** A post was refused by the device: note it, progress fails the endpoint. */
void uct_nprdma_conn_post_failed(uct_nprdma_net_iface_t *iface,
                                 uct_nprdma_conn_t *conn, int error);


/** Take a connection out of use without telling the endpoint. */
void uct_nprdma_conn_stop(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status);


/**
 * The endpoint is going: say goodbye to the peer if there is one, at once or,
 * when many go at a time, as soon as there is room for it
 * (uct_nprdma_conn_release()).
 */
void uct_nprdma_conn_close(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_conn_t *conn);


/**
 * Destroy the QP once no WR is outstanding, and the last message has been sent.
 *
 * @param [in] force  Destroy it even so; ops get the status that it failed
 *                    with, or UCS_ERR_CANCELED.
 *
 * @return Whether the connection is gone.
 */
int uct_nprdma_conn_release(uct_nprdma_net_iface_t *iface,
                            uct_nprdma_conn_t *conn, int force);

#endif
