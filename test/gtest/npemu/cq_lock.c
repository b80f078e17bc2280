/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "cq_lock.h"

#include <npemu_cq.h>

void npt_cq_lock(struct ibv_cq *cq)
{
    npemu_cq_lock(npemu_cq(cq));
}

void npt_cq_unlock(struct ibv_cq *cq)
{
    npemu_rlock_release(&npemu_cq(cq)->shm->lock);
}
