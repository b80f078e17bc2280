/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "internals.h"

#include <engine/npemu_cq.h>
#include <engine/npemu_cqp.h>
#include <engine/npemu_port.h>
#include <engine/npemu_qp.h>
#include <engine/npemu_rq.h>
#include <fabric/npemu_epoch.h>
#include <fabric/npemu_rlock.h>
#include <iommu/npemu_table.h>
#include <string.h>
#include <verbs/npemu_context.h>

void npt_cq_lock(struct ibv_cq *cq)
{
    npemu_cqp_lock(npemu_cq(cq)->proc, npemu_cq(cq)->shm);
}

void npt_cq_unlock(struct ibv_cq *cq)
{
    npemu_rlock_release(&npemu_cq(cq)->shm->lock);
}

void npt_cq_raise(struct ibv_cq *cq)
{
    atomic_fetch_add(&npemu_cq(cq)->shm->raised, 1);
}

uint32_t npt_cq_raised(struct ibv_cq *cq)
{
    return atomic_load(&npemu_cq(cq)->shm->raised);
}

void npt_atomic_lock(struct ibv_context *context)
{
    npemu_proc_t *proc = npemu_context_proc(context);

    npemu_rlock_take(proc, &proc->shm->atomic_lock, 1);
}

void npt_atomic_unlock(struct ibv_context *context)
{
    npemu_rlock_release(&npemu_context_proc(context)->shm->atomic_lock);
}

void npt_peers_lock(struct ibv_context *context)
{
    pthread_mutex_lock(&npemu_context_proc(context)->peers_lock);
}

void npt_peers_unlock(struct ibv_context *context)
{
    pthread_mutex_unlock(&npemu_context_proc(context)->peers_lock);
}

unsigned npt_slot(struct ibv_context *context)
{
    return npemu_context_proc(context)->slot_index;
}

int npt_peer_take_receive(struct ibv_qp *qp)
{
    npemu_qp_t *self = npemu_qp(qp);
    npemu_rq_entry_t entry;
    npemu_rq_status_t status;
    int limit;

    do {
        status = npemu_rq_pop(self->proc, self->peer->shm,
                              npemu_arena_ptr(self->peer->shm,
                                              self->remote->rq),
                              1, &entry, &limit);
    } while (status == NPEMU_RQ_EMPTY);
    return status != NPEMU_RQ_OK;
}

void npt_qp_lock(struct ibv_qp *qp)
{
    pthread_mutex_lock(&npemu_qp(qp)->control);
}

void npt_qp_unlock(struct ibv_qp *qp)
{
    pthread_mutex_unlock(&npemu_qp(qp)->control);
}

int npt_qp_is_dying(struct ibv_qp *qp)
{
    return __atomic_load_n(&npemu_qp(qp)->dying, __ATOMIC_RELAXED);
}

void npt_access_begin(struct ibv_context *context)
{
    npemu_proc_t *proc = npemu_context_proc(context);

    npemu_epoch_enter(proc, proc->slot_index, proc->gen);
    npemu_epoch_dma_enter();
}

void npt_access_end(struct ibv_context *context)
{
    npemu_epoch_dma_exit();
    npemu_epoch_exit(npemu_context_proc(context));
}

unsigned npt_own_counters(void)
{
    return NPEMU_MAX_THREADS - 1;
}

void npt_iommu_mark(struct npemu_iommu *iommu, size_t page)
{
    atomic_store(&iommu->header->marked, 1);
    nprdma_page_clear(&iommu->states[page], NPRDMA_PAGE_BITS);
}

void npt_iommu_unmark(struct npemu_iommu *iommu)
{
    atomic_store(&iommu->header->marked, 0);
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

uint64_t npt_link_parse(const char *text, uint64_t *latency_ns, uint32_t *port,
                        uint32_t *arb)
{
    npemu_link_spec_t spec;
    char item[64];

    if (npemu_link_spec_parse(text, &spec, item, sizeof(item)) != 0) {
        return 0;
    }

    *latency_ns = spec.latency_ns;
    *port       = spec.port;
    *arb        = spec.arb;
    return spec.rate;
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

void npt_wire_play(struct npt_message *messages, unsigned count)
{
    npemu_wire_t wire;
    npemu_wire_place_t places[count];
    uint64_t now_ns;
    unsigned i;

    memset(&wire, 0, sizeof(wire));
    for (i = 0; i < count; ++i) {
        places[i] = npemu_wire_add(&wire, messages[i].key, messages[i].level,
                                   messages[i].work_ns * 1000);
    }
    for (now_ns = 1; now_ns <= 1000; ++now_ns) {
        npemu_wire_advance(&wire, now_ns);
        for (i = 0; i < count; ++i) {
            if ((messages[i].left_ns == 0) &&
                npemu_wire_has_left(&wire, places[i])) {
                messages[i].left_ns = now_ns;
            }
        }
    }
}
