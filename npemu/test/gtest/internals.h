/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Effects of a process on memory that it shares with others, which verbs cannot
 * produce: it holds a lock, dies in the midst of a step, or writes invalid
 * data. And what verbs do not show.
 */

#ifndef NPT_INTERNALS_H
#define NPT_INTERNALS_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

struct npemu_iommu;

#ifdef __cplusplus
extern "C" {
#endif

/** The lock of a completion queue, as each producer of a completion takes it,
 * and ibv_req_notify_cq(). */
void npt_cq_lock(struct ibv_cq *cq);
void npt_cq_unlock(struct ibv_cq *cq);

/** Raise an event and die before it is signalled. */
void npt_cq_raise(struct ibv_cq *cq);

/** Events raised so far. */
uint32_t npt_cq_raised(struct ibv_cq *cq);

/** The lock of atomics on the memory of this process. */
void npt_atomic_lock(struct ibv_context *context);
void npt_atomic_unlock(struct ibv_context *context);

/** While it is held, the thread does not notice that peers have ended. */
void npt_peers_lock(struct ibv_context *context);
void npt_peers_unlock(struct ibv_context *context);

/** The number of this process in the fabric. */
unsigned npt_slot(struct ibv_context *context);

/** Take a receive of the peer, as the first step of a SEND. 0: done. */
int npt_peer_take_receive(struct ibv_qp *qp);

/** While it is held, a queue pair that is being destroyed stays so. */
void npt_qp_lock(struct ibv_qp *qp);
void npt_qp_unlock(struct ibv_qp *qp);
int npt_qp_is_dying(struct ibv_qp *qp);

/** An access of this thread to memory that a table covers. */
void npt_access_begin(struct ibv_context *context);
void npt_access_end(struct ibv_context *context);

/** Of how many threads of a process each has a counter of its own. */
unsigned npt_own_counters(void);

/** Undone or not, a NIC has found a page of a table gone. */
void npt_iommu_mark(struct npemu_iommu *iommu, size_t page);
void npt_iommu_unmark(struct npemu_iommu *iommu);

/** Tell those that will attach this process that its arena is the segment @a
 * id. */
void npt_set_arena(struct ibv_context *context, int id);

/** The first thing a process does that closes its last context. */
void npt_begin_close(struct ibv_context *context);

/** The rate in a value of NPEMU_LINK, and the rest of it; 0: it is wrong. */
uint64_t npt_link_parse(const char *text, uint64_t *latency_ns, uint32_t *port,
                        uint32_t *arb);

/** Flows on the port of a process, and on that of the peer of a queue pair. */
unsigned npt_port_flows(struct ibv_context *context);
unsigned npt_peer_port_flows(struct ibv_qp *qp);

/** npemu_port_account() of a request. */
void npt_port_account(struct ibv_context *context, uint64_t length,
                      uint64_t wire_ns, uint64_t cpu_ns);

/** How many requests of a send queue are on the wire, and how many there or
 * behind it; and when that with an index from the oldest leaves it, as
 * estimated: ns. */
unsigned npt_qp_admitted(struct ibv_qp *qp);
unsigned npt_qp_waiting(struct ibv_qp *qp);
uint64_t npt_qp_left_ns(struct ibv_qp *qp, unsigned index);

/** A message of a flow on a wire, and when it has left that. */
struct npt_message {
    uint64_t key;
    uint32_t level;
    uint64_t work_ns;
    uint64_t left_ns; /* 0: it has not within a time */
};

/** Put messages on a wire of their own, all at once, and let it send them. */
void npt_wire_play(struct npt_message *messages, unsigned count);

#ifdef __cplusplus
}
#endif

#endif
