/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The wire of a port, as a fluid: all flows that have something to send share
 * it at the same time. It is pure: the caller brings the time, and the lock.
 *
 * A flow is what one queue pair has put on the wire. Flows of one class have
 * equal shares, and a class sends only while no higher one has anything to
 * send. A class has a virtual time, which advances by the work that each of its
 * flows has been given. So the virtual time at which a message has left is
 * known when it is put on the wire, whatever comes after it; only the real time
 * is not. The idea is that of generalized processor sharing (Parekh and
 * Gallager, IEEE/ACM Transactions on Networking 1(3), 1993).
 *
 * Work is measured in picoseconds of a wire that one flow has for itself.
 *
 * The structure is in shared memory. A process that is killed in a function of
 * this file leaves a state that is valid: a flow counts when its key is set,
 * which happens last, and all else is derived from the flows. At most the work
 * of the last step is counted twice, or what the process put on the wire stays.
 */

#ifndef NPEMU_WIRE_H
#define NPEMU_WIRE_H

#include <stdatomic.h>
#include <stdint.h>

/* As service levels (IBA 7.6). */
#define NPEMU_WIRE_CLASSES 16

/* Flows with a share of their own. */
#define NPEMU_WIRE_FLOWS 128

typedef struct {
    _Atomic uint64_t key;    /* 0: free */
    _Atomic uint64_t end;    /* virtual time at which all of it has left */
    _Atomic uint32_t class;
} npemu_wire_flow_t;

/* Valid if all bytes are 0. */
typedef struct {
    uint64_t          now_ns;
    uint64_t          carry;     /* work, not given to the flows yet: less than
                                  * their number */
    uint64_t          times[NPEMU_WIRE_CLASSES]; /* virtual ones */
    uint32_t          num_flows; /* from here on all are free */
    npemu_wire_flow_t flows[NPEMU_WIRE_FLOWS];
    npemu_wire_flow_t shared[NPEMU_WIRE_CLASSES]; /* one of each class */
} npemu_wire_t;

/* The place of a message. */
typedef struct {
    uint64_t tag;    /* virtual time at which it has left */
    uint32_t class;
} npemu_wire_place_t;

/** Let the flows send until a time, ns. An earlier time than before changes
 * nothing. */
void npemu_wire_advance(npemu_wire_t *wire, uint64_t now_ns);

/** Put a message on the wire, at the time of the last advance and behind
 * earlier ones of its flow. All with `key` 0 share a flow in a class, which
 * flows join for which there is no room. Higher classes go first. */
npemu_wire_place_t npemu_wire_add(npemu_wire_t *wire, uint64_t key,
                                  uint32_t class, uint64_t work);

/** 1 if the message has left, or its flow has been removed, else 0. */
int npemu_wire_has_left(const npemu_wire_t *wire, npemu_wire_place_t place);

/** When a message has left if no other is put on the wire. Returns a time, ns,
 * not before that of the last advance. UINT64_MAX: later than that type can
 * hold. */
uint64_t npemu_wire_when(const npemu_wire_t *wire, npemu_wire_place_t place);

/** Remove what a flow has not sent, key not 0. */
void npemu_wire_remove(npemu_wire_t *wire, uint64_t key);

#endif
