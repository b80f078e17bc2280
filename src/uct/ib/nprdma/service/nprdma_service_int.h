/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_INT_H_
#define UCT_NPRDMA_SERVICE_INT_H_

#include "nprdma_populator.h"
#include "nprdma_service.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include "ucm/access/nprdma_fault.h"

#include <ucs/datastruct/khash.h>
#include <ucs/datastruct/list.h>

#include <pthread.h>
#include <stdatomic.h>

/*
 * What nprdma_service.c (execution), nprdma_service_start.c (connections, begin
 * and end) and nprdma_service_thread.c share.
 */

/* Replies that may be on their way to one peer: twice as many as it waits for,
 * because it may have got one, and sent the next request, before we know */
#define UCT_NPRDMA_SERVICE_SQ_LEN       (2 * UCT_NPRDMA_SVC_MAX_REPLIES)

/* wr_id of a probe; that of a reply is a slot, or 0 if it was sent inline */
#define UCT_NPRDMA_SERVICE_WR_PROBE     1

/* Replies that may be on their way in all */
#define UCT_NPRDMA_SERVICE_SEND_CQ_LEN  1024

/* Slots for the results of fetches that are not sent inline */
#define UCT_NPRDMA_SERVICE_TX_SLOTS     16

/* Reply data that is sent inline where the device can */
#define UCT_NPRDMA_SERVICE_INLINE       128

/* Requests taken off the CQ at once, and executed in one call of progress */
#define UCT_NPRDMA_SERVICE_BATCH        16
#define UCT_NPRDMA_SERVICE_MAX_REQUESTS 64


enum {
    UCT_NPRDMA_SERVICE_CONN_READY,
    UCT_NPRDMA_SERVICE_CONN_CLOSING, /* Goes when its replies have left */
    UCT_NPRDMA_SERVICE_CONN_CLOSED   /* The queue pair is destroyed */
};


struct uct_nprdma_service_conn {
    ucs_list_link_t list;          /* In service->conns */
    struct ibv_qp   *qp;
    uint32_t        qpn;
    uint32_t        sn;            /* Of the last request executed */
    uint32_t        outstanding;   /* Replies sent and not completed, and a
                                      probe */
    uint32_t        failed_sn;     /* First failure not yet reported */
    uint32_t        max_inline;    /* Of a reply */
    uint8_t         failed_status;
    uint8_t         probing;       /* A probe is outstanding */
    unsigned        drain;         /* Looks that had found the receive CQ empty
                                      when the queue pair was stopped */
    atomic_int      state;
    atomic_int      released;      /* The cm has forgotten it */
    atomic_int      probe_wanted;  /* By the cm */
};

KHASH_MAP_INIT_INT(uct_nprdma_service_conns, uct_nprdma_service_conn_t *);

struct uct_nprdma_service {
    uct_nprdma_service_base_t super;
    uct_nprdma_mem_md_t       *md;
    unsigned                  num_slots;     /* Receives, at most */
    uct_nprdma_populator_t    *populator;
    pthread_mutex_t           start_lock;    /* Of the next four */
    int                       started;
    int                       has_thread;
    int                       told_shortage; /* of descriptors */
    int                       told_no_thread;

    /* Protects the table, the list and the end of a connection; a leaf lock */
    pthread_mutex_t           conns_lock;
    khash_t(uct_nprdma_service_conns) conns_hash;
    ucs_list_link_t           conns;
    atomic_int                attention;   /* A connection wants to go, or its
                                              requester to be probed */
    atomic_int                probe_wanted; /* One of the connections has it */

    /* Set by whoever executes; what follows is his until he clears it */
    atomic_int                executing;
    int                       by_thread;   /* Its own, which blocks neither
                                              SIGSEGV nor SIGBUS */
    int                       has_turn;    /* Requests touch memory */
    nprdma_fault_turn_t       turn;
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
    int                       next_wc;     /* First of them not executed */
    unsigned                  num_drained; /* Looks that found the CQ empty */
    struct ibv_recv_wr        refill_wrs[UCT_NPRDMA_SERVICE_BATCH];
    struct ibv_sge            refill_sges[UCT_NPRDMA_SERVICE_BATCH];

    struct {                               /* Requests executed, by kind */
        atomic_uint_fast64_t  stores;
        atomic_uint_fast64_t  fetches;
        atomic_uint_fast64_t  atomics;
        atomic_uint_fast64_t  populates;
        atomic_uint_fast64_t  errors;      /* Of all these */
    } stats;

    /* Between progress and the thread */
    atomic_uint               num_polls;    /* Progress has looked */
    atomic_uint               num_executed; /* Requests, by anybody */
    atomic_int                stop;
    int                       wakeup_fd;
    pthread_t                 thread;
};


/*
 * Whoever wants to execute requests asks. It is an exchange and a store, where
 * a mutex is two exchanges and two calls: a rank that has nothing to do asks in
 * each of its polls, and on a CPU that it shares these are what the others
 * wait for.
 *
 * Returns nonzero if the caller may execute; else somebody else does.
 */
static inline int uct_nprdma_service_try_begin(uct_nprdma_service_t *service)
{
    return !atomic_exchange_explicit(&service->executing, 1,
                                     memory_order_acquire);
}

/* The end of what uct_nprdma_service_try_begin has allowed. */
static inline void uct_nprdma_service_end(uct_nprdma_service_t *service)
{
    atomic_store_explicit(&service->executing, 0, memory_order_release);
}


/**
 * Execute requests. The caller has begun.
 *
 * @param [in]  service    Service.
 * @param [in]  max        At most about as many.
 * @param [out] blocked_p  Set if the next one waits for a reply to leave.
 *
 * @return Number of requests executed.
 */
unsigned uct_nprdma_service_run(uct_nprdma_service_t *service, unsigned max,
                                int *blocked_p);


/**
 * Give all free slots to the SRQ. The caller has begun, or nobody else uses the
 * service yet.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR with a logged reason.
 */
ucs_status_t uct_nprdma_service_fill_srq(uct_nprdma_service_t *service);


/**
 * Start the thread of a service whose queues are there, unless it runs. If the
 * process may not have one more, the service does without: one line tells that
 * requests are executed by progress only, and the next call tries again. The
 * caller holds the start lock.
 */
void uct_nprdma_service_thread_start(uct_nprdma_service_t *service);

/** Stop the thread, if it runs, and wait until it has stopped. */
void uct_nprdma_service_thread_stop(uct_nprdma_service_t *service);

/** Let the thread look at the service. */
void uct_nprdma_service_thread_wakeup(uct_nprdma_service_t *service);

#endif
