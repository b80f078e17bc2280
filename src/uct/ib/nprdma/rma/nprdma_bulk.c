/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_bulk.h"

#include "uct/ib/nprdma/net/nprdma_conn.h"

#include <ucs/debug/log.h>


void uct_nprdma_bulk_want(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    uct_nprdma_net_ep_t *ep = &rma->ep->net;
    ucs_status_t status;

    /* The target accepts `svc` when it executes no put of an earlier endpoint
     * any more, which could undo what a slice writes */
    if (!iface->config->has_bulk_qp ||
        (ep->svc.state != UCT_NPRDMA_CONN_CONNECTED)) {
        return;
    }

    if (rma->bulk.num_waits > 0) {
        --rma->bulk.num_waits;
        return;
    }

    if (iface->net.num_bulk >= UCT_NPRDMA_BULK_MAX) {
        /* No refusal: the place of an endpoint that ends is free again */
        rma->bulk.num_waits = UCT_NPRDMA_BULK_PAUSE;
        return;
    }

    status = uct_nprdma_conn_start(&iface->net, ep, &ep->bulk,
                                   UCT_NPRDMA_CONN_BULK);
    if (status == UCS_OK) {
        ++iface->net.stats->bulk_eps;
    } else {
        uct_nprdma_bulk_refused(iface, rma, status);
    }
}

void uct_nprdma_bulk_refused(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma, ucs_status_t status)
{
    ucs_log((iface->net.stats->bulk_refused == 0) ? UCS_LOG_LEVEL_WARN :
                                                    UCS_LOG_LEVEL_DEBUG,
            "%s: large operations of endpoint %p stay on the queue pair of "
            "requests for the next %u slices: %s",
            uct_nprdma_rma_dev_name(iface), rma->ep, rma->bulk.pause,
            ucs_status_string(status));
    ++iface->net.stats->bulk_refused;
    rma->bulk.num_waits = rma->bulk.pause;
    rma->bulk.pause     = ucs_min(rma->bulk.pause * 2,
                                  UCT_NPRDMA_BULK_MAX_PAUSE);
}
