/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_UD_H_
#define UCT_NPRDMA_UD_H_

#include "nprdma_net.h"

/* Datagrams of wire-up: the UD queue pair with its buffers and address handles.
 * nprdma_cm handles their content. The async context is blocked in all these
 * functions except the first and the last. */

/* Create the queue pair, ready to receive */
ucs_status_t uct_nprdma_ud_init(uct_nprdma_net_iface_t *iface);

/* Pass all received packets to uct_nprdma_cm_handle_packet() */
unsigned uct_nprdma_ud_poll(uct_nprdma_net_iface_t *iface);

/* Send a copy of a packet; magic, version, src_nonce and ud_qpn are set here.
 * Any datagram may be lost; a sender that needs an answer repeats it. */
void uct_nprdma_ud_send(uct_nprdma_net_iface_t *iface,
                        const uct_nprdma_dev_addr_t *dev_addr, uint32_t ud_qpn,
                        const uct_nprdma_cm_packet_t *packet);

void uct_nprdma_ud_cleanup(uct_nprdma_net_iface_t *iface);

#endif
