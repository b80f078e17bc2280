/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_TYPES_H_
#define UCT_NPRDMA_SERVICE_TYPES_H_

#include "nprdma_populator.h"
#include "nprdma_service_base.h"
#include "nprdma_svc_parked.h"

#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/net/nprdma_executed.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include "ucm/access/nprdma_fault.h"

#include <ucs/datastruct/khash.h>
#include <ucs/datastruct/list.h>

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
#define UCT_NPRDMA_SERVICE_BATCH   16


enum {
    UCT_NPRDMA_SERVICE_CONN_READY,
    UCT_NPRDMA_SERVICE_CONN_CLOSING, /* Ends when its replies are done */
    UCT_NPRDMA_SERVICE_CONN_CLOSED   /* The queue pair is destroyed */
};


struct uct_nprdma_service_conn {
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
    uct_nprdma_svc_parked_queue_t parked; /* Requests that wait */
    ucs_list_link_t resuming;
    /* num_drained when the queue pair was stopped */
    unsigned        drain;
    atomic_int      state;
    atomic_int      released;      /* The cm has released it */
    atomic_int      probe_wanted;  /* The cm wants a probe */
    uct_nprdma_executed_t *executed; /* May be NULL */
};

KHASH_MAP_INIT_INT(uct_nprdma_service_conns, uct_nprdma_service_conn_t *);

struct uct_nprdma_service {
    uct_nprdma_service_base_t super;
    uct_nprdma_mem_md_t       *md;
    unsigned                  num_slots;     /* Maximum number of receives */
    uct_nprdma_pager_t        *pager;
    uct_nprdma_populator_t    *populator;
    pthread_mutex_t           start_lock;    /* Protects the next four fields */
    int                       started;
    int                       has_thread;
    int                       reported_no_thread;

    /* Counts before a peer can use a new connection */
    atomic_uint               num_accepted;

    /* Protects the table, the list and the end of a connection; a leaf lock */
    pthread_mutex_t           conns_lock;
    khash_t(uct_nprdma_service_conns) conns_hash;
    ucs_list_link_t           conns;
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

    /* NULL: requests that meet absent pages are not parked */
    uct_nprdma_svc_parking_t  *parking;
    /* Connections whose first parked request can perhaps be executed */
    ucs_list_link_t           resuming;

    struct {                               /* Executed requests by type */
        atomic_uint_fast64_t  stores;
        atomic_uint_fast64_t  fetches;
        atomic_uint_fast64_t  atomics;
        atomic_uint_fast64_t  populates;
        /* Failed requests of all these types */
        atomic_uint_fast64_t  errors;
    } stats;

    /* Shared by progress and the thread */
    atomic_uint               num_polls;    /* polls of progress */
    /* Executed requests, in any thread */
    atomic_uint               num_executed;
    atomic_int                pages_came;   /* For a parked request */
    atomic_int                stop;
    int                       wakeup_fd;
    pthread_t                 thread;
};


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
