/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Address vectors: what an address handle tells the engine. */

#ifndef NPEMU_AV_H
#define NPEMU_AV_H

#include "base/npemu_util.h"
#include "fabric/npemu_shm.h"

typedef struct {
    uint16_t   dlid;
    uint8_t    is_global;
    uint8_t    unroutable; /* no process has this address */
    npemu_ud_t path;
} npemu_av_t;

typedef struct npemu_ah {
    struct ibv_ah super;
    npemu_av_t    av;
} npemu_ah_t;

static inline npemu_ah_t *npemu_ah(struct ibv_ah *ah)
{
    return npemu_container_of(ah, npemu_ah_t, super);
}

#endif
