/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Completion queues, the producing side: in the initiator's process. */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_cqp.h"
#include "fabric/npemu_rlock.h"

#define NPEMU_DATA_ALIGN 64

/*
 * Repair after the death of a lock owner. A producer fills the entry at `tail`
 * and its data, then publishes it by `seq`, then advances `tail` and
 * `data_tail`. If it was killed before publishing, the next producer writes the
 * entry again; if after, the positions are advanced here. A notification that
 * was due may be lost: npemu_recover() raises one.
 */
static void npemu_cqp_repair(npemu_arena_shm_t *arena, npemu_cq_shm_t *cq)
{
    npemu_cqe_t *cqe = npemu_arena_ptr(arena, cq->ring);

    cqe += cq->tail & cq->mask;
    if (atomic_load(&cqe->seq) == cq->tail + 1) {
        cq->data_tail = cqe->data_end;
        atomic_signal_fence(memory_order_seq_cst);
        ++cq->tail;
    }
}

/* Reserve room in the data ring; a payload is never split. Returns 0 if there
 * is none. A dead producer may have moved `data_base`, which is also right
 * without its data. */
static int npemu_cqp_data_room(npemu_cq_shm_t *cq, uint32_t data_len,
                               npemu_cqe_t *cqe)
{
    uint64_t size = cq->data_size;
    uint64_t need = (data_len + NPEMU_DATA_ALIGN - 1) &
                    ~(uint64_t)(NPEMU_DATA_ALIGN - 1);
    uint64_t pos  = cq->data_tail;
    uint64_t head = atomic_load_explicit(&cq->data_head, memory_order_acquire);

    if (head == pos) {
        /* Empty: start over, since both CPUs have the first bytes cached */
        pos           = (pos + size - 1) & ~(size - 1);
        cq->data_base = pos;
    } else if ((pos & (size - 1)) + need > size) {
        pos = (pos + size - 1) & ~(size - 1);
    }

    head = (head < cq->data_base) ? cq->data_base : head;
    if (pos + need - head > size) {
        return 0;
    }

    cqe->data_off = pos & (size - 1);
    cqe->data_end = pos + need;
    return 1;
}

void npemu_cqp_lock(npemu_proc_t *proc, npemu_cq_shm_t *cq)
{
    if (npemu_rlock_take(proc, &cq->lock, 1) == NPEMU_LOCK_REPAIR) {
        npemu_cqp_repair(proc->shm, cq);
    }
}

npemu_cq_status_t npemu_cqp_begin(npemu_proc_t *proc, npemu_arena_shm_t *arena,
                                  npemu_cq_shm_t *cq, npemu_cqe_kind_t kind,
                                  int wait, uint32_t data_len,
                                  npemu_cqe_t **cqe_p, uint8_t **data_p)
{
    npemu_lock_status_t lock = npemu_rlock_take(proc, &cq->lock, wait);
    npemu_cqe_t *cqe;

    if (npemu_unlikely(lock != NPEMU_LOCK_OK)) {
        if (lock == NPEMU_LOCK_BUSY) {
            return NPEMU_CQ_BUSY;
        }
        npemu_cqp_repair(arena, cq);
    }

    if (npemu_unlikely(cq->tail - cq->head_seen > cq->mask)) {
        cq->head_seen = atomic_load_explicit(&cq->head, memory_order_acquire);
        if (cq->tail - cq->head_seen > cq->mask) {
            cq->overrun = 1;
            npemu_rlock_release(&cq->lock);
            return NPEMU_CQ_FULL;
        }
    }

    cqe  = npemu_arena_ptr(arena, cq->ring);
    cqe += cq->tail & cq->mask;
    atomic_store_explicit(&cqe->kind, kind, memory_order_relaxed);
    cqe->data_end = cq->data_tail;
    cqe->data_len = data_len;
    *data_p       = cqe->data;
    if (data_len > NPEMU_CQE_INLINE) {
        if (!npemu_cqp_data_room(cq, data_len, cqe)) {
            npemu_rlock_release(&cq->lock);
            return NPEMU_CQ_NO_DATA;
        }
        *data_p = (uint8_t*)npemu_arena_ptr(arena, cq->data) + cqe->data_off;
    }

    *cqe_p = cqe;
    return NPEMU_CQ_OK;
}

void npemu_cqp_end(npemu_peer_t *peer, npemu_cq_shm_t *cq, npemu_cqe_t *cqe,
                   int solicited)
{
    /* Read before publishing: afterwards the consumer may change the entry */
    uint64_t data_end = cqe->data_end;
    uint32_t channel  = 0;

    cqe->solicited = solicited || (cqe->status != IBV_WC_SUCCESS);
    if (npemu_unlikely(cq->armed != 0) &&
        (!(cq->armed & NPEMU_CQ_SOLICITED) || cqe->solicited)) {
        cq->armed = 0;
        channel   = cq->channel;
    }

    atomic_store_explicit(&cqe->seq, cq->tail + 1, memory_order_release);
    cq->data_tail = data_end;
    /* In this order for npemu_cqp_repair(), should the process be killed */
    atomic_signal_fence(memory_order_seq_cst);
    ++cq->tail;
    if (npemu_unlikely(channel != 0)) {
        atomic_fetch_add(&cq->raised, 1);
    }
    npemu_rlock_release(&cq->lock);

    if (npemu_unlikely(channel != 0)) {
        npemu_peer_notify(peer, channel - 1);
    }
}
