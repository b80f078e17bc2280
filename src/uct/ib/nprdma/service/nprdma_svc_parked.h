/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SVC_PARKED_H_
#define UCT_NPRDMA_SVC_PARKED_H_

#include "nprdma_pager.h"

#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/net/nprdma_counters.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include <ucs/datastruct/queue.h>
#include <ucs/sys/compiler_def.h>

/*
 * Requests of peers that wait for absent pages. While threads bring the pages
 * in (nprdma_pager.h), the service executes the requests of other connections.
 * Requests of one connection stay in order: what arrives behind a parked
 * request is parked as well, but its pages are brought in at the same time.
 * Each request is executed once, when its turn comes.
 *
 * Only the executing thread of the service calls these functions.
 */

/* Requests that can be parked in all. A peer that asks for more of them than
 * its share makes the service wait, as it does without threads */
#define UCT_NPRDMA_SVC_MAX_PARKED  512

/* Requests of at most this size are copied, so that their receive slots can be
 * posted again: all but STORE with data */
#define UCT_NPRDMA_SVC_PARKED_COPY  64

typedef struct uct_nprdma_svc_parking uct_nprdma_svc_parking_t;


/* A parked request */
typedef struct uct_nprdma_svc_parked {
    uct_nprdma_pager_job_t         job;        /* First member */
    ucs_queue_elem_t               queue;      /* Of the connection, or free */
    void                           *conn;      /* NULL: dropped */
    /* That has the request, or NULL: it is copied */
    uct_nprdma_slot_t              *slot;
    const uct_nprdma_svc_request_t *request;
    uint32_t                       limit;      /* As in the need */
    int                            is_waiting; /* For its pages */
    char                           copy[UCT_NPRDMA_SVC_PARKED_COPY]
                                   UCS_V_ALIGNED(8);
} uct_nprdma_svc_parked_t;


/* The parked requests of a connection */
typedef struct uct_nprdma_svc_parked_queue {
    ucs_queue_head_t queue;
    unsigned         count;
} uct_nprdma_svc_parked_queue_t;


/* What a request needs before it can be executed without waiting */
typedef struct uct_nprdma_svc_need {
    uct_nprdma_pager_job_t pages; /* To be brought in; none if count is 0 */
    /* For uct_nprdma_svc_execute() if there are none */
    uint32_t               limit;
} uct_nprdma_svc_need_t;


/* Create the parking of a service; the pager brings its pages in. */
ucs_status_t
uct_nprdma_svc_parking_create(uct_nprdma_mem_md_t *md,
                              uct_nprdma_pager_t *pager,
                              uct_nprdma_svc_parking_t **parking_p);


/* Free all requests. Their slots are not returned, and the pager does not exist
 * any more. */
void uct_nprdma_svc_parking_destroy(uct_nprdma_svc_parking_t *parking);


/* Find out which pages a request needs. Makes a system call only if the NIC met
 * an absent page, which the request repairs, or pages had to be waited for
 * nearby before; and never where page-in was quick. */
void uct_nprdma_svc_parking_need(uct_nprdma_svc_parking_t *parking,
                                 const uct_nprdma_svc_request_t *request,
                                 uct_nprdma_svc_need_t *need);


/* Park a request, of `size` bytes with payload, behind those of its connection.
 * If it needs pages, threads bring them in, from uct_nprdma_svc_parking_kick()
 * on. NULL: the connection has its share already, or too many slots are in
 * use. */
uct_nprdma_svc_parked_t *
uct_nprdma_svc_parking_add(uct_nprdma_svc_parking_t *parking,
                           uct_nprdma_svc_parked_queue_t *queue, void *conn,
                           uct_nprdma_slot_t *slot,
                           const uct_nprdma_svc_request_t *request,
                           size_t size, const uct_nprdma_svc_need_t *need);


/* Let threads begin with the requests that were parked since the last call */
void uct_nprdma_svc_parking_kick(uct_nprdma_svc_parking_t *parking);


/* Take a request whose pages have come, and whose connection can perhaps
 * continue. Without connection it was dropped. NULL if there are no more. */
uct_nprdma_svc_parked_t *
uct_nprdma_svc_parking_take(uct_nprdma_svc_parking_t *parking);


/* Remove the first request of a connection, because it was executed. Returns
 * its slot, to be posted again, or NULL. */
uct_nprdma_slot_t *
uct_nprdma_svc_parking_pop(uct_nprdma_svc_parking_t *parking,
                           uct_nprdma_svc_parked_queue_t *queue);


/* Drop the first request of a connection that has ended. Returns its slot, to
 * be posted again, or NULL. If a thread is bringing its pages in,
 * uct_nprdma_svc_parking_release() returns the slot when these have come. */
uct_nprdma_slot_t *
uct_nprdma_svc_parking_drop(uct_nprdma_svc_parking_t *parking,
                            uct_nprdma_svc_parked_queue_t *queue);


/* Release a request that uct_nprdma_svc_parking_take() returned without a
 * connection. Returns its slot, to be posted again, or NULL. */
uct_nprdma_slot_t *
uct_nprdma_svc_parking_release(uct_nprdma_svc_parking_t *parking,
                               uct_nprdma_svc_parked_t *parked);


/* For uct_nprdma_svc_parking_learn() */
long uct_nprdma_svc_parking_num_waits(const uct_nprdma_svc_request_t *request);


/* Learn from a request that was executed without threads: its microseconds, and
 * what uct_nprdma_svc_parking_num_waits() has returned to the same thread
 * before it */
void uct_nprdma_svc_parking_learn(uct_nprdma_svc_parking_t *parking,
                                  const uct_nprdma_svc_request_t *request,
                                  double usec, long num_waits);


/* Fill the counters pagein_xx; without parking they are zero */
void uct_nprdma_svc_parking_query(uct_nprdma_svc_parking_t *parking,
                                  uct_nprdma_mem_stats_t *stats);


/* The request repairs what the NIC could not access */
static inline int
uct_nprdma_svc_is_repair(const uct_nprdma_svc_request_t *request)
{
    return (request->type == UCT_NPRDMA_SVC_POPULATE) ||
           ((request->type == UCT_NPRDMA_SVC_FETCH) &&
            (request->op & UCT_NPRDMA_SVC_FETCH_POPULATE));
}

#endif
