/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Keys of memory regions, as every access checks them. */

#ifndef NPEMU_KEY_H
#define NPEMU_KEY_H

#include "fabric/npemu_shm.h"

/**
 * Check an access and translate its address, as a NIC does on every access.
 * Only inside an epoch, or for the own process while the caller knows that the
 * key stays registered. `access`: rights that are needed, enum
 * ibv_access_flags. `va`: address in that process; with view S, offset in the
 * array of states. Returns the record, or NULL if the access is not allowed.
 */
static inline const npemu_mr_shm_t *
npemu_key_find(npemu_arena_shm_t *shm, uint32_t key, uint32_t pd,
               uint32_t access, uint64_t addr, uint64_t length, uint64_t *va)
{
    npemu_mr_shm_t *mr = &shm->mrs[key & (NPEMU_MAX_MRS - 1)];
    uint64_t offset;

    if (npemu_unlikely((atomic_load(&mr->key) != key) || (key == 0) ||
                       (mr->pd != pd) || ((mr->access & access) != access))) {
        return NULL;
    }

    offset = addr - mr->iova;
    *va    = mr->addr + offset;
    return ((offset <= mr->length) && (length <= mr->length - offset)) ?
                   mr : NULL;
}

#endif
