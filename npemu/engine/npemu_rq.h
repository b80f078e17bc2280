/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Receive queues, of a QP or shared: posting, taking, giving back. */

#ifndef NPEMU_RQ_H
#define NPEMU_RQ_H

#include "fabric/npemu_proc.h"

/* The owner's view of a receive queue. */
typedef struct npemu_rq {
    npemu_proc_t   *proc;
    npemu_rq_shm_t *shm;
    uint32_t       pd;       /* id, for the keys of its buffers */
    uint32_t       size;
    uint32_t       max_sge;
    uint32_t       mask;     /* of the ring */
    uint32_t       stride;   /* of the WQEs */
    npemu_rq_entry_t *ring;  /* as in `shm`, whose first cache line is the */
    uint8_t        *wqes;    /* initiators': they write it all the time */
    npemu_spin_t   lock;     /* of the fields below and of appending */
    uint32_t       num_free;
    uint32_t       *free;    /* stack of unused WQEs */
    uint8_t        *used;    /* by WQE: posted and not completed */
} npemu_rq_t;

/** Create the queue in the arena of the process. Returns 0 or ENOMEM. */
int npemu_rq_init(npemu_rq_t *rq, npemu_proc_t *proc, uint32_t pd,
                  uint32_t size, uint32_t max_sge);

/** Free it. No initiator may access it any more. */
void npemu_rq_cleanup(npemu_rq_t *rq);

/** Discard everything that is posted, without completions. No initiator may
 * access it. */
void npemu_rq_reset(npemu_rq_t *rq);

/** As ibv_post_recv. */
int npemu_rq_post(npemu_rq_t *rq, struct ibv_recv_wr *wr,
                  struct ibv_recv_wr **bad_wr);

/** A receive of this process. */
static inline npemu_rq_wqe_t *npemu_rq_own_wqe(npemu_rq_t *rq, uint32_t index)
{
    return (npemu_rq_wqe_t*)(rq->wqes + (size_t)index * rq->stride);
}

/** The completion of a WQE has been polled: it can be posted again. */
static inline void npemu_rq_free(npemu_rq_t *rq, uint32_t index)
{
    npemu_spin_lock(&rq->lock);
    rq->used[index]           = 0;
    rq->free[rq->num_free++]  = index;
    npemu_spin_unlock(&rq->lock);
}

/** Take back the receives which processes that are gone had taken. The caller
 * cannot name them: one can end, and another one can take its slot, before
 * anyone has looked at it. `is_done`: returns 1 if a completion refers to the
 * WQE, else 0. */
void npemu_rq_recover(npemu_rq_t *rq,
                      int (*is_done)(void *arg, uint32_t index), void *arg);

typedef enum {
    NPEMU_RQ_OK,
    NPEMU_RQ_EMPTY,
    NPEMU_RQ_BUSY,   /* a stopped process holds the lock */
    NPEMU_RQ_DAMAGED /* its owner has written an invalid index to it */
} npemu_rq_status_t;

/** Take the oldest receive, as an initiator or to flush it. Nonzero `wait`:
 * never NPEMU_RQ_BUSY. `limit`: 1 if the SRQ limit event is due, else
 * unchanged. */
npemu_rq_status_t npemu_rq_pop(npemu_proc_t *proc, npemu_arena_shm_t *arena,
                               npemu_rq_shm_t *rq, int wait,
                               npemu_rq_entry_t *entry, int *limit);

/** Put a receive that was taken and not used back where it was. */
void npemu_rq_unpop(npemu_proc_t *proc, npemu_arena_shm_t *arena,
                    npemu_rq_shm_t *rq, const npemu_rq_entry_t *entry);

/** 1 if there is a receive now, posted or taken back, else 0. */
static inline int npemu_rq_has_receives(npemu_rq_shm_t *rq)
{
    return atomic_load_explicit(&rq->tail, memory_order_acquire) !=
           atomic_load_explicit(&rq->head, memory_order_acquire);
}

#endif
