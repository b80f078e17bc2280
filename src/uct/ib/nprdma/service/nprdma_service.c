/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service.h"
#include "nprdma_service_conn.h"
#include "nprdma_service_execute.h"
#include "nprdma_service_run.h"

#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/net/nprdma_qp.h"

#include <nprdma_thread.h>

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Maximum number of outstanding replies in all */
#define UCT_NPRDMA_SERVICE_SEND_CQ_LEN  1024

/* Maximum number of slots for results of fetches that are not sent inline */
#define UCT_NPRDMA_SERVICE_TX_SLOTS     16

/* Interval of the thread while the application calls progress. When progress
 * stops, a request waits for at most two of them. */
#define UCT_NPRDMA_SERVICE_BACKOFF_NS   300000

/* Time between tries of the thread while progress executes requests */
#define UCT_NPRDMA_SERVICE_RETRY_NS     20000

/* Looks of a new connection at the request that is being executed, in such
 * intervals, before the peer has to ask again */
#define UCT_NPRDMA_SERVICE_SETTLE       10

/* Time slice that the thread requests; 100 us is the shortest that Linux
 * grants */
#define UCT_NPRDMA_SERVICE_SLICE_NS     100000

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

void uct_nprdma_service_populate_async(uct_nprdma_service_t *service,
                                       const uct_nprdma_mem_t *mem,
                                       uintptr_t address, size_t length,
                                       unsigned flags)
{
    uct_nprdma_populate_t range = {
        .key     = nprdma_reg_key(mem->reg),
        .address = address,
        .length  = length,
        .flags   = flags
    };

    /* A child made by fork() has no thread, and the lock may be held for ever
     * there */
    if (mem->has_region && uct_nprdma_device_is_owner(&service->md->super)) {
        uct_nprdma_pager_populate(service->pager, &range);
    }
}

void uct_nprdma_service_query(uct_nprdma_service_t *service,
                              uct_nprdma_mem_stats_t *stats)
{
    uct_nprdma_pager_stats_t pager;

    uct_nprdma_pager_query(service->pager, &pager);
    stats->served_stores    = service->served[UCT_NPRDMA_SVC_STORE];
    stats->served_fetches   = service->served[UCT_NPRDMA_SVC_FETCH];
    stats->served_atomics   = service->served[UCT_NPRDMA_SVC_ATOMIC];
    stats->served_populates = service->served[UCT_NPRDMA_SVC_POPULATE];
    stats->served_errors    = service->served_errors;
    stats->prefetch_jobs    = pager.ranges;
    stats->prefetch_dropped = pager.dropped;
    stats->prefetch_waiting = pager.populating;
    stats->pagein_jobs      = pager.jobs;
    stats->pagein_slow      = pager.slow;
    stats->pagein_peak      = pager.peak;
    stats->pagein_threads   = pager.threads;
}

/* ---- the thread ---- */

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

static ucs_status_t
uct_nprdma_service_populate(void *arg, const uct_nprdma_populate_t *range,
                            uint64_t length)
{
    uct_nprdma_service_t *service = arg;

    return uct_nprdma_service_populate_step(service->md, range, length, 0,
                                            NULL, 0);
}

static const uct_nprdma_pager_ops_t uct_nprdma_service_pager_ops = {
    .notify   = uct_nprdma_service_notify,
    .populate = uct_nprdma_service_populate
};

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
    while (uct_nprdma_service_run(service, &blocked) > 0) {
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

/* Wait while the application's progress executes requests */
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

/* With one CPU per rank the thread must preempt an application that computes,
 * and a peer waits for that. Linux 6.12 and later allows a thread with a
 * shorter time slice to preempt at once, without privileges. On earlier
 * versions, or if this is refused, the thread waits under high load for the end
 * of the application's slice. */
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

/* Start the thread of a started service, unless it runs. If the limit of
 * threads is reached, the service works without it: one message says that only
 * progress executes requests, and the next call tries again. The caller holds
 * the start lock. */
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
    size_t slot_size = UCT_NPRDMA_SVC_SLOT(md->super.config.max_piece);
    ucs_status_t status;

    status = uct_nprdma_bounce_init(&service->rx_pool, &md->super, slot_size,
                                    service->num_slots,
                                    ucs_min(service->num_slots, 4u),
                                    "service requests");
    if (status != UCS_OK) {
        goto err;
    }

    status = uct_nprdma_bounce_init(&service->tx_pool, &md->super, slot_size,
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

    status = uct_nprdma_pager_create(num_threads, md->super.name,
                                     &uct_nprdma_service_pager_ops, service,
                                     &service->pager);
    if (status != UCS_OK) {
        goto err_fds;
    }

    service->num_slots = num_slots;
    pthread_mutex_init(&service->start_lock, NULL);
    pthread_mutex_init(&service->conns_lock, NULL);
    kh_init_inplace(uct_nprdma_service_conns, &service->conns_hash);
    ucs_list_head_init(&service->conns);
    ucs_list_head_init(&service->resuming);
    ucs_queue_head_init(&service->free_parked);
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
    uct_nprdma_service_thread_stop(service);
    uct_nprdma_pager_destroy(service->pager);
    if (service->started) {
        uct_nprdma_service_stop(service);
    }
    uct_nprdma_service_close_fds(service);

    kh_destroy_inplace(uct_nprdma_service_conns, &service->conns_hash);
    pthread_mutex_destroy(&service->conns_lock);
    pthread_mutex_destroy(&service->start_lock);
    ucs_free(service);
}

/* ---- connections ---- */

static ucs_status_t
uct_nprdma_service_conn_new(uct_nprdma_service_t *service, uint8_t port_num,
                            const uct_nprdma_qp_addr_t *peer,
                            uint32_t local_psn,
                            uct_nprdma_service_conn_t **conn_p)
{
    uct_nprdma_service_conn_t *conn = ucs_calloc(1, sizeof(*conn),
                                                 "nprdma_service_conn");
    uct_nprdma_qp_params_t params   = {
        .send_cq     = service->send_cq,
        .recv_cq     = service->recv_cq,
        .srq         = service->srq,
        .max_send_wr = UCT_NPRDMA_SERVICE_SQ_LEN,
        .max_inline  = UCT_NPRDMA_SERVICE_INLINE,
        .qp_context  = conn
    };
    uint32_t max_inline;
    ucs_status_t status;

    if (conn == NULL) {
        ucs_error("failed to allocate a service connection");
        return UCS_ERR_NO_MEMORY;
    }

    status = uct_nprdma_qp_create(&service->md->super, port_num, &params,
                                  &conn->qp, &max_inline);
    if (status != UCS_OK) {
        goto err_free;
    }

    /* A requester posts the receive for a reply before it sends the request.
     * Therefore the reply is not repeated without a receive: that would delay
     * all other peers. */
    status = uct_nprdma_qp_connect(&service->md->super, port_num, conn->qp,
                                   local_psn, peer,
                                   &service->md->super.config.path, 0);
    if (status != UCS_OK) {
        goto err_qp;
    }

    ucs_queue_head_init(&conn->parked);
    conn->qpn        = conn->qp->qp_num;
    conn->is_alive   = 1;
    conn->max_inline = ucs_min(max_inline, (uint32_t)UCT_NPRDMA_SERVICE_INLINE);
    *conn_p          = conn;
    return UCS_OK;

err_qp:
    service->md->super.verbs->destroy_qp(conn->qp);
err_free:
    ucs_free(conn);
    return status;
}

/* Whether a put or atomic is being executed that began before this number of
 * connections was accepted */
static int uct_nprdma_service_is_unsettled(uct_nprdma_service_t *service,
                                           unsigned num_accepted)
{
    unsigned changing = atomic_load(&service->changing);

    return (changing != 0) && ((int)(changing - (2 * num_accepted)) < 0);
}

/* A new connection may be of a requester whose earlier put is being executed,
 * and waits for a page perhaps. What the new one writes must not be undone by
 * that. Later puts find the connection counted, see
 * uct_nprdma_service_may_change(), so a stream of puts does not keep it out. */
ucs_status_t uct_nprdma_service_settle(uct_nprdma_service_t *service,
                                       unsigned *num_accepted_p)
{
    struct timespec interval = { .tv_nsec = UCT_NPRDMA_SERVICE_RETRY_NS };
    unsigned num_accepted    = atomic_fetch_add(&service->num_accepted, 1) + 1;
    int i;

    for (i = 0; uct_nprdma_service_is_unsettled(service, num_accepted); ++i) {
        if (i == UCT_NPRDMA_SERVICE_SETTLE) {
            return UCS_ERR_NO_RESOURCE;
        }
        nanosleep(&interval, NULL);
    }

    *num_accepted_p = num_accepted;
    return UCS_OK;
}

ucs_status_t
uct_nprdma_service_accept(uct_nprdma_service_t *service, uint8_t port_num,
                          const uct_nprdma_qp_addr_t *peer, uint32_t local_psn,
                          uct_nprdma_executed_t *executed,
                          uct_nprdma_service_conn_t **conn_p, uint32_t *qpn_p)
{
    ucs_status_t status = UCS_OK;
    uct_nprdma_service_conn_t *conn;
    unsigned num_accepted;
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

    /* The peer cannot send before it knows the queue pair's number, so the
     * connection is counted, and in the table, in time */
    status = uct_nprdma_service_settle(service, &num_accepted);
    if (status == UCS_OK) {
        status = uct_nprdma_service_conn_new(service, port_num, peer, local_psn,
                                             &conn);
    }
    if (status != UCS_OK) {
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
    conn->seen_accepted                  = num_accepted;
    kh_value(&service->conns_hash, iter) = conn;
    ucs_list_add_tail(&service->conns, &conn->list);
    ++service->num_conns;
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

