/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service.h"
#include "nprdma_populator.h"
#include "nprdma_svc_exec.h"
#include "nprdma_svc_parked.h"

#include "uct/ib/nprdma/compat/nprdma_log.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/net/nprdma_cm_types.h"
#include "uct/ib/nprdma/net/nprdma_executed.h"
#include "uct/ib/nprdma/net/nprdma_qp.h"
#include "uct/ib/nprdma/wire/nprdma_dump.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include "ucm/access/nprdma_fault.h"

#include <nprdma_assert.h>
#include <nprdma_thread.h>

#include <ucs/datastruct/khash.h>
#include <ucs/datastruct/list.h>
#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/time/time.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Maximum number of outstanding replies to one peer. Twice as many as the peer
 * waits for, because it may have received one, and sent the next request,
 * before this side has the completion */
#define UCT_NPRDMA_SERVICE_SQ_LEN       (2 * UCT_NPRDMA_SVC_MAX_REPLIES)

/* wr_id of a probe; that of a reply is its slot, or 0 if it was sent inline */
#define UCT_NPRDMA_SERVICE_WR_PROBE     1

/* Maximum number of outstanding replies in all */
#define UCT_NPRDMA_SERVICE_SEND_CQ_LEN  1024

/* Maximum number of slots for results of fetches that are not sent inline */
#define UCT_NPRDMA_SERVICE_TX_SLOTS     16

/* Longest reply that is sent inline where the device supports it, bytes */
#define UCT_NPRDMA_SERVICE_INLINE       128

/* Requests polled at once, and executed in one call of progress */
#define UCT_NPRDMA_SERVICE_BATCH        16
#define UCT_NPRDMA_SERVICE_MAX_REQUESTS 64

/* Parked requests executed between two polls */
#define UCT_NPRDMA_SERVICE_RESUME       4

/* Interval of the thread while the application calls progress. When progress
 * stops, a request waits for at most two of them. */
#define UCT_NPRDMA_SERVICE_BACKOFF_NS   300000

/* Shortest FETCH in bytes whose time is measured. It is negligible there */
#define UCT_NPRDMA_SERVICE_TIMED        1024

/* Time between tries of the thread while progress executes requests */
#define UCT_NPRDMA_SERVICE_RETRY_NS     20000

/* Time slice that the thread requests; 100 us is the shortest that Linux
 * grants */
#define UCT_NPRDMA_SERVICE_SLICE_NS     100000


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
    uint32_t        outstanding;   /* Replies that are not completed, and a
                                    * probe */
    uint32_t        failed_sn;     /* First failure that is not yet reported */
    uint32_t        max_inline;    /* Maximum number of bytes of a reply that is
                                    * sent inline */
    uint8_t         failed_status;
    uint8_t         probing;       /* A probe is outstanding */
    uint8_t         is_resuming;   /* In service->resuming */
    uint8_t         is_probe_late; /* The outstanding probe is older than the
                                    * last doubt */
    uint8_t         is_alive;      /* The requester has answered a probe since
                                    * the last doubt, or there was none */
    unsigned        seen_accepted; /* num_accepted when it was last compared,
                                    * or when this was accepted */
    uct_nprdma_svc_parked_queue_t parked; /* Requests that wait */
    ucs_list_link_t resuming;
    unsigned        drain;         /* num_drained when the queue pair was
                                    * stopped */
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
    uct_nprdma_populator_t    *populator;
    pthread_mutex_t           start_lock;    /* Protects the next four fields */
    int                       started;
    int                       has_thread;
    int                       reported_no_thread;

    atomic_uint               num_accepted;  /* Counts before a peer can use a
                                              * new connection */

    /* Protects the table, the list and the end of a connection; a leaf lock */
    pthread_mutex_t           conns_lock;
    khash_t(uct_nprdma_service_conns) conns_hash;
    ucs_list_link_t           conns;
    atomic_int                attention;   /* A connection has to be ended or
                                            * probed */
    atomic_int                probe_wanted; /* A connection has probe_wanted
                                             * set */

    /* Set by the thread that executes requests. The following fields belong to
     * that thread until it clears this */
    atomic_int                executing;
    int                       by_thread;   /* The service's own thread executes;
                                            * SIGSEGV and SIGBUS are not blocked
                                            * in it */
    int                       in_section;  /* Faults of application memory are
                                            * being reported */
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
    unsigned                  num_drained; /* Polls that found the receive CQ
                                            * empty */
    struct ibv_recv_wr        refill_wrs[UCT_NPRDMA_SERVICE_BATCH];
    struct ibv_sge            refill_sges[UCT_NPRDMA_SERVICE_BATCH];

    uct_nprdma_svc_parking_t  *parking;    /* NULL: requests that meet absent
                                            * pages are not parked */
    ucs_list_link_t           resuming;    /* Connections whose first parked
                                            * request can perhaps be executed */

    struct {                               /* Executed requests by type */
        atomic_uint_fast64_t  stores;
        atomic_uint_fast64_t  fetches;
        atomic_uint_fast64_t  atomics;
        atomic_uint_fast64_t  populates;
        atomic_uint_fast64_t  errors;      /* Failed requests of all these
                                            * types */
    } stats;

    /* Shared by progress and the thread */
    atomic_uint               num_polls;    /* Incremented by each poll of
                                             * progress */
    atomic_uint               num_executed; /* Executed requests, in any
                                             * thread */
    atomic_int                pages_came;   /* For a parked request */
    atomic_int                stop;
    int                       wakeup_fd;
    pthread_t                 thread;
};


/*
 * Try to become the thread that executes requests. This is an exchange and a
 * store; a mutex would be two exchanges and two calls. An idle rank calls this
 * in each poll, and other ranks on the same CPU wait for that time.
 *
 * @return Nonzero if the caller may execute; zero if another thread executes.
 */
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


/* First version of the kernel's structure. libc 2.36 does not declare it, and
 * the kernel's header cannot be included together with <sched.h>. */
typedef struct uct_nprdma_sched_attr {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t  nice;
    uint32_t priority;
    uint64_t runtime;  /* With SCHED_OTHER: the time slice in nanoseconds */
    uint64_t deadline;
    uint64_t period;
} uct_nprdma_sched_attr_t;


static uct_nprdma_service_conn_t *
uct_nprdma_service_find(uct_nprdma_service_t *service, uint32_t qpn)
{
    uct_nprdma_service_conn_t *conn = NULL;
    khiter_t iter;

    pthread_mutex_lock(&service->conns_lock);
    iter = kh_get(uct_nprdma_service_conns, &service->conns_hash, qpn);
    if (iter != kh_end(&service->conns_hash)) {
        conn = kh_value(&service->conns_hash, iter);
    }
    pthread_mutex_unlock(&service->conns_lock);
    return conn;
}


/* ---- replies and their completions; called by the executing thread ---- */

/*
 * Stop a connection. It may have completions in the receive CQ. If its queue
 * pair is destroyed before they are polled, the slots of the SRQ that they
 * refer to are lost. Therefore the CQ must be found empty first.
 */
static void uct_nprdma_service_conn_stop(uct_nprdma_service_t *service,
                                         uct_nprdma_service_conn_t *conn)
{
    if (conn->state == UCT_NPRDMA_SERVICE_CONN_READY) {
        uct_nprdma_qp_to_err(&service->md->super, conn->qp);
        conn->drain        = service->num_drained;
        conn->state        = UCT_NPRDMA_SERVICE_CONN_CLOSING;
        service->attention = 1;
    }
}

static void uct_nprdma_service_reap(uct_nprdma_service_t *service)
{
    struct ibv_wc wcs[UCT_NPRDMA_SERVICE_BATCH];
    uct_nprdma_service_conn_t *conn;
    int i, count;

    do {
        count = ibv_poll_cq(service->send_cq, UCT_NPRDMA_SERVICE_BATCH, wcs);
        for (i = 0; i < count; ++i) {
            ++service->send_cq_avail;
            if (wcs[i].wr_id == UCT_NPRDMA_SERVICE_WR_PROBE) {
                --service->num_probes;
                service->attention |= service->probe_wanted;
            } else if (wcs[i].wr_id != 0) {
                uct_nprdma_bounce_put((uct_nprdma_slot_t*)wcs[i].wr_id);
            }

            conn = uct_nprdma_service_find(service, wcs[i].qp_num);
            if (conn == NULL) {
                continue;
            }

            --conn->outstanding;
            if (wcs[i].wr_id == UCT_NPRDMA_SERVICE_WR_PROBE) {
                conn->is_alive     |= (wcs[i].status == IBV_WC_SUCCESS) &&
                                      !conn->is_probe_late;
                conn->is_probe_late = 0;
                conn->probing       = 0;
            }

            if (wcs[i].status != IBV_WC_SUCCESS) {
                ucs_debug("service: send on qp 0x%x failed: work completion "
                          "status %d", conn->qpn, wcs[i].status);
                uct_nprdma_service_conn_stop(service, conn);
            }
        }
    } while (count == UCT_NPRDMA_SERVICE_BATCH);
}

/* Check whether one more reply may be sent, with or without a slot */
static int uct_nprdma_service_can_reply(uct_nprdma_service_t *service,
                                        const uct_nprdma_service_conn_t *conn,
                                        int needs_slot)
{
    return (service->send_cq_avail > 0) &&
           (conn->outstanding < UCT_NPRDMA_SERVICE_SQ_LEN) &&
           (!needs_slot || (service->tx_pool.free != NULL) ||
            uct_nprdma_bounce_grow(&service->tx_pool));
}

static void
uct_nprdma_service_reply(uct_nprdma_service_t *service,
                         uct_nprdma_service_conn_t *conn, void *data,
                         size_t length, uct_nprdma_slot_t *slot)
{
    struct ibv_send_wr *bad_wr;
    struct ibv_send_wr wr = {};
    struct ibv_sge sge;
    int ret;

    sge.addr      = (uintptr_t)data;
    sge.length    = length;
    sge.lkey      = (slot == NULL) ? 0 : slot->lkey;
    wr.wr_id      = (uintptr_t)slot;
    wr.sg_list    = &sge;
    wr.num_sge    = 1;
    wr.opcode     = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED | ((slot == NULL) ? IBV_SEND_INLINE : 0);
    uct_nprdma_trace_packet(uct_nprdma_svc_reply_dump, data, length,
                            "service: qp 0x%x TX:", conn->qpn);
    ret           = ibv_post_send(conn->qp, &wr, &bad_wr);
    if (ret != 0) {
        ucs_error("service: ibv_post_send() on qp 0x%x failed: %s", conn->qpn,
                  strerror(ret));
        if (slot != NULL) {
            uct_nprdma_bounce_put(slot);
        }
        uct_nprdma_service_conn_stop(service, conn);
        return;
    }

    --service->send_cq_avail;
    ++conn->outstanding;
}


/* ---- receives; called by the executing thread ---- */

static void uct_nprdma_service_post_recv(uct_nprdma_service_t *service,
                                         uct_nprdma_slot_t *slot,
                                         struct ibv_recv_wr *wr,
                                         struct ibv_sge *sge,
                                         struct ibv_recv_wr *next)
{
    sge->addr   = (uintptr_t)slot->data;
    sge->length = UCT_NPRDMA_SVC_SLOT_SIZE;
    sge->lkey   = slot->lkey;
    wr->wr_id   = (uintptr_t)slot;
    wr->next    = next;
    wr->sg_list = sge;
    wr->num_sge = 1;
}

/**
 * Post all free slots to the SRQ. The caller is the executing thread, or the
 * service has not started yet.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR with a logged reason.
 */
static ucs_status_t
uct_nprdma_service_fill_srq(uct_nprdma_service_t *service)
{
    struct ibv_recv_wr *bad_wr;
    struct ibv_recv_wr wr;
    struct ibv_sge sge;
    uct_nprdma_slot_t *slot;
    int ret;

    while ((slot = uct_nprdma_bounce_get(&service->rx_pool)) != NULL) {
        uct_nprdma_service_post_recv(service, slot, &wr, &sge, NULL);
        ret = ibv_post_srq_recv(service->srq, &wr, &bad_wr);
        if (ret != 0) {
            ucs_error("service: ibv_post_srq_recv() failed: %s", strerror(ret));
            return UCS_ERR_IO_ERROR;
        }
    }

    return UCS_OK;
}

/*
 * Half of the slots have requests at once, so peers may have to wait for a free
 * slot: add slots.
 *
 * @return Nonzero if there are more now.
 */
static int uct_nprdma_service_grow(uct_nprdma_service_t *service)
{
    if ((service->rx_pool.num_slots == service->rx_pool.max_slots) ||
        (uct_nprdma_bounce_grow(&service->rx_pool) == 0)) {
        return 0;
    }

    return uct_nprdma_service_fill_srq(service) == UCS_OK;
}


/* ---- requests; called by the executing thread ---- */

/* Parked requests of a connection can perhaps be executed */
static void uct_nprdma_service_resume_later(uct_nprdma_service_t *service,
                                            uct_nprdma_service_conn_t *conn)
{
    if (!conn->is_resuming) {
        conn->is_resuming = 1;
        ucs_list_add_tail(&service->resuming, &conn->resuming);
    }
}

static void uct_nprdma_service_count(uct_nprdma_service_t *service,
                                     const uct_nprdma_svc_request_t *request,
                                     uct_nprdma_svc_status_t status)
{
    uct_nprdma_mem_md_t *md = service->md;
    atomic_uint_fast64_t *counter;

    switch (request->type) {
    case UCT_NPRDMA_SVC_STORE:
        counter = &service->stats.stores;
        break;
    case UCT_NPRDMA_SVC_FETCH:
        counter = &service->stats.fetches;
        break;
    case UCT_NPRDMA_SVC_ATOMIC:
        counter = &service->stats.atomics;
        break;
    case UCT_NPRDMA_SVC_POPULATE:
        counter = &service->stats.populates;
        break;
    default:
        return;
    }

    if ((request->type != UCT_NPRDMA_SVC_POPULATE) &&
        (request->length <= UCT_NPRDMA_SVC_MAX_PAYLOAD)) {
        /* Not an atomic increment: only the executing thread writes it */
        atomic_store_explicit(&md->num_served,
                              atomic_load_explicit(&md->num_served,
                                                   memory_order_relaxed) + 1,
                              memory_order_relaxed);
    }
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    if (ucs_unlikely(status != UCT_NPRDMA_SVC_OK)) {
        atomic_fetch_add_explicit(&service->stats.errors, 1,
                                  memory_order_relaxed);
    }
}

/* Populate the rest of a POPULATE in the background */
static void
uct_nprdma_service_prefetch(uct_nprdma_service_t *service,
                            uct_nprdma_service_conn_t *conn,
                            const uct_nprdma_svc_request_t *request,
                            const uct_nprdma_svc_populated_t *populated)
{
    int is_write                  = request->op & UCT_NPRDMA_SVC_POPULATE_WRITE;
    uct_nprdma_populate_job_t job = {
        .key     = request->key,
        .address = request->address + populated->length,
        .length  = (uint64_t)request->length + request->prefetch -
                   populated->length,
        .access  = is_write ? NPRDMA_REG_ACCESS_PUT : NPRDMA_REG_ACCESS_GET,
        .flags   = is_write ? NPRDMA_POPULATE_WRITE : 0,
        .owner   = conn
    };

    uct_nprdma_populator_add(service->populator, &job);
}

/* Populate the pages of a FETCH for later RDMA READs. They are resident now, so
 * this is fast. */
static void
uct_nprdma_service_populate_fetched(uct_nprdma_service_t *service,
                                    const uct_nprdma_svc_request_t *request)
{
    if (service->md->monitor != NULL) {
        uct_nprdma_populate_step(service->md, request->key, request->address,
                                 request->length, NPRDMA_REG_ACCESS_GET, 0,
                                 NULL, 0);
    }
}

/*
 * Before requests access memory of the application, make sure that faults are
 * reported (ARCHITECTURE 4). That takes one system call for all requests of a
 * batch. The service's own thread, which does not poll, takes two, to check
 * that the handler is installed.
 */
static inline void
uct_nprdma_service_section_begin(uct_nprdma_service_t *service,
                                 const uct_nprdma_svc_request_t *request)
{
    if (!service->in_section && (request->type != UCT_NPRDMA_SVC_NOP) &&
        (request->type != UCT_NPRDMA_SVC_POPULATE)) {
        if (service->by_thread) {
            nprdma_fault_check();
            service->section.blocked = 0;
        } else {
            nprdma_fault_enter(&service->section);
        }
        service->in_section = 1;
    }
}

static inline void uct_nprdma_service_section_end(uct_nprdma_service_t *service)
{
    if (service->in_section) {
        nprdma_fault_leave(&service->section);
        service->in_section = 0;
    }
}

/* A reply also reports the first failure of the requests without one */
static void
uct_nprdma_service_fill_reply(uct_nprdma_service_conn_t *conn,
                              const uct_nprdma_svc_request_t *request,
                              uct_nprdma_svc_status_t status, size_t length,
                              uct_nprdma_svc_reply_t *reply)
{
    reply->type          = UCT_NPRDMA_SVC_REPLY;
    reply->status        = status;
    reply->failed_status = conn->failed_status;
    reply->reserved      = 0;
    reply->sn            = request->sn;
    reply->failed_sn     = conn->failed_sn;
    reply->length        = length;
    conn->failed_status  = 0;
    conn->failed_sn      = 0;
}

/*
 * Execute a request and send its reply.
 *
 * @param [in] limit  Most bytes that a POPULATE populates.
 *
 * @return Zero if the request has to wait until earlier replies are done.
 */
static int uct_nprdma_service_execute(uct_nprdma_service_t *service,
                                      uct_nprdma_service_conn_t *conn,
                                      const uct_nprdma_svc_request_t *request,
                                      uint32_t limit)
{
    int has_reply           = request->flags & UCT_NPRDMA_SVC_FLAG_REPLY;
    size_t max_length       = sizeof(uct_nprdma_svc_reply_t) +
                              uct_nprdma_svc_reply_length(request);
    uct_nprdma_slot_t *slot = NULL;
    uct_nprdma_svc_reply_t *reply;
    uct_nprdma_svc_status_t status;
    char inline_reply[UCT_NPRDMA_SERVICE_INLINE] UCS_V_ALIGNED(8);
    uint64_t result;
    size_t length;

    if (has_reply) {
        if (!uct_nprdma_service_can_reply(service, conn,
                                          max_length > conn->max_inline)) {
            return 0;
        }
        if (max_length > conn->max_inline) {
            slot = uct_nprdma_bounce_get(&service->tx_pool);
        }
    }

    /* Rule "exactly once": a request that waited is executed only now */
    nprdma_assert(request->sn == (conn->sn + 1));
    uct_nprdma_service_section_begin(service, request);
    reply  = (slot == NULL) ? (void*)inline_reply : (void*)slot->data;
    status = uct_nprdma_svc_execute(service->md, request, limit,
                                    has_reply ? (void*)(reply + 1) : &result,
                                    &length);
    uct_nprdma_service_count(service, request, status);
    if (!has_reply) {
        if ((status != UCT_NPRDMA_SVC_OK) && (conn->failed_status == 0)) {
            conn->failed_status = status;
            conn->failed_sn     = request->sn;
        }
        return 1;
    }

    if ((request->type == UCT_NPRDMA_SVC_POPULATE) &&
        (status == UCT_NPRDMA_SVC_OK)) {
        uct_nprdma_trace_packet(uct_nprdma_svc_populated_dump, reply + 1,
                                length, "service: qp 0x%x TX:", conn->qpn);
        uct_nprdma_service_prefetch(service, conn, request,
                                    (void*)(reply + 1));
    }

    uct_nprdma_service_fill_reply(conn, request, status, length, reply);
    uct_nprdma_service_reply(service, conn, reply, sizeof(*reply) + length,
                             slot);
    if ((request->type == UCT_NPRDMA_SVC_FETCH) &&
        (request->op & UCT_NPRDMA_SVC_FETCH_POPULATE) &&
        (status == UCT_NPRDMA_SVC_OK)) {
        uct_nprdma_service_populate_fetched(service, request);
    }
    return 1;
}

/*
 * Whether the time that a request takes is worth to be known: longer ones that
 * the NIC could not serve. Others must not pay for two looks at the clock.
 */
static int
uct_nprdma_service_is_timed(const uct_nprdma_service_t *service,
                            const uct_nprdma_svc_request_t *request)
{
    return (service->parking != NULL) &&
           (uct_nprdma_svc_is_repair(request) ||
            ((request->type == UCT_NPRDMA_SVC_FETCH) &&
             (request->length >= UCT_NPRDMA_SERVICE_TIMED)));
}

/*
 * Execute a request whose turn has come.
 *
 * @return As uct_nprdma_service_execute().
 */
static int uct_nprdma_service_run_one(uct_nprdma_service_t *service,
                                      uct_nprdma_service_conn_t *conn,
                                      const uct_nprdma_svc_request_t *request,
                                      uint32_t limit)
{
    ucs_time_t start;
    long waits;

    if (request->type == UCT_NPRDMA_SVC_FIN) {
        /* Only a conforming peer sends nothing after it, so the queue pair goes
         * to ERR */
        uct_nprdma_service_conn_stop(service, conn);
        return 1;
    }

    if (ucs_unlikely(uct_nprdma_service_is_timed(service, request))) {
        start = ucs_get_time();
        waits = uct_nprdma_svc_parking_num_waits(request);
        if (!uct_nprdma_service_execute(service, conn, request, limit)) {
            return 0;
        }
        uct_nprdma_svc_parking_learn(service->parking, request,
                                     ucs_time_to_usec(ucs_get_time() - start),
                                     waits);
    } else if (!uct_nprdma_service_execute(service, conn, request, limit)) {
        return 0;
    }

    conn->sn = request->sn;
    if (ucs_likely(conn->executed != NULL)) {
        uct_nprdma_executed_add(conn->executed);
    }
    return 1;
}

/*
 * Probe the requester by a WRITE of zero bytes, which completes if its queue
 * pair exists. A reply would detect the same, but without requests there are no
 * replies. If there is no room for a probe, the send queue is full of replies,
 * which detect it.
 */
static void uct_nprdma_service_conn_probe(uct_nprdma_service_t *service,
                                          uct_nprdma_service_conn_t *conn)
{
    struct ibv_send_wr wr = {
        .wr_id      = UCT_NPRDMA_SERVICE_WR_PROBE,
        .opcode     = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED
    };
    struct ibv_send_wr *bad_wr;

    if ((conn->state != UCT_NPRDMA_SERVICE_CONN_READY) || conn->probing ||
        !uct_nprdma_service_can_reply(service, conn, 0)) {
        return;
    }

    if (ibv_post_send(conn->qp, &wr, &bad_wr) == 0) {
        conn->probing = 1;
        ++conn->outstanding;
        ++service->num_probes;
        --service->send_cq_avail;
    }
}

/* The requester may have left. Only the answer to a later probe counts. */
static void uct_nprdma_service_conn_doubt(uct_nprdma_service_conn_t *conn)
{
    conn->is_alive      = 0;
    conn->is_probe_late = conn->probing;
}

/*
 * Find out whether a requester exists.
 *
 * @return Zero if the answer to a probe has to be awaited.
 */
static int uct_nprdma_service_conn_check(uct_nprdma_service_t *service,
                                         uct_nprdma_service_conn_t *conn)
{
    unsigned accepted;

    if (service->parking == NULL) {
        return 1; /* To wait here would delay all other peers */
    }

    do {
        accepted = atomic_load(&service->num_accepted);
        if (accepted != conn->seen_accepted) {
            conn->seen_accepted = accepted;
            uct_nprdma_service_conn_doubt(conn);
        }
        if (!conn->is_alive) {
            uct_nprdma_service_conn_probe(service, conn);
            uct_nprdma_service_reap(service);
            if (!conn->is_alive) {
                return 0;
            }
        }
        /* The requester may have left and connected again meanwhile */
    } while (accepted != atomic_load(&service->num_accepted));

    return 1;
}

/*
 * Whether a request may be executed now.
 *
 * A requester that destroys its endpoint is not heard of, and may connect again
 * and write to the same place. What it sent before that must not be executed
 * later. So a request that changes memory is executed only if the requester has
 * answered a probe that was posted
 *   - after the page came, if a request has waited for one. Those behind it may
 *     be as old, also if they arrive later.
 *   - after the last connection was accepted: that may be of this requester,
 *     and then it has left. A request may have been in the CQ for long.
 *
 * @return Zero if the answer to a probe has to be awaited.
 */
static inline int
uct_nprdma_service_may_change(uct_nprdma_service_t *service,
                              uct_nprdma_service_conn_t *conn,
                              const uct_nprdma_svc_request_t *request)
{
    if ((request->type != UCT_NPRDMA_SVC_STORE) &&
        (request->type != UCT_NPRDMA_SVC_ATOMIC)) {
        return 1;
    }

    return ucs_likely(conn->is_alive &&
                      (conn->seen_accepted ==
                       atomic_load(&service->num_accepted))) ||
           uct_nprdma_service_conn_check(service, conn);
}

/*
 * Execute a request that has arrived, or park it if it waits for pages, for
 * earlier requests of its connection or for a probe.
 *
 * @return Zero if the request can be neither executed nor parked now.
 */
static int uct_nprdma_service_arrived(uct_nprdma_service_t *service,
                                      uct_nprdma_service_conn_t *conn,
                                      const uct_nprdma_svc_request_t *request,
                                      struct ibv_wc *wc)
{
    uct_nprdma_svc_need_t need = { .limit = UINT32_MAX };
    const uct_nprdma_svc_parked_t *parked;

    if (service->parking != NULL) {
        uct_nprdma_svc_parking_need(service->parking, request, &need);
    }

    /* Mostly the answer to a probe is there before a place to park is needed */
    if (ucs_likely((need.pages.count == 0) && (conn->parked.count == 0) &&
                   uct_nprdma_service_may_change(service, conn, request))) {
        return (conn->state != UCT_NPRDMA_SERVICE_CONN_READY) ||
               uct_nprdma_service_run_one(service, conn, request, need.limit);
    }

    do {
        parked = uct_nprdma_svc_parking_add(service->parking, &conn->parked,
                                            conn, (uct_nprdma_slot_t*)wc->wr_id,
                                            request, wc->byte_len, &need);
    } while ((parked == NULL) && uct_nprdma_service_grow(service));
    if (parked == NULL) {
        return 0;
    }

    if (parked->slot != NULL) {
        wc->wr_id = 0; /* uct_nprdma_service_refill() leaves it out */
    }

    if (!parked->is_waiting && (conn->parked.count == 1)) {
        /* There is no thread for its pages, or it waits for a probe */
        uct_nprdma_service_resume_later(service, conn);
    }
    return 1;
}

/*
 * Handle a completion of the receive CQ.
 *
 * @return Zero if the request has to wait until earlier replies are done.
 */
static int uct_nprdma_service_handle(uct_nprdma_service_t *service,
                                     struct ibv_wc *wc)
{
    const uct_nprdma_slot_t *slot = (uct_nprdma_slot_t*)wc->wr_id;
    const uct_nprdma_svc_request_t *request;
    uct_nprdma_service_conn_t *conn;

    conn = uct_nprdma_service_find(service, wc->qp_num);
    if ((conn == NULL) || (conn->state != UCT_NPRDMA_SERVICE_CONN_READY)) {
        return 1; /* late: the connection has been stopped */
    }

    /* The interface is closed, so its peers must see that it is gone. Other
     * interfaces keep the memory domain and this thread. */
    if ((wc->status != IBV_WC_SUCCESS) || conn->released) {
        uct_nprdma_service_conn_stop(service, conn);
        return 1;
    }

    uct_nprdma_trace_packet(uct_nprdma_svc_request_dump, slot->data,
                            wc->byte_len, "service: qp 0x%x RX:", conn->qpn);
    request = uct_nprdma_svc_request_parse(slot->data, wc->byte_len);
    if ((request == NULL) || (request->sn != (conn->arrived_sn + 1))) {
        ucs_error("service: malformed request of %u bytes on qp 0x%x, closing"
                  " the connection", wc->byte_len, conn->qpn);
        uct_nprdma_service_conn_stop(service, conn);
        return 1;
    }

    if (!uct_nprdma_service_arrived(service, conn, request, wc)) {
        return 0;
    }

    conn->arrived_sn = request->sn;
    return 1;
}

/* Post the slots of executed requests to the SRQ again */
static void uct_nprdma_service_refill(uct_nprdma_service_t *service, int first,
                                      int last)
{
    struct ibv_recv_wr *head = NULL;
    struct ibv_recv_wr *bad_wr;
    int i, ret;

    for (i = first; i < last; ++i) {
        if (ucs_unlikely(service->wcs[i].wr_id == 0)) {
            continue; /* Parked */
        }

        uct_nprdma_service_post_recv(
                service, (uct_nprdma_slot_t*)service->wcs[i].wr_id,
                &service->refill_wrs[i], &service->refill_sges[i], head);
        head = &service->refill_wrs[i];
    }

    ret = (head == NULL) ? 0 : ibv_post_srq_recv(service->srq, head, &bad_wr);
    if (ret != 0) {
        ucs_error("service: ibv_post_srq_recv() failed: %s", strerror(ret));
    }
}

/* Post the slot of a request that was parked; it may be NULL */
static void uct_nprdma_service_repost(uct_nprdma_service_t *service,
                                      uct_nprdma_slot_t *slot)
{
    if (slot != NULL) {
        uct_nprdma_bounce_put(slot);
        uct_nprdma_service_fill_srq(service);
    }
}

/*
 * Execute a parked request.
 *
 * @return Zero if it has to wait for its page, earlier replies, or a probe.
 */
static int
uct_nprdma_service_resume_one(uct_nprdma_service_t *service,
                              uct_nprdma_service_conn_t *conn,
                              const uct_nprdma_svc_parked_t *parked)
{
    int i;

    for (i = 0; i < 2; ++i) {
        if ((conn->state != UCT_NPRDMA_SERVICE_CONN_READY) || conn->released) {
            return 0; /* uct_nprdma_service_next_dead() drops it */
        }

        if (uct_nprdma_service_may_change(service, conn, parked->request) &&
            (conn->state == UCT_NPRDMA_SERVICE_CONN_READY) &&
            uct_nprdma_service_run_one(service, conn, parked->request,
                                       parked->limit)) {
            return 1;
        }
        uct_nprdma_service_reap(service);
    }
    return 0;
}

/* The first parked request of a connection, if it does not wait for its pages;
 * or NULL. uct_nprdma_service_next_dead() drops those of an ended one. */
static uct_nprdma_svc_parked_t *
uct_nprdma_service_first_ready(uct_nprdma_service_conn_t *conn)
{
    uct_nprdma_svc_parked_t *parked;

    if ((conn->parked.count == 0) || conn->released ||
        (conn->state != UCT_NPRDMA_SERVICE_CONN_READY)) {
        return NULL;
    }

    parked = ucs_queue_head_elem_non_empty(&conn->parked.queue,
                                           uct_nprdma_svc_parked_t, queue);
    return parked->is_waiting ? NULL : parked;
}

/*
 * Execute the first parked request of a connection that is being resumed.
 *
 * @return Nonzero if it was executed.
 */
static int uct_nprdma_service_resume(uct_nprdma_service_t *service,
                                     uct_nprdma_service_conn_t *conn)
{
    uct_nprdma_svc_parked_t *parked = uct_nprdma_service_first_ready(conn);

    if (parked != NULL) {
        if (!uct_nprdma_service_resume_one(service, conn, parked)) {
            return 0; /* A completion of a send wakes the thread */
        }
        uct_nprdma_service_repost(service,
                                  uct_nprdma_svc_parking_pop(service->parking,
                                                             &conn->parked));
    }

    ucs_list_del(&conn->resuming);
    conn->is_resuming = 0;
    if (uct_nprdma_service_first_ready(conn) != NULL) {
        uct_nprdma_service_resume_later(service, conn);
    }
    return parked != NULL;
}

/* Find the connections of the requests whose pages have come */
static void uct_nprdma_service_take_pages(uct_nprdma_service_t *service)
{
    uct_nprdma_service_conn_t *conn;
    uct_nprdma_svc_parked_t *parked;

    if (!atomic_exchange(&service->pages_came, 0)) {
        return;
    }

    while ((parked = uct_nprdma_svc_parking_take(service->parking)) != NULL) {
        conn = parked->conn;
        if (conn != NULL) {
            uct_nprdma_service_conn_doubt(conn);
            uct_nprdma_service_resume_later(service, conn);
        } else {
            uct_nprdma_service_repost(
                    service, uct_nprdma_svc_parking_release(service->parking,
                                                            parked));
        }
    }
}

/*
 * Execute parked requests whose pages have come: one of each connection in
 * turn, and only a few, because the requests of other peers do not wait for all
 * of them.
 *
 * @return Number of requests executed.
 */
static unsigned uct_nprdma_service_resume_some(uct_nprdma_service_t *service)
{
    unsigned count = 0;
    uct_nprdma_service_conn_t *conn, *tmp;

    if (ucs_likely(!atomic_load_explicit(&service->pages_came,
                                         memory_order_relaxed) &&
                   ucs_list_is_empty(&service->resuming))) {
        return 0;
    }

    uct_nprdma_service_take_pages(service);
    ucs_list_for_each_safe(conn, tmp, &service->resuming, resuming) {
        count += uct_nprdma_service_resume(service, conn);
        if (count == UCT_NPRDMA_SERVICE_RESUME) {
            break;
        }
    }
    return count;
}

/* Drop the parked requests of a connection that has ended */
static void uct_nprdma_service_drop_parked(uct_nprdma_service_t *service,
                                           uct_nprdma_service_conn_t *conn)
{
    if (conn->is_resuming) {
        ucs_list_del(&conn->resuming);
        conn->is_resuming = 0;
    }

    while (conn->parked.count > 0) {
        uct_nprdma_service_repost(service,
                                  uct_nprdma_svc_parking_drop(service->parking,
                                                              &conn->parked));
    }
}

/* Those that were asked longest ago come first. The rest is asked when a probe
 * has completed. */
static void uct_nprdma_service_probe_conns(uct_nprdma_service_t *service)
{
    uct_nprdma_service_conn_t *conn, *tmp;

    if (!atomic_exchange(&service->probe_wanted, 0)) {
        return;
    }

    pthread_mutex_lock(&service->conns_lock);
    ucs_list_for_each_safe(conn, tmp, &service->conns, list) {
        if (!conn->probe_wanted) {
            continue;
        } else if (service->num_probes >= UCT_NPRDMA_CM_MAX_PROBES) {
            service->probe_wanted = 1;
            break;
        }

        conn->probe_wanted = 0;
        ucs_list_del(&conn->list);
        ucs_list_add_tail(&service->conns, &conn->list);
        uct_nprdma_service_conn_probe(service, conn);
    }
    pthread_mutex_unlock(&service->conns_lock);
}

/*
 * Find a connection with a queue pair that can be destroyed now, and remove it
 * from the table.
 *
 * @return The connection, or NULL.
 */
static uct_nprdma_service_conn_t *
uct_nprdma_service_next_dead(uct_nprdma_service_t *service)
{
    uct_nprdma_service_conn_t *dead = NULL;
    uct_nprdma_service_conn_t *conn, *tmp;
    khiter_t iter;

    pthread_mutex_lock(&service->conns_lock);
    ucs_list_for_each_safe(conn, tmp, &service->conns, list) {
        if (conn->released) {
            uct_nprdma_service_conn_stop(service, conn);
        }

        if (conn->state == UCT_NPRDMA_SERVICE_CONN_CLOSED) {
            if (conn->released) {
                ucs_list_del(&conn->list);
                ucs_free(conn);
            }
        } else if (conn->state == UCT_NPRDMA_SERVICE_CONN_CLOSING) {
            uct_nprdma_service_drop_parked(service, conn);
            if ((conn->outstanding == 0) &&
                (conn->drain != service->num_drained)) {
                dead = conn;
                break;
            }
            service->attention = 1; /* Check again when its replies are done */
        }
    }

    if (dead != NULL) {
        iter = kh_get(uct_nprdma_service_conns, &service->conns_hash,
                      dead->qpn);
        kh_del(uct_nprdma_service_conns, &service->conns_hash, iter);
        --service->super.num_conns;
    }
    pthread_mutex_unlock(&service->conns_lock);
    return dead;
}

/* No more requests of a connection will be executed */
static void
uct_nprdma_service_end_executed(uct_nprdma_service_conn_t *conn)
{
    if (conn->executed != NULL) {
        uct_nprdma_executed_end(conn->executed);
        uct_nprdma_executed_leave(conn->executed);
        conn->executed = NULL;
    }
}

/* Send the probes that the cm wants, and destroy connections that have ended */
static void uct_nprdma_service_reclaim(uct_nprdma_service_t *service)
{
    uct_nprdma_service_conn_t *conn;

    service->attention = 0;
    uct_nprdma_service_probe_conns(service);
    while ((conn = uct_nprdma_service_next_dead(service)) != NULL) {
        service->md->super.verbs->destroy_qp(conn->qp);
        uct_nprdma_populator_cancel(service->populator, conn);
        uct_nprdma_service_end_executed(conn);
        conn->state = UCT_NPRDMA_SERVICE_CONN_CLOSED;
    }
}

/* Poll the receive CQ, when all completions polled before are handled */
static inline void uct_nprdma_service_poll(uct_nprdma_service_t *service)
{
    int num_wcs = ibv_poll_cq(service->recv_cq, UCT_NPRDMA_SERVICE_BATCH,
                              service->wcs);

    service->next_wc = 0;
    service->num_wcs = ucs_max(num_wcs, 0);
    if (num_wcs <= 0) {
        ++service->num_drained;
    } else if (ucs_unlikely(2 * (unsigned)num_wcs >=
                            service->rx_pool.num_slots)) {
        uct_nprdma_service_grow(service);
    }
}

/*
 * Execute or park the requests that have arrived, up to a batch.
 *
 * @param [out] blocked_p  Set to 1 if the next one waits until earlier replies
 *                         are done, or parked ones are executed.
 *
 * @return Number of requests.
 */
static inline unsigned
uct_nprdma_service_handle_some(uct_nprdma_service_t *service, int *blocked_p)
{
    int first;

    if (service->next_wc == service->num_wcs) {
        uct_nprdma_service_poll(service);
        if (service->num_wcs == 0) {
            return 0;
        }
    }

    for (first = service->next_wc; service->next_wc < service->num_wcs;
         ++service->next_wc) {
        if (!uct_nprdma_service_handle(service,
                                       &service->wcs[service->next_wc])) {
            uct_nprdma_service_reap(service);
            if (!uct_nprdma_service_handle(service,
                                           &service->wcs[service->next_wc])) {
                *blocked_p = 1;
                break;
            }
        }
    }

    uct_nprdma_service_refill(service, first, service->next_wc);
    if (service->parking != NULL) {
        uct_nprdma_svc_parking_kick(service->parking);
    }
    return service->next_wc - first;
}

/* The executing thread has executed some requests, and executes no more now */
static void uct_nprdma_service_ran(uct_nprdma_service_t *service,
                                   unsigned count)
{
    uct_nprdma_service_section_end(service);
    if (count > 0) {
        atomic_fetch_add_explicit(&service->num_executed, count,
                                  memory_order_relaxed);
        uct_nprdma_service_reap(service);
    }

    if (ucs_unlikely(service->attention || (service->num_probes > 0))) {
        uct_nprdma_service_reap(service);
    }

    if (ucs_unlikely(service->attention)) {
        uct_nprdma_service_reclaim(service);
    }
}

/**
 * Execute requests. The caller is the executing thread.
 *
 * @param [in]  service    Service.
 * @param [in]  max        Number of requests after which to stop; up to a batch
 *                         more may be executed.
 * @param [out] blocked_p  Nonzero if requests wait until earlier replies are
 *                         done.
 *
 * @return Number of requests executed.
 */
static unsigned
uct_nprdma_service_run(uct_nprdma_service_t *service, unsigned max,
                       int *blocked_p)
{
    unsigned count = 0;
    unsigned num;

    *blocked_p = 0;
    do {
        num    = uct_nprdma_service_resume_some(service);
        num   += uct_nprdma_service_handle_some(service, blocked_p);
        count += num;
    } while ((num > 0) && (count < max) && !*blocked_p);

    uct_nprdma_service_ran(service, count);
    *blocked_p |= !ucs_list_is_empty(&service->resuming);
    return count;
}

unsigned uct_nprdma_service_progress_active(uct_nprdma_service_t *service)
{
    unsigned count;
    int blocked;

    if (!uct_nprdma_service_try_begin(service)) {
        return 0;
    }

    /* Not an atomic increment: only the executing thread writes it */
    atomic_store_explicit(&service->num_polls,
                          atomic_load_explicit(&service->num_polls,
                                               memory_order_relaxed) + 1,
                          memory_order_relaxed);
    service->by_thread = 0;
    count = uct_nprdma_service_run(service, UCT_NPRDMA_SERVICE_MAX_REQUESTS,
                                   &blocked);
    uct_nprdma_service_end(service);
    return count;
}

void uct_nprdma_service_populate_async(uct_nprdma_service_t *service,
                                       const uct_nprdma_mem_t *mem,
                                       int is_write)
{
    uct_nprdma_populate_job_t job = {
        .key     = nprdma_reg_key(mem->reg),
        .address = nprdma_reg_address(mem->reg),
        .length  = nprdma_reg_length(mem->reg),
        .flags   = NPRDMA_POPULATE_RESIDENT |
                   (is_write ? NPRDMA_POPULATE_WRITE : 0)
    };

    if (mem->has_region) {
        uct_nprdma_populator_add(service->populator, &job);
    }
}

void uct_nprdma_service_query(uct_nprdma_service_t *service,
                              uct_nprdma_mem_stats_t *stats)
{
    uct_nprdma_populator_stats_t populator;

    uct_nprdma_populator_query(service->populator, &populator);
    stats->served_stores    = service->stats.stores;
    stats->served_fetches   = service->stats.fetches;
    stats->served_atomics   = service->stats.atomics;
    stats->served_populates = service->stats.populates;
    stats->served_errors    = service->stats.errors;
    stats->prefetch_jobs    = populator.jobs;
    stats->prefetch_dropped = populator.dropped;
    stats->prefetch_bytes   = populator.bytes;
    stats->prefetch_waiting = populator.waiting;
    uct_nprdma_svc_parking_query(service->parking, stats);
}


/* ---- the thread ---- */

/* Wake the thread */
static void
uct_nprdma_service_thread_wakeup(uct_nprdma_service_t *service)
{
    uint64_t one = 1;
    ssize_t ret  = write(service->wakeup_fd, &one, sizeof(one));

    /* The write fails only if the counter is full, and then the thread is
     * awake */
    (void)ret;
}

/* Pages for a parked request have come; in a thread that brings them in.
 * Progress or the service's thread executes the request. */
static void uct_nprdma_service_notify(void *arg)
{
    uct_nprdma_service_t *service = arg;

    if (!atomic_exchange(&service->pages_came, 1)) {
        uct_nprdma_service_thread_wakeup(service);
    }
}

/* Wait until no other thread executes. Progress executes a few requests at a
 * time, and while it does the thread is not needed. */
static void uct_nprdma_service_begin(uct_nprdma_service_t *service)
{
    struct timespec interval = { .tv_nsec = UCT_NPRDMA_SERVICE_RETRY_NS };

    while (!uct_nprdma_service_try_begin(service)) {
        nanosleep(&interval, NULL);
    }
    service->by_thread = 1;
}

static int uct_nprdma_service_drain(uct_nprdma_service_t *service)
{
    int blocked;

    uct_nprdma_service_begin(service);
    while (uct_nprdma_service_run(service, UCT_NPRDMA_SERVICE_MAX_REQUESTS,
                                  &blocked) > 0) {
        /* Let progress execute */
        uct_nprdma_service_end(service);
        uct_nprdma_service_begin(service);
    }
    blocked = blocked || service->attention || (service->num_probes > 0);
    uct_nprdma_service_end(service);
    return blocked;
}

/* Request an event, and execute the requests that arrived before that */
static void uct_nprdma_service_arm(uct_nprdma_service_t *service)
{
    ibv_req_notify_cq(service->recv_cq, 0);
    if (uct_nprdma_service_drain(service)) {
        ibv_req_notify_cq(service->send_cq, 0);
        uct_nprdma_service_drain(service);
    }
}

static void uct_nprdma_service_get_events(uct_nprdma_service_t *service)
{
    struct ibv_cq *cq;
    void *cq_context;
    uint64_t value;
    ssize_t ret;

    while (service->md->super.verbs->get_cq_event(service->channel, &cq,
                                            &cq_context) == 0) {
        service->md->super.verbs->ack_cq_events(cq, 1);
    }

    ret = read(service->wakeup_fd, &value, sizeof(value));
    (void)ret; /* Not readable if the event came from the channel */
}

/*
 * Wait while the application's progress executes requests.
 */
static void uct_nprdma_service_back_off(uct_nprdma_service_t *service)
{
    struct timespec interval = { .tv_nsec = UCT_NPRDMA_SERVICE_BACKOFF_NS };
    unsigned num_executed, num_polls;
    struct pollfd pfd;

    do {
        num_executed = service->num_executed;
        num_polls    = service->num_polls;
        pfd.fd       = service->wakeup_fd;
        pfd.events   = POLLIN;
        if (ppoll(&pfd, 1, &interval, NULL) > 0) {
            break;
        }
    } while ((service->num_polls != num_polls) &&
             (service->num_executed != num_executed));
}

/*
 * With one CPU per rank the thread must preempt an application that computes,
 * and a peer waits for that. Linux 6.12 and later allows a thread with a
 * shorter time slice to preempt at once, without privileges. On earlier
 * versions, or if this is refused, the thread waits under high load for the end
 * of the application's slice.
 */
static void uct_nprdma_service_thread_shorten_slice(void)
{
    uct_nprdma_sched_attr_t attr = { .size = sizeof(attr) };

    if ((syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) == 0) &&
        (attr.policy == SCHED_OTHER)) {
        attr.runtime = UCT_NPRDMA_SERVICE_SLICE_NS;
        (void)syscall(SYS_sched_setattr, 0, &attr, 0);
    }
}

static void *uct_nprdma_service_thread(void *arg)
{
    uct_nprdma_service_t *service = arg;
    unsigned num_polls            = service->num_polls;
    struct pollfd pfds[2];

    uct_nprdma_service_thread_shorten_slice();

    pfds[0].fd     = service->channel->fd;
    pfds[0].events = POLLIN;
    pfds[1].fd     = service->wakeup_fd;
    pfds[1].events = POLLIN;

    while (!service->stop) {
        uct_nprdma_service_arm(service);
        poll(pfds, 2, -1);
        uct_nprdma_service_get_events(service);
        uct_nprdma_service_drain(service);
        if (service->num_polls != num_polls) {
            uct_nprdma_service_back_off(service);
            num_polls = service->num_polls;
        }
    }

    return NULL;
}

static void uct_nprdma_service_report_no_thread(uct_nprdma_service_t *service,
                                                int error)
{
    struct rlimit limit;

    if (!service->reported_no_thread &&
        (getrlimit(RLIMIT_NPROC, &limit) == 0)) {
        ucs_warn("%s: no thread for the service: %s (ulimit -u is %zu): "
                 "requests of peers wait until this process calls progress",
                 service->md->super.name, strerror(error),
                 (size_t)limit.rlim_cur);
        service->reported_no_thread = 1;
    }
}

/**
 * Start the thread of a started service, unless it runs. If the limit of
 * threads is reached, the service works without it: one message says that only
 * progress executes requests, and the next call tries again. The caller holds
 * the start lock.
 */
static void
uct_nprdma_service_thread_start(uct_nprdma_service_t *service)
{
    int ret;

    if (service->has_thread) {
        return;
    }

    service->stop = 0;
    ret = nprdma_thread_start_accessing(&service->thread,
                                        uct_nprdma_service_thread, service);
    if (ret != 0) {
        uct_nprdma_service_report_no_thread(service, ret);
        return;
    }

    service->has_thread = 1;
    pthread_setname_np(service->thread, "nprdma-service");
}

/* Stop the thread, if it runs, and join it */
static void
uct_nprdma_service_thread_stop(uct_nprdma_service_t *service)
{
    if (!service->has_thread) {
        return;
    }

    service->stop = 1;
    uct_nprdma_service_thread_wakeup(service);
    pthread_join(service->thread, NULL);
    service->has_thread = 0;
}


/* ---- start and end ---- */

static ucs_status_t uct_nprdma_service_lacks(uct_nprdma_service_t *service,
                                             const char *what)
{
    ucs_error("%s: service: %s failed: %m", service->md->super.name, what);
    return UCS_ERR_IO_ERROR;
}

static ucs_status_t uct_nprdma_service_create_cqs(uct_nprdma_service_t *service,
                                                  unsigned recv_cq_len)
{
    const uct_nprdma_verbs_t *verbs = service->md->super.verbs;
    struct ibv_context *context     = service->md->super.context;
    ucs_status_t status;

    service->recv_cq = verbs->create_cq(context, recv_cq_len, NULL,
                                        service->channel, 0);
    if (service->recv_cq == NULL) {
        return uct_nprdma_service_lacks(service, "ibv_create_cq()");
    }

    service->send_cq = verbs->create_cq(context, UCT_NPRDMA_SERVICE_SEND_CQ_LEN,
                                        NULL, service->channel, 0);
    if (service->send_cq == NULL) {
        status = uct_nprdma_service_lacks(service, "ibv_create_cq()");
        verbs->destroy_cq(service->recv_cq);
        return status;
    }

    service->send_cq_avail = UCT_NPRDMA_SERVICE_SEND_CQ_LEN;
    return UCS_OK;
}

static void uct_nprdma_service_destroy_cqs(uct_nprdma_service_t *service)
{
    const uct_nprdma_verbs_t *verbs = service->md->super.verbs;

    verbs->destroy_cq(service->send_cq);
    verbs->destroy_cq(service->recv_cq);
}

static ucs_status_t uct_nprdma_service_start(uct_nprdma_service_t *service)
{
    struct ibv_srq_init_attr srq_attr = {};
    uct_nprdma_mem_md_t *md           = service->md;
    ucs_status_t status;

    status = uct_nprdma_bounce_init(&service->rx_pool, &md->super,
                                    UCT_NPRDMA_SVC_SLOT_SIZE,
                                    service->num_slots,
                                    ucs_min(service->num_slots, 4u),
                                    "service requests");
    if (status != UCS_OK) {
        goto err;
    }

    status = uct_nprdma_bounce_init(&service->tx_pool, &md->super,
                                    UCT_NPRDMA_SVC_SLOT_SIZE,
                                    UCT_NPRDMA_SERVICE_TX_SLOTS, 2,
                                    "service replies");
    if (status != UCS_OK) {
        goto err_rx_pool;
    }

    status = uct_nprdma_service_create_cqs(service, service->num_slots);
    if (status != UCS_OK) {
        goto err_tx_pool;
    }

    srq_attr.attr.max_wr  = service->num_slots;
    srq_attr.attr.max_sge = 1;
    service->srq          = md->super.verbs->create_srq(md->super.pd,
                                                        &srq_attr);
    if (service->srq == NULL) {
        status = uct_nprdma_service_lacks(service, "ibv_create_srq()");
        goto err_cqs;
    }

    status = uct_nprdma_service_fill_srq(service);
    if (status != UCS_OK) {
        goto err_srq;
    }

    service->started = 1;
    return UCS_OK;

err_srq:
    md->super.verbs->destroy_srq(service->srq);
err_cqs:
    uct_nprdma_service_destroy_cqs(service);
err_tx_pool:
    uct_nprdma_bounce_cleanup(&service->tx_pool);
err_rx_pool:
    uct_nprdma_bounce_cleanup(&service->rx_pool);
err:
    return status;
}

/* The descriptors, which a program may not have any more when the first peer
 * connects. That peer would wait for them until it gives up. */
static ucs_status_t uct_nprdma_service_open_fds(uct_nprdma_service_t *service)
{
    const uct_nprdma_verbs_t *verbs = service->md->super.verbs;
    int flags;

    service->channel = verbs->create_comp_channel(service->md->super.context);
    if (service->channel == NULL) {
        goto err;
    }

    service->wakeup_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (service->wakeup_fd < 0) {
        goto err_channel;
    }

    flags = fcntl(service->channel->fd, F_GETFL);
    if (fcntl(service->channel->fd, F_SETFL, flags | O_NONBLOCK) == 0) {
        return UCS_OK;
    }

    close(service->wakeup_fd);
err_channel:
    verbs->destroy_comp_channel(service->channel);
err:
    ucs_error("%s: service: no completion channel or eventfd: %m",
              service->md->super.name);
    return UCS_ERR_IO_ERROR;
}

static void uct_nprdma_service_close_fds(uct_nprdma_service_t *service)
{
    service->md->super.verbs->destroy_comp_channel(service->channel);
    close(service->wakeup_fd);
}

ucs_status_t uct_nprdma_service_create(uct_nprdma_mem_md_t *md,
                                       unsigned num_slots, unsigned num_threads,
                                       uct_nprdma_service_t **service_p)
{
    uct_nprdma_service_t *service;
    ucs_status_t status;

    service = ucs_calloc(1, sizeof(*service), "nprdma_service");
    if (service == NULL) {
        ucs_error("failed to allocate the service of %s", md->super.name);
        return UCS_ERR_NO_MEMORY;
    }

    service->md = md;
    status      = uct_nprdma_service_open_fds(service);
    if (status != UCS_OK) {
        goto err_free;
    }

    status = uct_nprdma_populator_create(md, &service->populator);
    if (status != UCS_OK) {
        goto err_fds;
    }

    /* If that fails, a line in the log says why, and requests are not parked */
    if (num_threads > 0) {
        (void)uct_nprdma_svc_parking_create(md, num_threads,
                                            uct_nprdma_service_notify, service,
                                            &service->parking);
    }

    service->num_slots = num_slots;
    pthread_mutex_init(&service->start_lock, NULL);
    pthread_mutex_init(&service->conns_lock, NULL);
    kh_init_inplace(uct_nprdma_service_conns, &service->conns_hash);
    ucs_list_head_init(&service->conns);
    ucs_list_head_init(&service->resuming);
    *service_p = service;
    return UCS_OK;

err_fds:
    uct_nprdma_service_close_fds(service);
err_free:
    ucs_free(service);
    return status;
}

static void uct_nprdma_service_stop(uct_nprdma_service_t *service)
{
    const uct_nprdma_verbs_t *verbs = service->md->super.verbs;
    uct_nprdma_service_conn_t *conn, *tmp;

    uct_nprdma_service_thread_stop(service);
    if (service->parking != NULL) {
        uct_nprdma_svc_parking_destroy(service->parking);
        service->parking = NULL;
    }
    ucs_list_for_each_safe(conn, tmp, &service->conns, list) {
        if (conn->state != UCT_NPRDMA_SERVICE_CONN_CLOSED) {
            verbs->destroy_qp(conn->qp);
            uct_nprdma_service_end_executed(conn);
        }
        ucs_list_del(&conn->list);
        ucs_free(conn);
    }

    verbs->destroy_srq(service->srq);
    uct_nprdma_service_destroy_cqs(service);
    uct_nprdma_bounce_cleanup(&service->tx_pool);
    uct_nprdma_bounce_cleanup(&service->rx_pool);
}

void uct_nprdma_service_destroy(uct_nprdma_service_t *service)
{
    if (service->started) {
        uct_nprdma_service_stop(service);
    }
    if (service->parking != NULL) {
        uct_nprdma_svc_parking_destroy(service->parking);
    }
    uct_nprdma_populator_destroy(service->populator);
    uct_nprdma_service_close_fds(service);

    kh_destroy_inplace(uct_nprdma_service_conns, &service->conns_hash);
    pthread_mutex_destroy(&service->conns_lock);
    pthread_mutex_destroy(&service->start_lock);
    ucs_free(service);
}


/* ---- connections ---- */

static ucs_status_t
uct_nprdma_service_conn_create_qp(uct_nprdma_service_t *service,
                                  uint8_t port_num,
                                  const uct_nprdma_qp_addr_t *peer,
                                  uint32_t local_psn,
                                  uct_nprdma_service_conn_t *conn)
{
    uct_nprdma_qp_params_t params = {
        .send_cq     = service->send_cq,
        .recv_cq     = service->recv_cq,
        .srq         = service->srq,
        .max_send_wr = UCT_NPRDMA_SERVICE_SQ_LEN,
        .max_inline  = UCT_NPRDMA_SERVICE_INLINE,
        .qp_context  = conn
    };
    uint32_t max_inline;
    ucs_status_t status;

    status = uct_nprdma_qp_create(&service->md->super, port_num, &params,
                                  &conn->qp, &max_inline);
    if (status != UCS_OK) {
        return status;
    }

    /* A requester posts the receive for a reply before it sends the request.
     * Therefore the reply is not repeated without a receive: that would delay
     * all other peers. */
    status = uct_nprdma_qp_connect(&service->md->super, port_num, conn->qp,
                                   local_psn, peer,
                                   &service->md->super.config.path, 0);
    if (status != UCS_OK) {
        service->md->super.verbs->destroy_qp(conn->qp);
        return status;
    }

    ucs_queue_head_init(&conn->parked.queue);
    conn->qpn        = conn->qp->qp_num;
    conn->is_alive   = 1;
    conn->max_inline = ucs_min(max_inline, (uint32_t)UCT_NPRDMA_SERVICE_INLINE);
    return UCS_OK;
}

ucs_status_t
uct_nprdma_service_accept(uct_nprdma_service_t *service, uint8_t port_num,
                          const uct_nprdma_qp_addr_t *peer, uint32_t local_psn,
                          uct_nprdma_executed_t *executed,
                          uct_nprdma_service_conn_t **conn_p, uint32_t *qpn_p)
{
    uct_nprdma_service_conn_t *conn;
    ucs_status_t status = UCS_OK;
    khiter_t iter;
    int ret;

    pthread_mutex_lock(&service->start_lock);
    if (!service->started) {
        status = uct_nprdma_service_start(service);
    }
    if (status == UCS_OK) {
        uct_nprdma_service_thread_start(service);
    }
    pthread_mutex_unlock(&service->start_lock);
    if (status != UCS_OK) {
        return status;
    }

    conn = ucs_calloc(1, sizeof(*conn), "nprdma_service_conn");
    if (conn == NULL) {
        ucs_error("failed to allocate a service connection");
        return UCS_ERR_NO_MEMORY;
    }

    /*
     * The peer cannot send before it knows this queue pair's number, so the
     * connection is counted, and in the table, in time.
     */
    conn->seen_accepted = atomic_fetch_add(&service->num_accepted, 1) + 1;
    status = uct_nprdma_service_conn_create_qp(service, port_num, peer,
                                               local_psn, conn);
    if (status != UCS_OK) {
        ucs_free(conn);
        return status;
    }

    pthread_mutex_lock(&service->conns_lock);
    iter = kh_put(uct_nprdma_service_conns, &service->conns_hash, conn->qpn,
                  &ret);
    if (ret < 0) {
        pthread_mutex_unlock(&service->conns_lock);
        ucs_error("failed to allocate a service connection");
        service->md->super.verbs->destroy_qp(conn->qp);
        ucs_free(conn);
        return UCS_ERR_NO_MEMORY;
    }

    if (executed != NULL) {
        conn->executed = executed;
        uct_nprdma_executed_join(executed);
    }
    kh_value(&service->conns_hash, iter) = conn;
    ucs_list_add_tail(&service->conns, &conn->list);
    ++service->super.num_conns;
    pthread_mutex_unlock(&service->conns_lock);

    *conn_p = conn;
    *qpn_p  = conn->qpn;
    return UCS_OK;
}

int uct_nprdma_service_conn_is_closed(const uct_nprdma_service_conn_t *conn)
{
    return conn->state == UCT_NPRDMA_SERVICE_CONN_CLOSED;
}

void uct_nprdma_service_probe(uct_nprdma_service_t *service,
                              uct_nprdma_service_conn_t *conn)
{
    /* The executing thread posts the probe, because it owns the queue pair. One
     * wake-up is enough for all connections that are probed at the same
     * time. */
    conn->probe_wanted = 1;
    if (!atomic_exchange(&service->probe_wanted, 1)) {
        service->attention = 1;
        uct_nprdma_service_thread_wakeup(service);
    }
}

void uct_nprdma_service_release(uct_nprdma_service_t *service,
                                uct_nprdma_service_conn_t *conn)
{
    /* The executing thread does the rest, because it may be using the
     * connection. But it may do so late, and the interface is closed: from now
     * on the peer must not write by this queue pair either. The lock keeps it
     * from being destroyed. */
    pthread_mutex_lock(&service->conns_lock);
    if (conn->state == UCT_NPRDMA_SERVICE_CONN_READY) {
        uct_nprdma_qp_to_err(&service->md->super, conn->qp);
    }
    conn->released = 1;
    pthread_mutex_unlock(&service->conns_lock);
    service->attention = 1;
    uct_nprdma_service_thread_wakeup(service);
}
