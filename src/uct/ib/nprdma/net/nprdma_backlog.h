/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_BACKLOG_H_
#define UCT_NPRDMA_BACKLOG_H_

#include "nprdma_net.h"

/*
 * Work requests that are posted on a connection before it is connected. The
 * verbs specification allows a queue pair to refuse them in that state. A user
 * that sends once and then flushes, as other transports allow, would have to
 * know about wire-up. Therefore the first few work requests are kept here. In
 * every other respect they count as posted: they have a sequence number,
 * credits, and a completion that is called when they are done. A user need not
 * call progress for a posted message. Therefore wire-up posts the backlog as
 * soon as the queue pair is connected, in the async context if necessary.
 */

/* Maximum number of WRs kept for a connection: other connections lack the slots
 * and places in the CQ that these hold */
#define UCT_NPRDMA_BACKLOG_MAX  4

/**
 * Keep a work request. If the queue pair has been connected and progress has
 * not yet seen that, post it instead. Nothing is posted behind a work request
 * that the device has refused.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection in state CONNECTING.
 * @param [in] wr     Work request; it and its inline data are copied.
 *
 * @return 0, or an errno value like ibv_post_send(): ENOMEM without memory;
 *         ECANCELED if the device has refused an earlier one of the backlog.
 */
int uct_nprdma_backlog_add(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_conn_t *conn, struct ibv_send_wr *wr);

/**
 * Post the backlog: the queue pair has just been connected. The async context
 * is blocked. If the device refuses a work request, the rest is dropped, and
 * conn->refused keeps later ones from being posted.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection with a queue pair in RTS.
 *
 * @return UCS_OK, or UCS_ERR_CONNECTION_RESET. Then progress has to fail the
 *         connection with this status; this function changes no other state of
 *         it.
 */
ucs_status_t uct_nprdma_backlog_post(uct_nprdma_net_iface_t *iface,
                                     uct_nprdma_conn_t *conn);

/**
 * Free the backlog. The caller retires the WRs.
 *
 * @param [in] conn  Connection; its operations are completed by the caller.
 */
void uct_nprdma_backlog_drop(uct_nprdma_conn_t *conn);

#endif
