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
 * The exceptions are three atomics, which progress reads without blocking to
 * find out whether it has to block. They and what they announce are written
 * with the context blocked, so they need no memory order: progress that reads
 * an old value reads the new one in a later call, see uct_nprdma_cm_hint(). A
 * thread that sleeps is woken by wakeup_fd, which stays readable until
 * attention is cleared.
 *
 * UCX has one thread for asynchronous events, starts it once, and counts its
 * users. A forked child inherits the count without the thread, and the epoll
 * descriptor that the parent's thread waits for. So in a child nothing is
 * registered with UCX, wire-up is polled, and its timers are progress.
 */


/* The interface has its port, address and CQs. Nothing is left after an
 * error. */
ucs_status_t uct_nprdma_cm_init(uct_nprdma_net_iface_t *iface,
                                const uct_nprdma_cm_config_t *config);

/* Also destroys the responders of the interface */
void uct_nprdma_cm_cleanup(uct_nprdma_net_iface_t *iface);


/* Ask the peer to create its side of a connection, whose QP is in INIT */
ucs_status_t uct_nprdma_cm_connect(uct_nprdma_net_iface_t *iface,
                                   uct_nprdma_conn_t *conn,
                                   const uct_nprdma_dev_addr_t *dev_addr,
                                   const uct_nprdma_iface_addr_t *iface_addr);

/* Stop connecting, if it does: no outcome follows */
void uct_nprdma_cm_cancel(uct_nprdma_net_iface_t *iface,
                          uct_nprdma_conn_t *conn);


/* Inform the responder that the requester has given the connection up. Best
 * effort: if the packet is lost, the responder's next probe finds out. */
void uct_nprdma_cm_reset(uct_nprdma_net_iface_t *iface,
                         uct_nprdma_conn_t *conn,
                         const uct_nprdma_dev_addr_t *dev_addr,
                         const uct_nprdma_iface_addr_t *iface_addr);


/* Part of progress: receive packets while a REQ is in flight */
unsigned uct_nprdma_cm_progress(uct_nprdma_net_iface_t *iface);


/* Part of progress if wire-up is polled: do what UCX's thread does
 * elsewhere. */
unsigned uct_nprdma_cm_poll(uct_nprdma_net_iface_t *iface);


/* The user is about to sleep, and wire-up is polled: request an event for the
 * next packet. Zero: call progress first, because a packet has arrived or may
 * have to be repeated. */
int uct_nprdma_cm_sleep(uct_nprdma_net_iface_t *iface);


/* Remove the first outcome. If attention is set, progress calls this until it
 * returns NULL, which clears attention. */
uct_nprdma_conn_t *
uct_nprdma_cm_pop_outcome(uct_nprdma_net_iface_t *iface,
                          ucs_status_t *status_p);


/* Make progress run and handle the outcomes */
void uct_nprdma_cm_wakeup(uct_nprdma_cm_t *cm);

void uct_nprdma_cm_start_timer(uct_nprdma_net_iface_t *iface);

/* Time of the next retransmission; doubles *interval up to retry_max */
ucs_time_t uct_nprdma_cm_backoff(uct_nprdma_cm_t *cm, ucs_time_t *interval);


/* The packet may have any content */
void uct_nprdma_cm_handle_packet(uct_nprdma_net_iface_t *iface,
                                 const void *data, size_t length);

#endif
