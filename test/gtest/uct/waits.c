/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "waits.h"

#include "uct/ib/nprdma/base/nprdma_ep.h"

#include <ucs/time/time.h>

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
