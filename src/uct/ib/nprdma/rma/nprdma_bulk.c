/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_bulk.h"

#include "uct/ib/nprdma/net/nprdma_conn.h"

#include <ucs/debug/log.h>


uct_nprdma_conn_t *uct_nprdma_bulk_start(uct_nprdma_rma_iface_t *iface,
                                         uct_nprdma_rma_t *rma)
{
    uct_nprdma_net_ep_t *ep = &rma->ep->net;
    ucs_status_t status;

    rma->bulk = &ep->svc;
    if ((iface->config->bulk_qp == UCT_NPRDMA_BULK_QP_NO) ||
        (iface->net.num_bulk >= UCT_NPRDMA_BULK_MAX)) {
        return rma->bulk;
    }

    /* The operation has been accepted, and does not depend on this queue
     * pair */
    status = uct_nprdma_conn_start(&iface->net, ep, &ep->bulk,
                                   UCT_NPRDMA_CONN_BULK);
    if (status != UCS_OK) {
        ucs_diag("%s: large operations share the queue pair of requests: %s",
                 uct_nprdma_rma_dev_name(iface), ucs_status_string(status));
        return rma->bulk;
    }

    ++iface->net.stats->bulk_eps;
    rma->bulk = &ep->bulk;
    return rma->bulk;
}
