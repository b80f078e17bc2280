/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_BACKLOG_H_
#define UCT_NPRDMA_BACKLOG_H_

#include "nprdma_net.h"

/*
 * What is posted on a connection before it is connected. A queue pair refuses
 * work requests then, and users that send once and flush, as with a transport
 * that connects at once, would have to know. So the first few are kept here.
 * In every other respect they are posted: they have a sequence number, credits,
 * and an op that is called when they are done. As nobody needs to call progress
 * for what has been posted, wire-up posts them as soon as the queue pair is
 * connected, in the async context if need be.
 */

/* WRs kept for a connection: what they hold is missing elsewhere */
#define UCT_NPRDMA_BACKLOG_MAX  4

/**
 * Keep a work request, or post it if the queue pair has been connected, which
 * progress does not know yet. Nothing gets past what the device has refused.
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection in state CONNECTING.
 * @param [in] wr     Work request; it and inline data are copied.
 *
 * @return 0 or an errno, like ibv_post_send(); ECANCELED if one of those kept
 *         was refused.
 */
int uct_nprdma_backlog_add(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_conn_t *conn, struct ibv_send_wr *wr);

/**
 * Post what has been kept: the queue pair has just been connected. Called with
 * the async context blocked. When the device refuses one, the rest is dropped,
 * and conn->refused keeps anything else from being posted.
 *
 * @return UCS_OK, or UCS_ERR_CONNECTION_RESET, which progress has to fail the
 *         connection with: nothing that belongs to it is touched here.
 */
ucs_status_t uct_nprdma_backlog_post(uct_nprdma_net_iface_t *iface,
                                     uct_nprdma_conn_t *conn);

/** Forget what has been kept. Whoever calls this retires the WRs. */
void uct_nprdma_backlog_drop(uct_nprdma_conn_t *conn);

#endif
