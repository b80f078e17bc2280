/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "internals.h"

#include <npemu_cq.h>
#include <npemu_qp.h>

void npt_cq_lock(struct ibv_cq *cq)
{
    npemu_cq_lock(npemu_cq(cq));
}

void npt_cq_unlock(struct ibv_cq *cq)
{
    npemu_rlock_release(&npemu_cq(cq)->shm->lock);
}

void npt_qp_damage_receives(struct ibv_qp *qp)
{
    npemu_qp_t *self       = npemu_qp(qp);
    npemu_rq_shm_t *rq     = self->rq->shm;
    npemu_rq_entry_t *ring = npemu_arena_ptr(self->proc->shm, rq->ring);
    uint32_t i;

    for (i = 0; i <= rq->mask; ++i) {
        ring[i].index = rq->size;
    }
}
