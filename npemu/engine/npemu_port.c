/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_port.h"
#include "base/npemu_log.h"
#include "fabric/npemu_rlock.h"

#include <stdlib.h>

/* Requests that npemu_port_account() counts, and the sample it needs: bytes.
 * What short ones cost does not depend on their length. */
#define NPEMU_PORT_LONG   (64 * 1024)
#define NPEMU_PORT_SAMPLE (64 * 1024 * 1024)

void npemu_port_init(npemu_proc_t *proc)
{
    const char *value = getenv("NPEMU_LINK");
    char item[64];

    if ((value == NULL) || (value[0] == '\0')) {
        return;
    }

    if (npemu_link_spec_parse(value, &proc->link, item, sizeof(item)) != 0) {
        npemu_error("NPEMU_LINK=%s: \"%s\" is none of RATE (first; 1MB/s to "
                    "1000GB/s, in MB/s, GB/s, Mb/s or Gb/s), latency=0ns..1s, "
                    "port=1..%d, arb=fair|fifo|prio; ignored", value, item,
                    NPEMU_LINK_PORTS);
    }
}

/* --- lock ------------------------------------------------------------------*/

/* Lock a port and bring its wire up to date. Returns 0 if a stopped process has
 * the lock. What a dead owner leaves behind is valid. */
static int npemu_port_lock(npemu_proc_t *proc, npemu_port_shm_t *port)
{
    if (npemu_rlock_take(proc, &port->lock, 0) == NPEMU_LOCK_BUSY) {
        return 0;
    }

    npemu_wire_advance(&port->wire, npemu_time_ns());
    return 1;
}

static npemu_port_shm_t *npemu_port_of(npemu_proc_t *proc, unsigned slot,
                                       const npemu_link_spec_t *link)
{
    return &proc->fabric->ports[(link->port == 0) ?
                                        slot : NPEMU_MAX_PROCS + link->port -
                                                       1];
}

/* --- requests --------------------------------------------------------------*/

/* The flow of a queue pair: its process, and its number. */
static uint64_t npemu_port_key(const npemu_qp_t *qp)
{
    return ((uint64_t)qp->proc->owner << 32) | qp->super.qp_num;
}

static uint32_t npemu_port_class(const npemu_qp_t *qp, const npemu_wqe_t *wqe,
                                 const npemu_link_spec_t *link)
{
    if (link->arb != NPEMU_ARB_PRIO) {
        return 0;
    }

    return ((qp->super.qp_type == IBV_QPT_UD) ? wqe->ud.av.path.sl :
                                                   qp->attr.ah_attr.sl) %
           NPEMU_WIRE_CLASSES;
}

/* A number of bytes as work of the wire. */
static uint64_t npemu_port_work(uint64_t bytes, uint64_t rate)
{
    return (uint64_t)((double)bytes * 1e12 / rate);
}

static void npemu_port_ticket(npemu_qp_t *qp, const npemu_wqe_t *wqe,
                              npemu_ticket_t *ticket, npemu_link_spec_t *link)
{
    npemu_proc_t *proc = qp->proc;
    unsigned slot      = proc->slot_index;
    int is_fetch       = npemu_port_is_fetch(wqe);
    uint32_t i;

    *ticket = (npemu_ticket_t){0};
    *link   = proc->link;
    if (is_fetch && (qp->peer != NULL)) {
        slot  = qp->peer->slot_index;
        *link = qp->peer->slot->link;
    }
    if (link->rate == 0) {
        ticket->is_due = 1;
        return;
    }

    for (i = 0; i < wqe->num_sge; ++i) {
        ticket->length += wqe->sge[i].length;
    }
    ticket->port       = npemu_port_of(proc, slot, link);
    ticket->work_ps    = npemu_port_work(ticket->length + NPEMU_PORT_HEADER,
                                         link->rate);
    ticket->latency_ns = link->latency_ns * (is_fetch ? 2 : 1);
}

int npemu_port_admit(npemu_qp_t *qp, const npemu_wqe_t *wqe,
                     npemu_ticket_t *ticket)
{
    npemu_link_spec_t link;
    npemu_wire_t *wire;

    npemu_port_ticket(qp, wqe, ticket, &link);
    if (ticket->is_due) {
        return 1;
    }

    if (!npemu_port_lock(qp->proc, ticket->port)) {
        return 0;
    }

    wire            = &ticket->port->wire;
    ticket->place   = npemu_wire_add(wire,
                                     (link.arb == NPEMU_ARB_FIFO) ?
                                             0 : npemu_port_key(qp),
                                     npemu_port_class(qp, wqe, &link),
                                     ticket->work_ps);
    ticket->left_ns = npemu_wire_when(wire, ticket->place);
    npemu_rlock_release(&ticket->port->lock);
    return 1;
}

/* Latency counts from when the request has left. That is known exactly only if
 * nobody changes the wire, so the last estimate stands for it. */
uint64_t npemu_port_due(npemu_proc_t *proc, npemu_ticket_t *ticket,
                        uint64_t now)
{
    uint64_t due;
    int has_left;

    if (ticket->is_due) {
        return 0;
    }

    if (!npemu_port_lock(proc, ticket->port)) {
        return UINT64_MAX;
    }

    has_left = npemu_wire_has_left(&ticket->port->wire, ticket->place);
    if (!has_left) {
        ticket->left_ns = npemu_wire_when(&ticket->port->wire, ticket->place);
    }
    npemu_rlock_release(&ticket->port->lock);

    if (has_left && (ticket->left_ns > now)) {
        ticket->left_ns = now; /* others gave up what they had on the wire */
    }
    if (__builtin_add_overflow(ticket->left_ns, ticket->latency_ns, &due)) {
        due = UINT64_MAX - 1;
    }
    ticket->is_due = has_left && (due <= now);
    return (has_left || (due > now)) ? due : now + 1;
}

/* --- removal ---------------------------------------------------------------*/

static void npemu_port_remove(npemu_proc_t *proc, npemu_port_shm_t *port,
                              uint64_t key)
{
    /* Without the lock it stays on the wire until it has left */
    if (npemu_port_lock(proc, port)) {
        npemu_wire_remove(&port->wire, key);
        npemu_rlock_release(&port->lock);
    }
}

void npemu_port_cancel(npemu_qp_t *qp)
{
    npemu_proc_t *proc = qp->proc;

    npemu_port_remove(proc, npemu_port_of(proc, proc->slot_index, &proc->link),
                      npemu_port_key(qp));
    if ((qp->peer != NULL) && (qp->peer->slot->link.rate != 0)) {
        npemu_port_remove(proc, npemu_port_of(proc, qp->peer->slot_index,
                                              &qp->peer->slot->link),
                          npemu_port_key(qp));
    }
}

static int npemu_port_owner_is_alive(npemu_proc_t *proc, uint32_t owner)
{
    unsigned index = (owner >> 20) - 1;
    npemu_slot_t *slot;
    uint32_t gen;

    if (index >= NPEMU_MAX_PROCS) {
        return 0;
    }

    slot = &proc->fabric->slots[index];
    gen  = atomic_load(&slot->gen);
    return (npemu_owner_word(index, gen) == owner) &&
           npemu_slot_is_alive(slot, gen);
}

void npemu_port_recover(npemu_proc_t *proc)
{
    npemu_port_shm_t *port;
    uint64_t key;
    uint32_t i;

    if (proc->link.rate == 0) {
        return;
    }

    port = npemu_port_of(proc, proc->slot_index, &proc->link);
    if (!npemu_port_lock(proc, port)) {
        return;
    }

    for (i = port->wire.num_flows; i-- > 0;) {
        key = atomic_load(&port->wire.flows[i].key);
        if ((key != 0) && !npemu_port_owner_is_alive(proc, key >> 32)) {
            npemu_wire_remove(&port->wire, key);
        }
    }
    npemu_rlock_release(&port->lock);
}

/* --- the CPU ---------------------------------------------------------------*/

void npemu_port_account(npemu_proc_t *proc, const npemu_ticket_t *ticket,
                        uint64_t cpu_ns)
{
    uint64_t bytes, wire_ns;

    if (ticket->length < NPEMU_PORT_LONG) {
        return;
    }

    bytes = atomic_fetch_add(&proc->link_bytes, ticket->length) +
            ticket->length;
    atomic_fetch_add(&proc->link_wire_ns, ticket->work_ps / 1000);
    atomic_fetch_add(&proc->link_cpu_ns, cpu_ns);
    if (bytes < NPEMU_PORT_SAMPLE) {
        return;
    }

    bytes   = atomic_exchange(&proc->link_bytes, 0);
    wire_ns = atomic_exchange(&proc->link_wire_ns, 0);
    cpu_ns  = atomic_exchange(&proc->link_cpu_ns, 0);
    if ((cpu_ns > wire_ns) && !atomic_exchange(&proc->link_slow_logged, 1)) {
        npemu_warn("NPEMU_LINK: the CPU copies %.2f GB/s and the link has "
                   "%.2f GB/s: times are those of the CPU",
                   (double)bytes / cpu_ns, (double)bytes / wire_ns);
    }
}
