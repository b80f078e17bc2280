/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_TYPES_H_
#define UCT_NPRDMA_SERVICE_TYPES_H_

#include "nprdma_pager.h"

#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/net/nprdma_executed.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include "ucm/access/nprdma_fault.h"

#include <ucs/datastruct/khash.h>
#include <ucs/datastruct/list.h>
#include <ucs/datastruct/queue.h>

#include <pthread.h>
#include <stdatomic.h>

/* Outstanding replies to one peer, at most: twice as many as the peer waits
 * for, because it may have received one, and sent the next request, before this
 * side has the completion */
#define UCT_NPRDMA_SERVICE_SQ_LEN       (2 * UCT_NPRDMA_SVC_MAX_REPLIES)

/* wr_id of a probe; that of a reply is its slot, or 0 if it was sent inline */
#define UCT_NPRDMA_SERVICE_WR_PROBE     1

/* Longest reply that is sent inline where the device supports it, bytes */
#define UCT_NPRDMA_SERVICE_INLINE       128

/* Requests polled at once */
#define UCT_NPRDMA_SERVICE_BATCH        16

/* Requests that can be parked in all. A peer that asks for more of them than
 * its share makes the service wait, as it does without threads */
#define UCT_NPRDMA_SERVICE_MAX_PARKED   512

/* Requests of at most this size are copied, so that their receive slots can be
 * posted again: all but STORE with data */
#define UCT_NPRDMA_SERVICE_PARKED_COPY  64

/* Hints, one for each chunk of addresses; a power of two */
#define UCT_NPRDMA_SERVICE_HINTS        1024


enum {
    UCT_NPRDMA_SERVICE_CONN_READY,
    UCT_NPRDMA_SERVICE_CONN_CLOSING, /* Ends when its replies are done */
    UCT_NPRDMA_SERVICE_CONN_CLOSED   /* The queue pair is destroyed */
};


/* Responder's side of a connection of kind SVC */
typedef struct uct_nprdma_service_conn {
    ucs_list_link_t list;          /* In service->conns */
    struct ibv_qp   *qp;
    uint32_t        qpn;
    uint32_t        sn;            /* Of the last request executed */
    uint32_t        arrived_sn;    /* Of the last request that has arrived */
    uint32_t        outstanding;   /* not completed, and a probe */
    uint32_t        failed_sn;     /* First failure that is not yet reported */
    uint32_t        max_inline;    /* of a reply */
    uint8_t         failed_status;
    uint8_t         probing;       /* A probe is outstanding */
    uint8_t         is_resuming;   /* In service->resuming */
    /* The outstanding probe is older than the last doubt */
    uint8_t         is_probe_late;
    /* The requester has answered a probe since the last doubt, or there was
     * none */
    uint8_t         is_alive;
    /* num_accepted when it was last compared, or when this was accepted */
    unsigned        seen_accepted;
    ucs_queue_head_t parked;       /* Requests that wait */
    unsigned        num_parked;
    ucs_list_link_t resuming;
    /* num_drained when the queue pair was stopped */
    unsigned        drain;
    atomic_int      state;
    atomic_int      released;      /* The cm has released it */
    atomic_int      probe_wanted;  /* The cm wants a probe */
    uct_nprdma_executed_t *executed; /* May be NULL */
} uct_nprdma_service_conn_t;

/* What a request needs before it can be executed without waiting */
typedef struct uct_nprdma_service_need {
    uct_nprdma_pager_job_t job;   /* Pages to be brought in; none if count is
                                   * 0 */
    uint32_t               limit; /* Bytes of it that can be executed */
} uct_nprdma_service_need_t;


/* A parked request */
typedef struct uct_nprdma_service_parked {
    uct_nprdma_service_need_t      need;
    ucs_queue_elem_t               queue;      /* Of the connection, or free */
    uct_nprdma_service_conn_t      *conn;      /* NULL: dropped */
    /* That has the request, or NULL: it is copied */
    uct_nprdma_slot_t              *slot;
    const uct_nprdma_svc_request_t *request;
    int                            is_waiting; /* For its pages */
    char                           copy[UCT_NPRDMA_SERVICE_PARKED_COPY]
                                   UCS_V_ALIGNED(8);
} uct_nprdma_service_parked_t;


/* What the last page-in of a chunk of addresses took */
typedef enum uct_nprdma_service_hint_kind {
    UCT_NPRDMA_SERVICE_HINT_NONE,  /* A thread has to find out */
    UCT_NPRDMA_SERVICE_HINT_QUICK, /* The kernel did not wait */
    UCT_NPRDMA_SERVICE_HINT_SLOW   /* It did */
} uct_nprdma_service_hint_kind_t;

typedef struct uct_nprdma_service_hint {
    uint64_t chunk;
    uint32_t kind;
    uint32_t run;   /* Requests since the last absent page */
} uct_nprdma_service_hint_t;


KHASH_MAP_INIT_INT(uct_nprdma_service_conns, uct_nprdma_service_conn_t *);

typedef struct uct_nprdma_service {
    uct_nprdma_mem_md_t       *md;
    unsigned                  num_slots;     /* Maximum number of receives */
    uct_nprdma_pager_t        *pager;
    pthread_mutex_t           start_lock;    /* Protects the next four fields */
    int                       started;
    int                       has_thread;
    int                       reported_no_thread;

    /* Counts before a peer can use a new connection */
    atomic_uint               num_accepted;
    atomic_uint               num_conns;

    /* Protects the table, the list and the end of a connection; a leaf lock */
    pthread_mutex_t           conns_lock;
    khash_t(uct_nprdma_service_conns) conns_hash;
    ucs_list_link_t           conns;
    /* The executing thread may be in a STORE or ATOMIC: one more than twice the
     * number of connections that were accepted before it. Else 0. */
    atomic_uint               changing;
    /* A connection has to be ended or probed */
    atomic_int                attention;
    /* A connection has probe_wanted set */
    atomic_int                probe_wanted;

    /* Set by the thread that executes requests. The following fields belong to
     * that thread until it clears this */
    atomic_int                executing;
    /* The service's own thread executes; SIGSEGV and SIGBUS are not blocked in
     * it */
    int                       by_thread;
    /* Faults of application memory are being reported */
    int                       in_section;
    nprdma_fault_section_t    section;
    struct ibv_comp_channel   *channel;
    struct ibv_cq             *recv_cq;
    struct ibv_cq             *send_cq;
    struct ibv_srq            *srq;
    uct_nprdma_bounce_t       rx_pool;
    uct_nprdma_bounce_t       tx_pool;
    uint32_t                  send_cq_avail;
    unsigned                  num_probes;  /* Outstanding */
    struct ibv_wc             wcs[UCT_NPRDMA_SERVICE_BATCH];
    int                       num_wcs;     /* Polled */
    int                       next_wc;     /* First that is not executed */
    /* Polls that found the receive CQ empty */
    unsigned                  num_drained;
    struct ibv_recv_wr        refill_wrs[UCT_NPRDMA_SERVICE_BATCH];
    struct ibv_sge            refill_sges[UCT_NPRDMA_SERVICE_BATCH];

    uct_nprdma_service_hint_t hints[UCT_NPRDMA_SERVICE_HINTS];
    uct_nprdma_service_parked_t parked[UCT_NPRDMA_SERVICE_MAX_PARKED];
    ucs_queue_head_t          free_parked;
    unsigned                  num_used_parked;  /* That were used once */
    unsigned                  num_parked;       /* In use */
    unsigned                  num_parked_slots; /* In use */
    int                       is_kick_due;      /* Of the pager */
    /* Connections whose first parked request can perhaps be executed */
    ucs_list_link_t           resuming;

    /* Executed requests by type, and those that failed */
    atomic_uint_fast64_t      served[UCT_NPRDMA_SVC_POPULATE + 1];
    atomic_uint_fast64_t      served_errors;

    /* Shared by progress and the thread */
    atomic_uint               num_polls;    /* polls of progress */
    /* Executed requests, in any thread */
    atomic_uint               num_executed;
    atomic_int                pages_came;   /* For a parked request */
    atomic_int                stop;
    int                       wakeup_fd;
    pthread_t                 thread;
} uct_nprdma_service_t;


/* Try to become the thread that executes requests. This is an exchange and a
 * store; a mutex would be two exchanges and two calls. An idle rank calls this
 * in each poll, and other ranks on the same CPU wait for that time. */
static inline int uct_nprdma_service_try_begin(uct_nprdma_service_t *service)
{
    return !atomic_exchange_explicit(&service->executing, 1,
                                     memory_order_acquire);
}

/* Undo uct_nprdma_service_try_begin(). */
static inline void uct_nprdma_service_end(uct_nprdma_service_t *service)
{
    atomic_store_explicit(&service->executing, 0, memory_order_release);
}

#endif
