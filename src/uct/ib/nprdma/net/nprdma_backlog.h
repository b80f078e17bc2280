/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_BACKLOG_H_
#define UCT_NPRDMA_BACKLOG_H_

#include "nprdma_net.h"

/*
 * Work requests that are posted on a connection before it is connected: the
 * verbs specification allows a queue pair to refuse them in that state. A user
 * that sends once and then flushes, as other transports allow, would have to
 * know about wire-up. In every other respect they count as posted.
 *
 * A user need not call progress for a posted message. Therefore wire-up posts
 * the backlog as soon as the queue pair is connected, in the async context if
 * necessary.
 */

/* WRs kept for a connection: other connections lack the slots and places in the
 * CQ that these hold */
#define UCT_NPRDMA_BACKLOG_MAX  4

/* Keep a copy of a work request, or post it if the queue pair has been
 * connected meanwhile. Nothing is posted behind one that the device has
 * refused: then ECANCELED. */
int uct_nprdma_backlog_add(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_conn_t *conn, struct ibv_send_wr *wr);

/* The queue pair has just been connected, and the async context is blocked. If
 * the device refuses a work request, the rest is dropped, conn->refused keeps
 * later ones from being posted, and progress fails the connection with the
 * status. */
ucs_status_t uct_nprdma_backlog_post(uct_nprdma_net_iface_t *iface,
                                     uct_nprdma_conn_t *conn);

/* The caller retires the WRs */
void uct_nprdma_backlog_drop(uct_nprdma_conn_t *conn);

#endif
