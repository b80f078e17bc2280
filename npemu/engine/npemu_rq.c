/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_rq.h"
#include "base/npemu_limits.h"
#include "engine/npemu_key.h"
#include "fabric/npemu_rlock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What fits in the fields of an entry; UD adds a GRH to the length */
_Static_assert(NPEMU_MAX_WR <= UINT16_MAX, "index of a receive");
_Static_assert(NPEMU_MAX_MSG + sizeof(struct ibv_grh) < UINT32_MAX,
               "length of a receive");

static uint32_t npemu_rq_ring_size(uint32_t size)
{
    uint32_t ring = 8;

    while (ring < size) {
        ring *= 2;
    }
    return ring;
}

static uint32_t npemu_rq_stride(uint32_t max_sge)
{
    return sizeof(npemu_rq_wqe_t) + max_sge * sizeof(struct ibv_sge);
}

static size_t npemu_rq_bytes(uint32_t size, uint32_t max_sge)
{
    return sizeof(npemu_rq_shm_t) +
           npemu_rq_ring_size(size) * sizeof(npemu_rq_entry_t) +
           size * sizeof(uint32_t) + 16 +
           (size_t)size * npemu_rq_stride(max_sge);
}

static void npemu_rq_fill_free(npemu_rq_t *rq)
{
    uint32_t i;

    /* the lowest index is used first, and again as soon as it is free: the
     * cache likes it */
    for (i = 0; i < rq->size; ++i) {
        rq->free[i] = rq->size - 1 - i;
    }
    rq->num_free = rq->size;
    memset(rq->used, 0, rq->size);
}

int npemu_rq_init(npemu_rq_t *rq, npemu_proc_t *proc, uint32_t pd,
                  uint32_t size, uint32_t max_sge)
{
    uint64_t offset;

    memset(rq, 0, sizeof(*rq));
    rq->proc    = proc;
    rq->pd      = pd;
    rq->size    = size;
    rq->max_sge = max_sge;
    rq->free    = malloc(size * (sizeof(*rq->free) + sizeof(*rq->used)));
    if (rq->free == NULL) {
        return ENOMEM;
    }

    offset = npemu_arena_alloc(&proc->arena, npemu_rq_bytes(size, max_sge));
    if (offset == 0) {
        free(rq->free);
        return ENOMEM;
    }

    rq->used        = (uint8_t*)(rq->free + size);
    rq->shm         = npemu_arena_ptr(proc->shm, offset);
    rq->shm->mask   = npemu_rq_ring_size(size) - 1;
    rq->shm->stride = npemu_rq_stride(max_sge);
    rq->shm->size   = size;
    rq->shm->pd     = pd;
    rq->shm->ring   = offset + sizeof(npemu_rq_shm_t);
    rq->shm->claims = rq->shm->ring +
                      (rq->shm->mask + 1ul) * sizeof(npemu_rq_entry_t);
    rq->shm->wqes   = (rq->shm->claims + size * sizeof(uint32_t) + 15) & ~15ul;
    rq->mask        = rq->shm->mask;
    rq->stride      = rq->shm->stride;
    rq->ring        = npemu_arena_ptr(proc->shm, rq->shm->ring);
    rq->wqes        = npemu_arena_ptr(proc->shm, rq->shm->wqes);
    npemu_rq_fill_free(rq);
    return 0;
}

void npemu_rq_cleanup(npemu_rq_t *rq)
{
    npemu_arena_free(&rq->proc->arena,
                     npemu_arena_off(rq->proc->shm, rq->shm),
                     npemu_rq_bytes(rq->size, rq->max_sge));
    free(rq->free);
}

static void npemu_rq_lock_all(npemu_rq_t *rq)
{
    npemu_rlock_take(rq->proc, &rq->shm->lock, 1);
    npemu_spin_lock(&rq->lock);
}

static void npemu_rq_unlock_all(npemu_rq_t *rq)
{
    npemu_spin_unlock(&rq->lock);
    npemu_rlock_release(&rq->shm->lock);
}

void npemu_rq_reset(npemu_rq_t *rq)
{
    npemu_rq_lock_all(rq);
    rq->shm->tail_seen = atomic_load(&rq->shm->tail);
    atomic_store(&rq->shm->head, rq->shm->tail_seen);
    npemu_rq_fill_free(rq);
    npemu_rq_unlock_all(rq);
}

/* May eager payload be placed here when it is polled? Not if a key is invalid:
 * then the sender checks the keys itself, so that it sees the error. */
static int npemu_rq_keys_are_good(npemu_rq_t *rq, const npemu_rq_wqe_t *wqe)
{
    uint64_t va;
    uint32_t i;

    for (i = 0; i < wqe->num_sge; ++i) {
        if (npemu_key_find(rq->proc->shm, wqe->sge[i].lkey, rq->pd,
                           IBV_ACCESS_LOCAL_WRITE, wqe->sge[i].addr,
                           wqe->sge[i].length, &va) == NULL) {
            return 0;
        }
    }
    return 1;
}

static void npemu_rq_append(npemu_rq_t *rq, const struct ibv_recv_wr *wr)
{
    npemu_rq_shm_t *shm = rq->shm;
    uint32_t index      = rq->free[--rq->num_free];
    npemu_rq_wqe_t *wqe = npemu_rq_own_wqe(rq, index);
    uint32_t tail       = atomic_load_explicit(&shm->tail,
                                               memory_order_relaxed);
    uint64_t length     = 0;
    npemu_rq_entry_t *entry;
    int i;

    wqe->wr_id   = wr->wr_id;
    wqe->num_sge = wr->num_sge;
    for (i = 0; i < wr->num_sge; ++i) {
        wqe->sge[i] = wr->sg_list[i];
        length     += wr->sg_list[i].length;
    }
    wqe->length = (length < UINT32_MAX) ? length : UINT32_MAX;

    entry         = &rq->ring[tail & rq->mask];
    entry->index  = index;
    entry->flags  = npemu_rq_keys_are_good(rq, wqe) ? 0 : NPEMU_RQ_CHECK_KEYS;
    entry->length = wqe->length;
    rq->used[index] = 1;
    atomic_store_explicit(&shm->tail, tail + 1, memory_order_release);
}

int npemu_rq_post(npemu_rq_t *rq, struct ibv_recv_wr *wr,
                  struct ibv_recv_wr **bad_wr)
{
    int ret = 0;

    npemu_spin_lock(&rq->lock);
    for (; wr != NULL; wr = wr->next) {
        if (npemu_unlikely((wr->num_sge < 0) ||
                           ((uint32_t)wr->num_sge > rq->max_sge))) {
            ret = EINVAL;
        } else if (npemu_unlikely(rq->num_free == 0)) {
            ret = ENOMEM;
        }
        if (npemu_unlikely(ret != 0)) {
            *bad_wr = wr;
            break;
        }

        npemu_rq_append(rq, wr);
    }
    npemu_spin_unlock(&rq->lock);
    return ret;
}

/*
 * No repair is needed after the death of a lock owner. In pop, `claims` is
 * written before `head` moves: the receive is in the ring, or the claim names
 * the dead process and recovery takes it back. In unpop the entry is written
 * before `head` moves: it is in the ring, or still claimed.
 */
npemu_rq_status_t npemu_rq_pop(npemu_proc_t *proc, npemu_arena_shm_t *arena,
                               npemu_rq_shm_t *rq, int wait,
                               npemu_rq_entry_t *entry, int *limit)
{
    npemu_rq_entry_t *ring = npemu_arena_ptr(arena, rq->ring);
    uint32_t *claims       = npemu_arena_ptr(arena, rq->claims);
    uint32_t head;

    if (npemu_unlikely(npemu_rlock_take(proc, &rq->lock, wait) ==
                       NPEMU_LOCK_BUSY)) {
        return NPEMU_RQ_BUSY;
    }

    head = atomic_load_explicit(&rq->head, memory_order_relaxed);
    if ((head == rq->tail_seen) || npemu_unlikely(rq->limit != 0)) {
        rq->tail_seen = atomic_load_explicit(&rq->tail, memory_order_acquire);
    }
    if (head == rq->tail_seen) {
        npemu_rlock_release(&rq->lock);
        return NPEMU_RQ_EMPTY;
    }

    *entry = ring[head & rq->mask];
    if (npemu_unlikely(entry->index >= rq->size)) {
        npemu_rlock_release(&rq->lock);
        return NPEMU_RQ_DAMAGED; /* outside of the arena */
    }

    claims[entry->index] = proc->owner;
    atomic_store_explicit(&rq->head, head + 1, memory_order_release);
    if (npemu_unlikely(rq->limit != 0) &&
        (rq->tail_seen - (head + 1) < rq->limit)) {
        rq->limit = 0; /* one event per arming */
        *limit    = 1;
    }
    npemu_rlock_release(&rq->lock);
    return NPEMU_RQ_OK;
}

void npemu_rq_unpop(npemu_proc_t *proc, npemu_arena_shm_t *arena,
                    npemu_rq_shm_t *rq, const npemu_rq_entry_t *entry)
{
    npemu_rq_entry_t *ring = npemu_arena_ptr(arena, rq->ring);
    uint32_t head;

    npemu_rlock_take(proc, &rq->lock, 1);
    /* There is room: the ring can hold every WQE, and this one is not in it */
    head                  = atomic_load(&rq->head) - 1;
    ring[head & rq->mask] = *entry;
    atomic_store(&rq->head, head);
    npemu_rlock_release(&rq->lock);
}

/* The other process that has taken a WQE which is posted, not completed and not
 * in the ring; 0 if there is none. The queue's locks are held. */
static uint32_t npemu_rq_holder(npemu_rq_t *rq, uint32_t index)
{
    npemu_rq_shm_t *shm    = rq->shm;
    npemu_rq_entry_t *ring = npemu_arena_ptr(rq->proc->shm, shm->ring);
    uint32_t *claims       = npemu_arena_ptr(rq->proc->shm, shm->claims);
    uint32_t tail          = atomic_load(&shm->tail);
    uint32_t pos;

    if ((claims[index] == rq->proc->owner) || !rq->used[index]) {
        return 0;
    }

    for (pos = atomic_load(&shm->head); pos != tail; ++pos) {
        if (ring[pos & shm->mask].index == index) {
            return 0;
        }
    }
    return claims[index];
}

void npemu_rq_recover(npemu_rq_t *rq,
                      int (*is_done)(void *arg, uint32_t index), void *arg)
{
    npemu_rq_shm_t *shm    = rq->shm;
    npemu_rq_entry_t *ring = npemu_arena_ptr(rq->proc->shm, shm->ring);
    uint32_t gone          = 0;
    uint32_t i, head, owner;

    for (i = 0; i < rq->size; ++i) {
        npemu_rq_lock_all(rq);
        owner = npemu_rq_holder(rq, i);
        npemu_rq_unlock_all(rq);
        /* Waits, once, until no thread of it can access our memory any more */
        if ((owner == 0) || ((owner != gone) &&
                             !npemu_owner_is_gone(rq->proc, owner))) {
            continue;
        }
        gone = owner;

        /* is_done takes the lock of a CQ, and polling takes this lock with that
         * one held. If the completion is polled between these steps, the WQE is
         * free or posted again: the dead process cannot take it a second
         * time. */
        if (is_done(arg, i)) {
            continue;
        }

        npemu_rq_lock_all(rq);
        if (npemu_rq_holder(rq, i) == owner) {
            head = atomic_load(&shm->head) - 1;
            ring[head & shm->mask].index  = i;
            ring[head & shm->mask].flags  = NPEMU_RQ_CHECK_KEYS;
            ring[head & shm->mask].length = npemu_rq_own_wqe(rq, i)->length;
            atomic_store(&shm->head, head);
        }
        npemu_rq_unlock_all(rq);
    }
}
