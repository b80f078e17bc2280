/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_H_
#define UCT_NPRDMA_SERVICE_H_

#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_counters.h"
#include "uct/ib/nprdma/net/nprdma_executed.h"

/*
 * The target's side of internal messages, one per MD: stores, fetches, atomics
 * and populate requests of peers, executed by software (ARCHITECTURE 4).
 * Requests arrive on a shared receive queue and a completion queue that nothing
 * else uses. Either the application's own progress executes them, or a thread
 * that sleeps on the completion channel and stays idle while progress is
 * called.
 *
 * nprdma_service has the thread, start and end; nprdma_service_conn the
 * connections; nprdma_service_run which request is next, also while pages are
 * absent; nprdma_service_execute the execution of one request.
 *
 * A request accesses application memory only after a check against the live
 * registrations, and only through nprdma_access_xx(). No function here calls
 * the user or accesses an endpoint.
 */

/* Responder's side of a connection of kind SVC */
typedef struct uct_nprdma_service_conn uct_nprdma_service_conn_t;

typedef struct uct_nprdma_service uct_nprdma_service_t;


/* Create the service of an MD, with this many receives and threads of its pager
 * at most. Nothing is pinned and no thread is started before the first
 * connection. */
ucs_status_t uct_nprdma_service_create(uct_nprdma_mem_md_t *md,
                                       unsigned num_slots, unsigned num_threads,
                                       uct_nprdma_service_t **service_p);


/* Stop the thread and free the service and all its connections */
void uct_nprdma_service_destroy(uct_nprdma_service_t *service);


/* Count a new connection of a peer. What the peer sent on an earlier one, which
 * it has left, is executed no more. UCS_ERR_NO_RESOURCE: try later, because a
 * put or atomic that may be of this peer takes long. Safe in any thread.
 * @param [out] num_accepted_p  Connections counted, with this one. */
ucs_status_t uct_nprdma_service_settle(uct_nprdma_service_t *service,
                                       unsigned *num_accepted_p);


/* Create the responder's side of a connection, ready to receive. `executed`
 * counts its requests; NULL: no messages follow requests.
 * UCS_ERR_NO_RESOURCE: as uct_nprdma_service_settle(). Safe in any thread. */
ucs_status_t
uct_nprdma_service_accept(uct_nprdma_service_t *service, uint8_t port_num,
                          const uct_nprdma_qp_addr_t *peer, uint32_t local_psn,
                          uct_nprdma_executed_t *executed,
                          uct_nprdma_service_conn_t **conn_p, uint32_t *qpn_p);


/* The requester has ended the connection or no longer exists. The queue pair is
 * destroyed then, and only uct_nprdma_service_release() remains to be
 * called. */
int uct_nprdma_service_conn_is_closed(const uct_nprdma_service_conn_t *conn);


/* Probe the requester, whose queue pair is known to be ready. Returns at once;
 * if the queue pair is gone, the connection is closed later. Safe in any
 * thread. */
void uct_nprdma_service_probe(uct_nprdma_service_t *service,
                              uct_nprdma_service_conn_t *conn);


/* Does not wait for a request of the connection that is being executed */
void uct_nprdma_service_release(uct_nprdma_service_t *service,
                                uct_nprdma_service_conn_t *conn);


/* Execute received requests, unless another thread executes. Called by the
 * progress of every interface of the MD. */
unsigned uct_nprdma_service_progress(uct_nprdma_service_t *service);


/* Populate pages of a registration in the background, with NPRDMA_POPULATE_xx.
 * Never waits. Does nothing if too many such jobs wait. The registration may
 * end at any time. */
void uct_nprdma_service_populate_async(uct_nprdma_service_t *service,
                                       const struct uct_nprdma_mem *mem,
                                       uintptr_t address, size_t length,
                                       unsigned flags);


/* Fill the counters served_xx, prefetch_xx and pagein_xx */
void uct_nprdma_service_query(uct_nprdma_service_t *service,
                              uct_nprdma_mem_stats_t *stats);

#endif
