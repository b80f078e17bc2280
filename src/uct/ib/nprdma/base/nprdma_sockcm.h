/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SOCKCM_H_
#define UCT_NPRDMA_SOCKCM_H_

#include <uct/base/uct_cm.h>
#include <uct/base/uct_component.h>

/*
 * Connections by socket address, for programs with a client and a server. UCP
 * takes the device of a connection, and the device address of the peer, from
 * the connection manager that carried the request. UCX's TCP manager names a
 * network device, which has no nprdma. This manager is UCX's TCP manager with
 * two changes:
 *  - where the worker has an interface of nprdma, its device takes the place of
 *    the network device;
 *  - its device address travels behind the private data of the user
 *    (uct_nprdma_sock_trailer_t), and is the peer's device address.
 *
 * A peer without a trailer uses another transport: what TCP reports remains. A
 * worker without an interface of nprdma gets the TCP manager unchanged, and so
 * does a client that gives other callbacks than UCP does.
 *
 * UCP uses the managers that UCX_SOCKADDR_TLS_PRIORITY names, at most one of
 * them for a TCP port: nprdma.env lists "nprdma" in the place of "tcp".
 */

/* Configuration: none of its own; UCX_TCP_CM_xx apply */
extern ucs_config_field_t uct_nprdma_sockcm_config_table[];


/* Open a connection manager, as uct_component_t.cm_open. UCS_ERR_UNSUPPORTED:
 * UCX has no TCP manager. */
ucs_status_t uct_nprdma_sockcm_open(uct_component_t *component,
                                    uct_worker_h worker,
                                    const uct_cm_config_t *config,
                                    uct_cm_h *cm_p);

#endif
