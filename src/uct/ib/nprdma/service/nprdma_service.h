/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_H_
#define UCT_NPRDMA_SERVICE_H_

#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_counters.h"

#include <stdatomic.h>

/*
 * The target's side of the internal messages, one per MD: stores, fetches and
 * atomics of peers, executed by software. Requests arrive on a shared receive
 * queue and a completion queue that nothing else uses. Whoever comes first
 * executes them: the application's own progress, or a thread that sleeps on
 * the completion channel and keeps out of the way while progress is called.
 *
 * A request touches application memory only after it has been checked against
 * the live registrations, and only through nprdma_access_xx(). Nothing here
 * calls the user or touches an endpoint.
 */

/* Responder's side of one peer's connection of kind SVC */
typedef struct uct_nprdma_service_conn uct_nprdma_service_conn_t;

typedef struct uct_nprdma_service uct_nprdma_service_t;


/**
 * Create the service of an MD. Nothing is pinned and no thread is started
 * before the first connection.
 *
 * @param [in]  md         MD whose memory is served.
 * @param [in]  num_slots  Receives, at most.
 * @param [out] service_p  To be given to @ref uct_nprdma_service_destroy.
 *
 * @return UCS_OK or UCS_ERR_NO_MEMORY.
 */
ucs_status_t uct_nprdma_service_create(uct_nprdma_mem_md_t *md,
                                       unsigned num_slots,
                                       uct_nprdma_service_t **service_p);


/**
 * Stop the thread and release everything, connections included.
 *
 * @param [in] service  Service; not valid afterwards.
 */
void uct_nprdma_service_destroy(uct_nprdma_service_t *service);


/**
 * Create the responder's side of a connection, ready to receive. May be called
 * from any thread.
 *
 * @param [in]  service    Service.
 * @param [in]  port_num   Port to use.
 * @param [in]  peer       The requester's side.
 * @param [in]  local_psn  PSN that the requester will be told.
 * @param [out] conn_p     The connection, to be released with
 *                         @ref uct_nprdma_service_release.
 * @param [out] qpn_p      Queue pair number that the requester must be told.
 *
 * @return UCS_OK; UCS_ERR_NO_RESOURCE if the service cannot start for want of
 *         descriptors, which may be free again later (told once); or
 *         UCS_ERR_IO_ERROR, UCS_ERR_NO_MEMORY or UCS_ERR_UNSUPPORTED with a
 *         logged reason.
 */
ucs_status_t
uct_nprdma_service_accept(uct_nprdma_service_t *service, uint8_t port_num,
                          const uct_nprdma_qp_addr_t *peer, uint32_t local_psn,
                          uct_nprdma_service_conn_t **conn_p, uint32_t *qpn_p);


/**
 * @return Nonzero once the requester has said goodbye or has died: the queue
 *         pair is gone, only @ref uct_nprdma_service_release remains.
 */
int uct_nprdma_service_conn_is_closed(const uct_nprdma_service_conn_t *conn);


/**
 * Find out whether the requester is still there. Returns at once; if it is not,
 * the connection gets closed. May be called from any thread.
 *
 * @param [in] service  Service.
 * @param [in] conn     From @ref uct_nprdma_service_accept. The requester's
 *                      queue pair must be known to be ready.
 */
void uct_nprdma_service_probe(uct_nprdma_service_t *service,
                              uct_nprdma_service_conn_t *conn);


/**
 * Drop a connection. Does not wait for a request of its that is executing.
 *
 * @param [in] service  Service.
 * @param [in] conn     From @ref uct_nprdma_service_accept; not valid
 *                      afterwards.
 */
void uct_nprdma_service_release(uct_nprdma_service_t *service,
                                uct_nprdma_service_conn_t *conn);


/**
 * Execute requests that have arrived, unless another thread does so already.
 * To be called by the progress of every interface of the MD.
 *
 * @return Number of requests executed.
 */
unsigned uct_nprdma_service_progress_active(uct_nprdma_service_t *service);


/**
 * Populate what is present of a registration, in the background: its key is on
 * its way to a peer, which is going to use it. Never waits. Nothing happens
 * when there is too much to do already.
 *
 * @param [in] service   Service.
 * @param [in] mem       Live registration. It may be deregistered at any time.
 * @param [in] is_write  Nonzero if the peer may write.
 */
void uct_nprdma_service_populate_later(uct_nprdma_service_t *service,
                                       const struct uct_nprdma_mem *mem,
                                       int is_write);


/** Fill the counters of a service, those of served and ahead. */
void uct_nprdma_service_query(uct_nprdma_service_t *service,
                              uct_nprdma_mem_stats_t *stats);


/* What progress has to look at; first member of uct_nprdma_service_t */
typedef struct uct_nprdma_service_base {
    atomic_uint num_conns;
} uct_nprdma_service_base_t;


/** As @ref uct_nprdma_service_progress_active; one load without connections. */
static inline unsigned
uct_nprdma_service_progress(uct_nprdma_service_t *service)
{
    uct_nprdma_service_base_t *base = (uct_nprdma_service_base_t*)service;

    /* Acquire: whoever counts the first connection has created the queues that
     * are polled then, without the lock that execution takes */
    if (ucs_likely(atomic_load_explicit(&base->num_conns,
                                        memory_order_acquire) == 0)) {
        return 0;
    }

    return uct_nprdma_service_progress_active(service);
}

#endif
