/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_message.h"
#include "nprdma_rma_req.h"


/* Count a message that the peer may have to keep. Zero if an acknowledgement
 * has to be awaited. */
static int uct_nprdma_rma_count_message(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_rma_t *rma)
{
    if (rma->num_behind == UCT_NPRDMA_RMA_MAX_BEHIND) {
        if (UCT_NPRDMA_RMA_SN_CMP(rma->done_sn, <, rma->behind_sn)) {
            return 0;
        }

        rma->num_behind = 0;
        rma->behind_sn  = rma->sn;
        if (uct_nprdma_rma_request_ack(iface, rma) != UCS_OK) {
            rma->held_needs_ack = 1;
            uct_nprdma_rma_stall(iface->res, rma);
        }
    }

    ++rma->num_behind;
    return 1;
}

int uct_nprdma_rma_admit_message(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_ep_t *ep, uint64_t *follows_p)
{
    uct_nprdma_rma_t *rma = ep->rma;

    if (rma->ops.order.num_writes > 0) {
        return 0;
    }

    if (UCT_NPRDMA_RMA_SN_CMP(rma->done_sn, >=, (uint32_t)rma->write_count)) {
        ep->net.blocked &= ~UCT_NPRDMA_EP_BEHIND;
        rma->num_behind  = 0;
        rma->behind_sn   = rma->done_sn;
        *follows_p       = 0;
        return 1;
    }

    *follows_p = rma->write_count;
    return uct_nprdma_rma_count_message(iface, rma);
}
