/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_BULK_H_
#define UCT_NPRDMA_BULK_H_

#include "nprdma_rma_types.h"

/*
 * The connection on which the NIC moves the slices of large operations of an
 * endpoint: their data, and their READs of states. A NIC that arbitrates
 * between queue pairs then executes small operations, which are on the service
 * connection, beside a slice and not behind it. Requests to the target's
 * service are on the service connection in any case.
 *
 * The first large operation starts a connection of kind BULK and waits for it
 * in the scheduler. Where there is to be none, slices are on the service
 * connection as well.
 */

/* Maximum number of connections of kind BULK of an interface. More endpoints
 * than that cannot have slices at the same time. */
#define UCT_NPRDMA_BULK_MAX  UCT_NPRDMA_OP_MAX_SLICES


/** Slow path of uct_nprdma_bulk_conn(): the first large operation. */
uct_nprdma_conn_t *uct_nprdma_bulk_start(uct_nprdma_rma_iface_t *iface,
                                         uct_nprdma_rma_t *rma);

/**
 * Find the connection for slices of large operations; start it if there is
 * none. It never changes.
 *
 * @param [in] iface  Interface.
 * @param [in] rma    RMA side of the endpoint; has not failed.
 *
 * @return The connection in any state but NONE.
 */
static inline uct_nprdma_conn_t *
uct_nprdma_bulk_conn(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    return ucs_likely(rma->bulk != NULL) ? rma->bulk :
                                           uct_nprdma_bulk_start(iface, rma);
}


/**
 * @return Nonzero if an endpoint's connection of kind BULK is being made, so
 *         that large operations wait for the target's wire-up.
 */
static inline int uct_nprdma_bulk_is_connecting(const uct_nprdma_rma_t *rma)
{
    return rma->ep->net.bulk.state == UCT_NPRDMA_CONN_CONNECTING;
}

#endif
