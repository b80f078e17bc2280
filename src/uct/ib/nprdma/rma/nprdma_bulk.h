/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_BULK_H_
#define UCT_NPRDMA_BULK_H_

#include "nprdma_rma_types.h"

/*
 * The connection on which the NIC moves the slices of large operations of an
 * endpoint: their data, and their READs of states. A NIC that arbitrates
 * between queue pairs then executes small operations, which are on the service
 * connection, beside a slice and not behind it.
 *
 * It only makes things better, so nothing waits for it. The first slice starts
 * a connection of kind BULK. Slices that are cut until it is made are on the
 * service connection, and end there. If it cannot be made, because the peer
 * does not answer or a side has no queue pair, slices stay there, and the
 * endpoint tries again after a number of them.
 */

/* Connections of kind BULK of an interface, at most: not more endpoints can
 * have slices at the same time */
#define UCT_NPRDMA_BULK_MAX  UCT_NPRDMA_OP_MAX_SLICES

/* Slices between an endpoint's first and second try; twice as many before each
 * later one, up to the maximum. To make a queue pair takes a system call or
 * more, and the peer may be short of them for long. */
#define UCT_NPRDMA_BULK_PAUSE      256u
#define UCT_NPRDMA_BULK_MAX_PAUSE  (1u << 20)


/* The connection for slices that are cut now: of kind BULK if it is connected,
 * else SVC */
static inline uct_nprdma_conn_t *
uct_nprdma_bulk_conn(const uct_nprdma_rma_t *rma)
{
    uct_nprdma_net_ep_t *ep = &rma->ep->net;

    return ucs_likely(ep->bulk.state == UCT_NPRDMA_CONN_CONNECTED) ?
           &ep->bulk : &ep->svc;
}


/* Slow path of uct_nprdma_bulk_use(): there is no connection of kind BULK */
void uct_nprdma_bulk_want(uct_nprdma_rma_iface_t *iface,
                          uct_nprdma_rma_t *rma);

/* As uct_nprdma_bulk_conn(), for a slice that is cut now. Starts a connection
 * of kind BULK if there is none and it is time to try. */
static inline uct_nprdma_conn_t *
uct_nprdma_bulk_use(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    if (ucs_unlikely(rma->ep->net.bulk.state == UCT_NPRDMA_CONN_NONE)) {
        uct_nprdma_bulk_want(iface, rma);
    }
    return uct_nprdma_bulk_conn(rma);
}


/* An endpoint's connection of kind BULK cannot be made, and is in state NONE.
 * The first time in an interface, a warning says so. */
void uct_nprdma_bulk_refused(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma, ucs_status_t status);

#endif
