/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "internals.h"

#include <engine/npemu_cq.h>
#include <engine/npemu_cqp.h>
#include <engine/npemu_qp.h>
#include <fabric/npemu_event_fd.h>
#include <fabric/npemu_rlock.h>
#include <sys/mman.h>
#include <verbs/npemu_context.h>

void npt_cq_lock(struct ibv_cq *cq)
{
    npemu_cqp_lock(npemu_cq(cq)->proc, npemu_cq(cq)->shm);
}

void npt_cq_unlock(struct ibv_cq *cq)
{
    npemu_rlock_release(&npemu_cq(cq)->shm->lock);
}

static npemu_cq_shm_t *npt_peer_cq(struct ibv_qp *qp)
{
    npemu_qp_t *self = npemu_qp(qp);

    return npemu_arena_ptr(self->peer->shm, self->remote->rcq);
}

void npt_peer_cq_lock(struct ibv_qp *qp)
{
    npemu_rlock_take(npemu_qp(qp)->proc, &npt_peer_cq(qp)->lock, 1);
}

void npt_peer_cq_unlock(struct ibv_qp *qp)
{
    npemu_rlock_release(&npt_peer_cq(qp)->lock);
}

void npt_peer_atomic_lock(struct ibv_qp *qp)
{
    npemu_rlock_take(npemu_qp(qp)->proc,
                     &npemu_qp(qp)->peer->shm->atomic_lock, 1);
}

void npt_peer_atomic_unlock(struct ibv_qp *qp)
{
    npemu_rlock_release(&npemu_qp(qp)->peer->shm->atomic_lock);
}

void npt_set_arena(struct ibv_context *context, int id)
{
    npemu_context_proc(context)->slot->arena_id = id;
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

uint64_t npt_qp_receives(struct ibv_qp *qp)
{
    return npemu_qp(qp)->shm->rq;
}

void npt_begin_close(struct ibv_context *context)
{
    atomic_store(&npemu_context_proc(context)->slot->ready, 0);
}

void *npt_peer_slot(struct ibv_qp *qp, uint32_t *gen)
{
    npemu_peer_t *peer = npemu_qp(qp)->peer;

    *gen = peer->gen;
    return &npemu_qp(qp)->proc->fabric->slots[peer->slot_index];
}

int npt_slot_is_gone(void *slot, uint32_t gen)
{
    return npemu_slot_is_gone(slot, gen);
}

struct npt_event {
    npemu_event_fd_t event;
};

struct npt_event *npt_event_create(int is_pipe, int nonblock)
{
    struct npt_event *self = mmap(NULL, sizeof(*self), PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned flags = (is_pipe ? NPEMU_EVENT_PIPE : 0) |
                     (nonblock ? NPEMU_EVENT_NONBLOCK : NPEMU_EVENT_SEPARATE);

    if ((self != MAP_FAILED) &&
        (npemu_event_fd_create(&self->event, flags) < 0)) {
        munmap(self, sizeof(*self));
        self = MAP_FAILED;
    }
    return (self == MAP_FAILED) ? NULL : self;
}

void npt_event_destroy(struct npt_event *self)
{
    npemu_event_fd_close(&self->event);
    munmap(self, sizeof(*self));
}

int npt_event_fd(const struct npt_event *self)
{
    return self->event.fd;
}

int npt_event_signal_fd(const struct npt_event *self)
{
    return self->event.signal_fd;
}

unsigned npt_event_owed(const struct npt_event *self)
{
    return atomic_load(&self->event.owed);
}

int npt_event_open(const struct npt_event *self, int pid)
{
    return npemu_event_fd_open(&self->event, -1, pid);
}

void npt_event_signal(struct npt_event *self, int fd)
{
    npemu_event_fd_signal(&self->event, fd);
}

int npt_event_take(struct npt_event *self)
{
    return npemu_event_fd_take(&self->event);
}

void npt_event_unsignal(struct npt_event *self)
{
    npemu_event_fd_unsignal(&self->event);
}

void npt_event_drain(struct npt_event *self)
{
    npemu_event_fd_drain(&self->event);
}
