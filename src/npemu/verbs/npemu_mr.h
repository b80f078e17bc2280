/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Memory regions: the key table in the arena and its checks. */

#ifndef NPEMU_MR_H
#define NPEMU_MR_H

#include "verbs/npemu_pd.h"
#include "fabric/npemu_proc.h"

typedef struct npemu_mr {
    struct ibv_mr super;
    uint64_t      pin_start; /* pinned pages, empty if none are */
    uint64_t      pin_end;
    int32_t       table;     /* index of its IOMMU table, -1: it has none */
} npemu_mr_t;

/** Set up and tear down the table. Returns 0 or ENOMEM. */
int npemu_mr_table_init(npemu_proc_t *proc);
void npemu_mr_table_cleanup(npemu_proc_t *proc);

/**
 * Check an access and translate its address, as a NIC does on every access.
 * Only inside an epoch, or for the own process while the caller knows that the
 * key stays registered.
 *
 * @param [in]  shm     Arena of the process that owns the memory.
 * @param [in]  key     lkey or rkey.
 * @param [in]  pd      Protection domain of the QP there.
 * @param [in]  access  Rights that are needed, enum ibv_access_flags.
 * @param [in]  addr    First byte, I/O virtual address.
 * @param [in]  length  Bytes.
 * @param [out] va      Address in that process; with window S, offset in the
 *                      array of states.
 *
 * @return The record, or NULL if the access is not allowed.
 */
static inline const npemu_mr_shm_t *
npemu_mr_find(npemu_arena_shm_t *shm, uint32_t key, uint32_t pd,
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
