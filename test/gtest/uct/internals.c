/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "internals.h"

#include "uct/ib/nprdma/base/nprdma_ep.h"
#include "uct/ib/nprdma/rma/nprdma_rma_types.h"

#include <ucs/time/time.h>

unsigned conn_index(uct_ep_h ep)
{
    uct_nprdma_net_ep_t *self = ucs_derived_of(ep, uct_nprdma_net_ep_t);

    return UCT_NPRDMA_CONN_INDEX(self->am.id);
}

void waits_since(uct_ep_h ep, double seconds)
{
    uct_nprdma_longest_ep_t *waits =
            &ucs_derived_of(ep, uct_nprdma_ep_t)->rma.longest;
    uct_nprdma_longest_t *all[] = {&waits->am, &waits->svc, &waits->request,
                                   &waits->op, &waits->pending};
    size_t i;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); ++i) {
        all[i]->since       = ucs_get_time() - ucs_time_from_sec(seconds);
        all[i]->num_reports = 0;
    }
}

static uct_nprdma_rma_res_t *spares_side(uct_iface_h iface)
{
    return ucs_derived_of(iface, uct_nprdma_rma_iface_t)->res;
}

unsigned spares_count(uct_iface_h iface)
{
    return (spares_side(iface) == NULL) ? 0 : spares_side(iface)->num_spares;
}

int spares_rest(uct_iface_h iface)
{
    uct_nprdma_rma_res_t *side = spares_side(iface);

    return (side == NULL) ||
           ((side->num_free_replies == UCT_NPRDMA_RMA_MAX_REPLIES) &&
            (ucs_queue_length(&side->free_replies) + side->num_spares ==
             UCT_NPRDMA_RMA_NUM_REPLIES) &&
            (side->small_pool.num_free + side->num_spares ==
             side->small_pool.num_slots));
}
