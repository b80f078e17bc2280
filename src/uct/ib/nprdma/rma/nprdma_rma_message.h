/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_MESSAGE_H_
#define UCT_NPRDMA_RMA_MESSAGE_H_

#include "nprdma_rma_types.h"

/*
 * Order of active messages behind earlier puts and atomics of their endpoint
 * (ARCHITECTURE 3, messages). They travel on another queue pair than requests,
 * and the NIC executes large puts, which may be repeated.
 *
 * A message waits here for operations of ops.order. It does not wait for
 * requests that have been sent: it carries their number, and the peer delivers
 * it behind them. The peer keeps such a message while they wait for a page, so
 * their number is bounded: after UCT_NPRDMA_RMA_MAX_BEHIND of them the peer is
 * asked for an acknowledgement, and after as many more it is awaited.
 */
#define UCT_NPRDMA_RMA_MAX_BEHIND  32u


/* Whether a message may be sent, behind *follows_p requests. Called only if
 * UCT_NPRDMA_EP_BEHIND is set, which this function clears when there is nothing
 * to wait for. Zero: try again when operations are done. */
int uct_nprdma_rma_admit_message(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_ep_t *ep, uint64_t *follows_p);

#endif
