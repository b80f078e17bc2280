/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Effects of a process on memory that it shares with others, which verbs cannot
 * produce: it is stopped or killed with a lock, or writes invalid data.
 */

#ifndef NPT_INTERNALS_H
#define NPT_INTERNALS_H

#include <stdint.h>

struct ibv_context;
struct ibv_cq;
struct ibv_qp;

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Take the lock of a completion queue, as every producer of a completion does,
 * and ibv_req_notify_cq().
 */
void npt_cq_lock(struct ibv_cq *cq);

/** Release it. */
void npt_cq_unlock(struct ibv_cq *cq);

/**
 * Take the lock of the completion queue of a peer's receives, as every sender
 * does. Released by npt_peer_cq_unlock().
 */
void npt_peer_cq_lock(struct ibv_qp *qp);
void npt_peer_cq_unlock(struct ibv_qp *qp);

/** Take the lock of atomics on the memory of a peer. */
void npt_peer_atomic_lock(struct ibv_qp *qp);
void npt_peer_atomic_unlock(struct ibv_qp *qp);

/**
 * Tell those that will attach this process that its arena is the segment @a id.
 */
void npt_set_arena(struct ibv_context *context, int id);

/** The first thing a process does that closes its last context. */
void npt_begin_close(struct ibv_context *context);

/** What npemu_link_spec_parse() says: 0 or EINVAL. @a item has 64 bytes. */
int npt_link_parse(const char *text, uint64_t *rate, uint64_t *latency_ns,
                   uint32_t *port, uint32_t *arb, char *item);

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

/** A wire (npemu_wire.h), in memory that forked children share. */
struct npt_wire;

struct npt_wire *npt_wire_create(void);
void npt_wire_destroy(struct npt_wire *self);
void npt_wire_advance(struct npt_wire *self, uint64_t now_ns);

/** The message's place: its virtual time. */
uint64_t npt_wire_add(struct npt_wire *self, uint64_t key, uint32_t level,
                      uint64_t work_ps);
int npt_wire_has_left(const struct npt_wire *self, uint32_t level,
                      uint64_t tag);
uint64_t npt_wire_when(const struct npt_wire *self, uint32_t level,
                       uint64_t tag);
void npt_wire_remove(struct npt_wire *self, uint64_t key);
unsigned npt_wire_flows(const struct npt_wire *self);
unsigned npt_wire_max_flows(void);

/** A counter of events (npemu_event_fd.h), in memory that forked children
 * share. */
struct npt_event;

/** One read takes all events if @a nonblock, else one. NULL on failure. */
struct npt_event *npt_event_create(int nonblock);
void npt_event_destroy(struct npt_event *self);

/** Its fields. */
int npt_event_fd(const struct npt_event *self);
int npt_event_signal_fd(const struct npt_event *self);
unsigned npt_event_owed(const struct npt_event *self);

/** The functions npemu_event_fd_*() on it. */
int npt_event_open(const struct npt_event *self, int pid);
void npt_event_signal(struct npt_event *self, int fd);
int npt_event_take(struct npt_event *self);

#ifdef __cplusplus
}
#endif

#endif
