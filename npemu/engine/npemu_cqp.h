/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Producing completions, in CQs of any process. */

#ifndef NPEMU_CQP_H
#define NPEMU_CQP_H

#include "fabric/npemu_peer.h"

typedef enum {
    NPEMU_CQ_OK,
    NPEMU_CQ_FULL,    /* overrun: the completion is lost */
    NPEMU_CQ_NO_DATA, /* no room for the payload now */
    NPEMU_CQ_BUSY     /* a stopped process holds the lock */
} npemu_cq_status_t;

/** Start a completion: takes the CQ's lock, if it returns NPEMU_CQ_OK. Nonzero
 * `wait`: never NPEMU_CQ_BUSY. `cqe_p`: the caller sets all fields but `seq`,
 * `kind`, `solicited` and the data fields. `data_p`: the caller copies the
 * payload here. */
npemu_cq_status_t npemu_cqp_begin(npemu_proc_t *proc, npemu_arena_shm_t *arena,
                                  npemu_cq_shm_t *cq, npemu_cqe_kind_t kind,
                                  int wait, uint32_t data_len,
                                  npemu_cqe_t **cqe_p, uint8_t **data_p);

/** Publish the completion and release the lock. */
void npemu_cqp_end(npemu_peer_t *peer, npemu_cq_shm_t *cq, npemu_cqe_t *cqe,
                   int solicited);

/**
 * Take the producers' lock of a CQ of this process, and repair the CQ if the
 * owner of the lock is dead. Released by npemu_rlock_release().
 */
void npemu_cqp_lock(npemu_proc_t *proc, npemu_cq_shm_t *cq);

#endif
