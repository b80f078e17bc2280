/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "conn_index.h"

#include "uct/ib/nprdma/net/nprdma_net.h"

unsigned conn_index(uct_ep_h ep)
{
    uct_nprdma_net_ep_t *self = ucs_derived_of(ep, uct_nprdma_net_ep_t);

    return UCT_NPRDMA_CONN_INDEX(self->am.id);
}
