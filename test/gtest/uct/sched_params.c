/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "sched_params.h"

#include "uct/ib/nprdma/base/nprdma_md.h"

void sched_params_set(uct_md_h md, const sched_params_t *params)
{
    uct_nprdma_rma_config_t *config = &ucs_derived_of(md, uct_nprdma_md_t)->rma;

    if (params->has_prio_max) {
        config->prio_max = params->prio_max;
    }
    if (params->has_quota) {
        config->quota = params->quota;
    }
    if (params->has_busy_slice) {
        config->busy_slice = params->busy_slice;
    }
    if (params->is_shared) {
        config->has_bulk_qp = 0;
    }
}
