/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "internals.h"

#include <engine/npemu_cq.h>
#include <engine/npemu_cqp.h>
#include <engine/npemu_port.h>
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

void npt_begin_close(struct ibv_context *context)
{
    atomic_store(&npemu_context_proc(context)->slot->ready, 0);
}

/* --- the link ------------------------------------------------------------- */

int npt_link_parse(const char *text, uint64_t *rate, uint64_t *latency_ns,
                   uint32_t *port, uint32_t *arb, char *item)
{
    npemu_link_spec_t spec;
    int ret = npemu_link_spec_parse(text, &spec, item, 64);

    *rate       = spec.rate;
    *latency_ns = spec.latency_ns;
    *port       = spec.port;
    *arb        = spec.arb;
    return ret;
}

static npemu_port_shm_t *npt_port(npemu_proc_t *proc, unsigned slot)
{
    uint32_t port = proc->fabric->slots[slot].link.port;

    return &proc->fabric->ports[(port == 0) ? slot :
                                              NPEMU_MAX_PROCS + port - 1];
}

static unsigned npt_port_count(npemu_proc_t *proc, npemu_port_shm_t *port)
{
    unsigned count;

    npemu_rlock_take(proc, &port->lock, 1);
    count = port->wire.num_flows;
    npemu_rlock_release(&port->lock);
    return count;
}

unsigned npt_port_flows(struct ibv_context *context)
{
    npemu_proc_t *proc = npemu_context_proc(context);

    return npt_port_count(proc, npt_port(proc, proc->slot_index));
}

unsigned npt_peer_port_flows(struct ibv_qp *qp)
{
    npemu_qp_t *self = npemu_qp(qp);

    return npt_port_count(self->proc, npt_port(self->proc,
                                               self->peer->slot_index));
}

void npt_port_account(struct ibv_context *context, uint64_t length,
                      uint64_t wire_ns, uint64_t cpu_ns)
{
    npemu_ticket_t ticket = {.length = length, .work_ps = wire_ns * 1000};

    npemu_port_account(npemu_context_proc(context), &ticket, cpu_ns);
}

unsigned npt_qp_admitted(struct ibv_qp *qp)
{
    npemu_qp_t *self = npemu_qp(qp);
    unsigned count;

    npemu_spin_lock(&self->sq_lock);
    count = self->admitted - self->executed;
    npemu_spin_unlock(&self->sq_lock);
    return count;
}

unsigned npt_qp_waiting(struct ibv_qp *qp)
{
    npemu_qp_t *self = npemu_qp(qp);
    unsigned count;

    npemu_spin_lock(&self->sq_lock);
    count = self->posted - self->executed;
    npemu_spin_unlock(&self->sq_lock);
    return count;
}

uint64_t npt_qp_left_ns(struct ibv_qp *qp, unsigned index)
{
    /* As npemu_sq_entry_t begins */
    const struct {
        npemu_wqe_t    wqe;
        npemu_ticket_t ticket;
    } *entry;
    npemu_qp_t *self = npemu_qp(qp);
    uint64_t left_ns;

    npemu_spin_lock(&self->sq_lock);
    entry   = (void*)(self->sq + ((self->executed + index) & self->sq_mask) *
                      self->sq_stride);
    left_ns = entry->ticket.left_ns;
    npemu_spin_unlock(&self->sq_lock);
    return left_ns;
}

struct npt_wire {
    npemu_wire_t wire;
};

struct npt_wire *npt_wire_create(void)
{
    struct npt_wire *self = mmap(NULL, sizeof(*self), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return (self == MAP_FAILED) ? NULL : self;
}

void npt_wire_destroy(struct npt_wire *self)
{
    munmap(self, sizeof(*self));
}

void npt_wire_advance(struct npt_wire *self, uint64_t now_ns)
{
    npemu_wire_advance(&self->wire, now_ns);
}

uint64_t npt_wire_add(struct npt_wire *self, uint64_t key, uint32_t level,
                      uint64_t work_ps)
{
    return npemu_wire_add(&self->wire, key, level, work_ps).tag;
}

int npt_wire_has_left(const struct npt_wire *self, uint32_t level,
                      uint64_t tag)
{
    return npemu_wire_has_left(&self->wire,
                               (npemu_wire_place_t){tag, level});
}

uint64_t npt_wire_when(const struct npt_wire *self, uint32_t level,
                       uint64_t tag)
{
    return npemu_wire_when(&self->wire, (npemu_wire_place_t){tag, level});
}

void npt_wire_remove(struct npt_wire *self, uint64_t key)
{
    npemu_wire_remove(&self->wire, key);
}

unsigned npt_wire_flows(const struct npt_wire *self)
{
    return self->wire.num_flows;
}

unsigned npt_wire_max_flows(void)
{
    return NPEMU_WIRE_FLOWS;
}

/* --- events --------------------------------------------------------------- */

struct npt_event {
    npemu_event_fd_t event;
};

struct npt_event *npt_event_create(int nonblock)
{
    struct npt_event *self = mmap(NULL, sizeof(*self), PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if ((self != MAP_FAILED) &&
        (npemu_event_fd_create(&self->event, nonblock) < 0)) {
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
    return npemu_event_fd_open(&self->event, pid);
}

void npt_event_signal(struct npt_event *self, int fd)
{
    npemu_event_fd_signal(&self->event, fd);
}

int npt_event_take(struct npt_event *self)
{
    return npemu_event_fd_take(&self->event);
}
