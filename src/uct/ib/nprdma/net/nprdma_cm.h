/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CM_H_
#define UCT_NPRDMA_CM_H_

#include "nprdma_net.h"

/*
 * Wire-up: finds the peer's interface by UD datagrams and makes the two QPs
 * of a connection know each other. Runs in the async context of the worker
 * (so that a busy or sleeping peer accepts) as well as in progress; everything
 * in uct_nprdma_cm_t is used with the async context blocked. What it decides
 * about endpoints is left in a list that only progress acts on.
 *
 * The exceptions are three atomics, which progress looks at without blocking,
 * to know whether it has to block. They are written with the context blocked,
 * and what they tell about is read with the context blocked, so they need no
 * order of their own: who finds one set late comes again, see
 * uct_nprdma_cm_hint(). A sleeper is woken by wakeup_fd, which becomes readable
 * after attention has been set and stays so until it is cleared.
 */


/**
 * Set up wire-up on an interface whose port, address and CQs are known.
 *
 * @param [in] iface   Interface.
 * @param [in] config  Configuration, copied.
 *
 * @return UCS_OK, or an error with a logged reason.
 */
ucs_status_t uct_nprdma_cm_init(uct_nprdma_net_iface_t *iface,
                                const uct_nprdma_cm_config_t *config);

/** Undo uct_nprdma_cm_init(); responders of the interface are destroyed. */
void uct_nprdma_cm_cleanup(uct_nprdma_net_iface_t *iface);


/**
 * Ask the peer for the other side of a connection that is in INIT.
 *
 * @param [in] iface       Interface.
 * @param [in] conn        Connection in state CONNECTING, with a QP in INIT.
 * @param [in] dev_addr    Where the peer is.
 * @param [in] iface_addr  Which interface there.
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY.
 */
ucs_status_t uct_nprdma_cm_connect(uct_nprdma_net_iface_t *iface,
                                   uct_nprdma_conn_t *conn,
                                   const uct_nprdma_dev_addr_t *dev_addr,
                                   const uct_nprdma_iface_addr_t *iface_addr);

/** Stop connecting; the connection is about to go. */
void uct_nprdma_cm_cancel(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn);


/**
 * Tell the responder that the requester has given the connection up. Best
 * effort: a responder finds out by itself too, later.
 *
 * @param [in] iface       Interface.
 * @param [in] conn        Connection that was requested.
 * @param [in] dev_addr    Where the peer is.
 * @param [in] iface_addr  Which interface there.
 */
void uct_nprdma_cm_reset(uct_nprdma_net_iface_t *iface,
                         uct_nprdma_conn_t *conn,
                         const uct_nprdma_dev_addr_t *dev_addr,
                         const uct_nprdma_iface_addr_t *iface_addr);


/**
 * Part of progress: receive packets while a REQ is on its way.
 *
 * @return Number of things done.
 */
unsigned uct_nprdma_cm_progress(uct_nprdma_net_iface_t *iface);


/**
 * Take one of the connections whose wire-up has ended. To be called until there
 * is none whenever iface->cm.attention is set.
 *
 * @param [in]  iface     Interface.
 * @param [out] status_p  How it has ended.
 *
 * @return The connection, or NULL.
 */
uct_nprdma_conn_t *
uct_nprdma_cm_pop_outcome(uct_nprdma_net_iface_t *iface,
                          ucs_status_t *status_p);


/** Let progress be called, and look at what wire-up has for it. */
void uct_nprdma_cm_wakeup(uct_nprdma_cm_t *cm);

/** Make sure that the timer of retransmissions runs. */
void uct_nprdma_cm_start_timer(uct_nprdma_net_iface_t *iface);

/** @return When to repeat a packet; *interval is doubled. */
ucs_time_t uct_nprdma_cm_backoff(uct_nprdma_cm_t *cm, ucs_time_t *interval);


/**
 * Handle a packet that has arrived, whatever it contains.
 *
 * @param [in] data    The packet.
 * @param [in] length  Bytes.
 */
void uct_nprdma_cm_handle_packet(uct_nprdma_net_iface_t *iface,
                                 const void *data, size_t length);

#endif
