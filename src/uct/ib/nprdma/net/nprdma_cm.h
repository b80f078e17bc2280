/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CM_H_
#define UCT_NPRDMA_CM_H_

#include "nprdma_net.h"

/*
 * Wire-up: finds the peer's interface by UD datagrams and connects the two QPs
 * of a connection. It runs in the worker's async context, so that a busy or
 * sleeping peer accepts, and in progress. Every access to uct_nprdma_cm_t is
 * made with the async context blocked. Wire-up does not act on endpoints: it
 * puts outcomes in a list, and only progress handles the list.
 *
 * The exceptions are three atomics. Progress reads them without blocking, to
 * find out whether it has to block. They are written with the context blocked,
 * and the data that they announce is read with the context blocked. Therefore
 * they need no memory order: progress that reads an old value reads the new one
 * in a later call, see uct_nprdma_cm_hint(). A thread that sleeps is woken by
 * wakeup_fd. It becomes readable after attention has been set, and stays
 * readable until attention is cleared.
 *
 * UCX has one thread for asynchronous events, starts it once, and counts its
 * users. A forked child inherits the count without the thread, and the epoll
 * descriptor that the parent's thread waits for. So in a child nothing is
 * registered with UCX, wire-up is polled, and its timers are progress.
 */


/**
 * Set up wire-up on an interface that has its port, address and CQs.
 *
 * @param [in] iface   Interface.
 * @param [in] config  Configuration, copied.
 *
 * @return UCS_OK; UCS_ERR_NO_MEMORY, UCS_ERR_IO_ERROR or an error of the async
 *         context, with a logged reason. Nothing is left allocated then.
 */
ucs_status_t uct_nprdma_cm_init(uct_nprdma_net_iface_t *iface,
                                const uct_nprdma_cm_config_t *config);

/** Undo uct_nprdma_cm_init(), and destroy the responders of the interface. */
void uct_nprdma_cm_cleanup(uct_nprdma_net_iface_t *iface);


/**
 * Ask the peer to create its side of a connection.
 *
 * @param [in] iface       Interface.
 * @param [in] conn        Connection that begins to connect, with a QP in INIT.
 * @param [in] dev_addr    Address of the peer's port, copied.
 * @param [in] iface_addr  Address of the peer's interface, copied.
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t uct_nprdma_cm_connect(uct_nprdma_net_iface_t *iface,
                                   uct_nprdma_conn_t *conn,
                                   const uct_nprdma_dev_addr_t *dev_addr,
                                   const uct_nprdma_iface_addr_t *iface_addr);

/**
 * Stop connecting, before the connection ends. No outcome follows.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection; unchanged if it does not connect.
 */
void uct_nprdma_cm_cancel(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn);


/**
 * Inform the responder that the requester has given the connection up. Best
 * effort: if the packet is lost, the responder's next probe finds out.
 *
 * @param [in] iface       Interface.
 * @param [in] conn        Connection that was requested.
 * @param [in] dev_addr    Address of the peer's port.
 * @param [in] iface_addr  Address of the peer's interface.
 */
void uct_nprdma_cm_reset(uct_nprdma_net_iface_t *iface,
                         uct_nprdma_conn_t *conn,
                         const uct_nprdma_dev_addr_t *dev_addr,
                         const uct_nprdma_iface_addr_t *iface_addr);


/**
 * Part of progress: receive packets while a REQ is in flight.
 *
 * @param [in] iface  Interface.
 *
 * @return Number of completions handled.
 */
unsigned uct_nprdma_cm_progress(uct_nprdma_net_iface_t *iface);


/**
 * Part of progress if wire-up is polled: do what UCX's thread does elsewhere.
 *
 * @param [in] iface  Interface.
 *
 * @return Number of completions handled.
 */
unsigned uct_nprdma_cm_poll(uct_nprdma_net_iface_t *iface);


/**
 * The user is about to sleep, and wire-up is polled. Request an event for the
 * next packet.
 *
 * @param [in] iface  Interface.
 *
 * @return Zero if progress has to be called first, because a packet has arrived
 *         or may have to be repeated.
 */
int uct_nprdma_cm_sleep(uct_nprdma_net_iface_t *iface);


/**
 * Remove the connection of the first outcome from the list of outcomes. If
 * iface->cm.attention is set, progress calls this until it returns NULL, which
 * clears attention.
 *
 * @param [in]  iface     Interface.
 * @param [out] status_p  Outcome; written if a connection is returned.
 *
 * @return The connection, or NULL.
 */
uct_nprdma_conn_t *
uct_nprdma_cm_pop_outcome(uct_nprdma_net_iface_t *iface,
                          ucs_status_t *status_p);


/** Make progress run and handle the outcomes of wire-up. */
void uct_nprdma_cm_wakeup(uct_nprdma_cm_t *cm);

/** Start the timer of retransmissions if it does not run. */
void uct_nprdma_cm_start_timer(uct_nprdma_net_iface_t *iface);

/**
 * @param [in]     cm        Wire-up of the interface.
 * @param [in,out] interval  Time between retransmissions.
 *
 * @return Time of the next retransmission. Doubles *interval up to retry_max.
 */
ucs_time_t uct_nprdma_cm_backoff(uct_nprdma_cm_t *cm, ucs_time_t *interval);


/**
 * Handle a received packet with any content.
 *
 * @param [in] iface   Interface.
 * @param [in] data    The packet.
 * @param [in] length  Its length in bytes.
 */
void uct_nprdma_cm_handle_packet(uct_nprdma_net_iface_t *iface,
                                 const void *data, size_t length);

#endif
