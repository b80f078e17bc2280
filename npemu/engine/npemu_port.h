/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The ports of NPEMU_LINK: when a work request is due. A request loads the port
 * where its data leaves, which of an RDMA READ and of an atomic is the
 * target's, by the NPEMU_LINK of the process there.
 */

#ifndef NPEMU_PORT_H
#define NPEMU_PORT_H

#include "engine/npemu_qp.h"
#include "engine/npemu_wqe.h"

/* Of a request that a link carries, besides its data: bytes. */
#define NPEMU_PORT_HEADER 64

/* A request on the wire. */
typedef struct {
    npemu_port_shm_t   *port;     /* NULL: none carries it */
    npemu_wire_place_t place;
    uint64_t           left_ns;   /* when it leaves, as last estimated */
    uint64_t           latency_ns;
    uint64_t           work_ps;   /* on a wire of its own */
    uint64_t           length;    /* bytes of data */
    int                is_due;
} npemu_ticket_t;

/** Read NPEMU_LINK. A bad value is logged, and is none. */
void npemu_port_init(npemu_proc_t *proc);

/** Does the data of a request come from the target? */
static inline int npemu_port_is_fetch(const npemu_wqe_t *wqe)
{
    return (wqe->opcode == IBV_WR_RDMA_READ) ||
           (wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) ||
           (wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD);
}

/** Put a request on the wire. sq_lock is held. Returns 1; 0 if a stopped
 * process holds the lock of the port. */
int npemu_port_admit(npemu_qp_t *qp, const npemu_wqe_t *wqe,
                     npemu_ticket_t *ticket);

/** When a request may be executed, at the earliest: what others put on the wire
 * until then delays it. Returns a time, ns, that is not after now if it is due.
 * UINT64_MAX: a stopped process holds the lock of the port. */
uint64_t npemu_port_due(npemu_proc_t *proc, npemu_ticket_t *ticket,
                        uint64_t now);

/** Take off the wire what a queue pair has not sent; sq_lock is held. What it
 * shares with others stays (`fifo`). */
void npemu_port_cancel(npemu_qp_t *qp);

/** Take off the port of this process what processes have not sent that are
 * gone. By the npemu thread. */
void npemu_port_recover(npemu_proc_t *proc);

/** Count a request that was executed. If the copies of long ones take longer
 * than the wire does, the CPU is the bottleneck: one line says so. */
void npemu_port_account(npemu_proc_t *proc, const npemu_ticket_t *ticket,
                        uint64_t cpu_ns);

#endif
