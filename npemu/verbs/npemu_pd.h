/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Protection domains. */

#ifndef NPEMU_PD_H
#define NPEMU_PD_H

#include "verbs/npemu_context.h"

typedef struct npemu_pd {
    struct ibv_pd    super;
    uint32_t         id;       /* in MR and QP records; unique per process */
    _Atomic uint32_t refcount; /* MRs, QPs, SRQs, AHs */
} npemu_pd_t;

static inline npemu_pd_t *npemu_pd(struct ibv_pd *pd)
{
    return npemu_container_of(pd, npemu_pd_t, super);
}

#endif
