/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* A work request as the engine executes it, and what an address handle tells
 * it. */

#ifndef NPEMU_WQE_H
#define NPEMU_WQE_H

#include "base/npemu_util.h"
#include "fabric/npemu_shm.h"

#include <infiniband/verbs.h>
#include <stdint.h>

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

/* Refers to the scatter/gather list and does not own it. The list describes
 * inline data as well; its keys are ignored then. */
typedef struct {
    uint64_t             wr_id;
    uint32_t             opcode;   /* enum ibv_wr_opcode */
    uint32_t             flags;    /* enum ibv_send_flags */
    uint32_t             imm_data;
    uint32_t             num_sge;
    const struct ibv_sge *sge;
    union {
        struct {
            uint64_t addr;
            uint64_t compare_add;
            uint64_t swap;
            uint32_t rkey;
        } remote;
        struct {
            uint32_t   qpn;
            uint32_t   qkey;
            npemu_av_t av;
        } ud;
    };
} npemu_wqe_t;

#endif
