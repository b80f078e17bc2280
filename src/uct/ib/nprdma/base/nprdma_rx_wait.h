/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RX_WAIT_H_
#define UCT_NPRDMA_RX_WAIT_H_

#include "uct/ib/nprdma/net/nprdma_net.h"
#include "uct/ib/nprdma/service/nprdma_service.h"

/* Received messages that follow requests (ARCHITECTURE 3, messages). Mostly the
 * requests are executed, or have arrived and are executed now. A message whose
 * requests wait for a page, or are being executed by another thread, is copied,
 * because a receive slot would be missing to other peers, and so is each later
 * message of its endpoint. */

/* Whether a received message may be delivered now. If not, it is copied and
 * delivered later, or dropped if its requests have been. */
int uct_nprdma_rx_wait_check(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_service_t *service,
                             const struct ibv_wc *wc,
                             const uct_nprdma_am_hdr_t *hdr);

/* Deliver messages whose requests have been executed */
unsigned uct_nprdma_rx_wait_progress(uct_nprdma_net_iface_t *iface);

void uct_nprdma_rx_wait_cleanup(uct_nprdma_net_iface_t *iface);

#endif
