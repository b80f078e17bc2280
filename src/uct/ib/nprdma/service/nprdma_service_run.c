/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service_run.h"
#include "nprdma_service.h"
#include "nprdma_service_conn.h"
#include "nprdma_service_execute.h"

#include "uct/ib/nprdma/net/nprdma_cm_types.h"

#include "ucm/access/nprdma_pagein.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/time/time.h>

#include <string.h>

/* Requests executed in one call of progress */
#define UCT_NPRDMA_SERVICE_MAX_REQUESTS 64

/* Parked requests executed between two polls */
#define UCT_NPRDMA_SERVICE_RESUME       4

/* Shortest FETCH in bytes whose time is measured. It is negligible there */
#define UCT_NPRDMA_SERVICE_TIMED        1024

/* Addresses of a hint */
#define UCT_NPRDMA_SERVICE_HINT_SHIFT   21

/* A request that takes longer than this, in microseconds, may have waited for a
 * page. A POPULATE may also have had many of them to clear. */
#define UCT_NPRDMA_SERVICE_SLOW_USEC    30

/* Requests in a row that find their pages in memory, until other requests than
 * repairs are executed without looking */
#define UCT_NPRDMA_SERVICE_HINT_RUN     64


/* ---- receives ---- */

static void uct_nprdma_service_post_recv(uct_nprdma_service_t *service,
                                         uct_nprdma_slot_t *slot,
                                         struct ibv_recv_wr *wr,
                                         struct ibv_sge *sge,
                                         struct ibv_recv_wr *next)
{
    sge->addr   = (uintptr_t)slot->data;
    sge->length = slot->pool->slot_size;
    sge->lkey   = slot->lkey;
    wr->wr_id   = (uintptr_t)slot;
    wr->next    = next;
    wr->sg_list = sge;
    wr->num_sge = 1;
}

ucs_status_t uct_nprdma_service_fill_srq(uct_nprdma_service_t *service)
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

/* Peers may have to wait for a free slot: add some. Zero if there are not more
 * now. */
static int uct_nprdma_service_grow(uct_nprdma_service_t *service)
{
    if ((service->rx_pool.num_slots == service->rx_pool.max_slots) ||
        (uct_nprdma_bounce_grow(&service->rx_pool) == 0)) {
        return 0;
    }

    return uct_nprdma_service_fill_srq(service) == UCS_OK;
}

/* Post the slots of completions again: from `first` to before `last` */
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


/* ---- hints ---- */

/* The kernel does not tell whether an absent page was never touched, so that
 * the CPU only has to clear one, or has to be read from a disk. Two switches of
 * threads cost more than the first and less than the second. Memory nearby is
 * mostly of the same kind, so what the last page-in took is remembered. Where
 * it was quick nothing is asked, until a request waits. */
static uct_nprdma_service_hint_t *
uct_nprdma_service_hint(uct_nprdma_service_t *service, uint64_t address)
{
    uint64_t chunk                  = address >> UCT_NPRDMA_SERVICE_HINT_SHIFT;
    uct_nprdma_service_hint_t *hint =
            &service->hints[chunk % UCT_NPRDMA_SERVICE_HINTS];

    if (hint->chunk != chunk) {
        hint->chunk = chunk;
        hint->kind  = UCT_NPRDMA_SERVICE_HINT_NONE;
    }
    return hint;
}

static void
uct_nprdma_service_hint_set(uct_nprdma_service_t *service, uint64_t address,
                            uct_nprdma_service_hint_kind_t kind)
{
    uct_nprdma_service_hint_t *hint = uct_nprdma_service_hint(service, address);

    hint->kind = kind;
    hint->run  = 0;
}


/* ---- parked requests ---- */

/* The request repairs what the NIC could not access */
static int uct_nprdma_service_is_repair(const uct_nprdma_svc_request_t *request)
{
    return (request->type == UCT_NPRDMA_SVC_POPULATE) ||
           ((request->type == UCT_NPRDMA_SVC_FETCH) &&
            (request->op & UCT_NPRDMA_SVC_FETCH_POPULATE));
}

/* Bytes of a request in the first pages of its range */
static uint32_t
uct_nprdma_service_bytes(const uct_nprdma_svc_request_t *request,
                         size_t num_pages)
{
    uint64_t bytes = num_pages * NPRDMA_PAGE_SIZE;
    uint64_t head  = request->address % NPRDMA_PAGE_SIZE;

    return (bytes <= head) ? 0 :
           (uint32_t)ucs_min(bytes - head, (uint64_t)request->length);
}

/* Find out which pages a request needs: need->job.count is 0 if none have to be
 * brought in. Makes a system call only if the NIC met an absent page, which the
 * request repairs, or pages had to be waited for nearby before; and never where
 * page-in was quick. */
static void
uct_nprdma_service_find_need(uct_nprdma_service_t *service,
                             const uct_nprdma_svc_request_t *request,
                             uct_nprdma_service_need_t *need)
{
    int is_populate = request->type == UCT_NPRDMA_SVC_POPULATE;
    uct_nprdma_service_hint_t *hint;
    size_t ready, count;

    need->job.count = 0;
    need->limit     = UINT32_MAX;
    if ((request->length == 0) ||
        (is_populate && (service->md->monitor == NULL))) {
        return; /* No memory, or an error */
    }

    /* Rule "reach of a key": a page-in does not go beyond the registration. The
     * execution reports that. */
    hint = uct_nprdma_service_hint(service, request->address);
    if ((hint->kind == UCT_NPRDMA_SERVICE_HINT_QUICK) ||
        ((hint->kind == UCT_NPRDMA_SERVICE_HINT_NONE) &&
         !uct_nprdma_service_is_repair(request)) ||
        (uct_nprdma_svc_check(service->md, request) != UCS_OK)) {
        return;
    }

    need->job.address = request->address & ~(NPRDMA_PAGE_SIZE - 1);
    count = ucs_min(nprdma_region_num_pages(request->address, request->length),
                    (size_t)NPRDMA_PAGEIN_PROBE_MAX);
    ready = nprdma_pagein_in_memory(need->job.address, count);
    if ((ready == count) && (++hint->run == UCT_NPRDMA_SERVICE_HINT_RUN)) {
        hint->kind = UCT_NPRDMA_SERVICE_HINT_NONE;
    }

    /* The initiator asks again for the rest of a POPULATE */
    need->limit = uct_nprdma_service_bytes(request, ready);
    if ((ready == count) ||
        (is_populate && (need->limit >= UCT_NPRDMA_PAGER_STEP))) {
        return;
    }

    need->job.count    = count;
    need->job.is_write = is_populate ?
                         (request->op & UCT_NPRDMA_SVC_POPULATE_WRITE) :
                         (request->type != UCT_NPRDMA_SVC_FETCH);
}

/* Place for a request of a certain size, or NULL: the connection has its share,
 * or too many slots are in use */
static uct_nprdma_service_parked_t *
uct_nprdma_service_parked_get(uct_nprdma_service_t *service,
                              const uct_nprdma_service_conn_t *conn,
                              size_t size)
{
    /* Half of the slots are for requests of other peers */
    if (!uct_nprdma_credits_has_share(conn->num_parked,
                                      UCT_NPRDMA_SERVICE_MAX_PARKED -
                                      service->num_parked, 0) ||
        ((size > UCT_NPRDMA_SERVICE_PARKED_COPY) &&
         (2 * service->num_parked_slots >= service->rx_pool.num_slots))) {
        return NULL;
    }

    ++service->num_parked;
    if (!ucs_queue_is_empty(&service->free_parked)) {
        return ucs_queue_pull_elem_non_empty(&service->free_parked,
                                             uct_nprdma_service_parked_t,
                                             queue);
    }
    return &service->parked[service->num_used_parked++];
}

/* The request is executed or dropped; its slot is posted again */
static void uct_nprdma_service_parked_put(uct_nprdma_service_t *service,
                                          uct_nprdma_service_parked_t *parked)
{
    ucs_queue_push(&service->free_parked, &parked->queue);
    --service->num_parked;
    if (parked->slot != NULL) {
        --service->num_parked_slots;
        uct_nprdma_bounce_put(parked->slot);
        uct_nprdma_service_fill_srq(service);
    }
}

static uct_nprdma_service_parked_t *
uct_nprdma_service_parked_pull(uct_nprdma_service_conn_t *conn)
{
    --conn->num_parked;
    return ucs_queue_pull_elem_non_empty(&conn->parked,
                                         uct_nprdma_service_parked_t, queue);
}

/* Park a request behind those of its connection. If it needs pages, threads
 * bring them in from the next kick on. NULL: there is no place. */
static uct_nprdma_service_parked_t *
uct_nprdma_service_park(uct_nprdma_service_t *service,
                        uct_nprdma_service_conn_t *conn,
                        uct_nprdma_slot_t *slot,
                        const uct_nprdma_svc_request_t *request, size_t size,
                        const uct_nprdma_service_need_t *need)
{
    uct_nprdma_service_parked_t *parked;

    parked = uct_nprdma_service_parked_get(service, conn, size);
    if (parked == NULL) {
        return NULL;
    }

    parked->conn = conn;
    if (size <= UCT_NPRDMA_SERVICE_PARKED_COPY) {
        memcpy(parked->copy, request, size);
        parked->request = (void*)parked->copy;
        parked->slot    = NULL;
    } else {
        parked->request = request;
        parked->slot    = slot;
        ++service->num_parked_slots;
    }

    parked->need       = *need;
    parked->is_waiting = (need->job.count > 0) &&
                         uct_nprdma_pager_submit(service->pager,
                                                 &parked->need.job);
    if ((need->job.count > 0) && !parked->is_waiting) {
        parked->need.limit = UINT32_MAX; /* The service takes the faults */
    }
    service->is_kick_due |= parked->is_waiting;
    ucs_queue_push(&conn->parked, &parked->queue);
    ++conn->num_parked;
    return parked;
}


/* ---- turns ---- */

/* Whether the time that a request takes is worth to be known: longer ones that
 * the NIC could not serve. Others must not pay for two looks at the clock. */
static int
uct_nprdma_service_is_timed(const uct_nprdma_svc_request_t *request)
{
    return uct_nprdma_service_is_repair(request) ||
           ((request->type == UCT_NPRDMA_SVC_FETCH) &&
            (request->length >= UCT_NPRDMA_SERVICE_TIMED));
}

/* Execute a request, and learn whether it waited for a page. Zero if it has to
 * wait until earlier replies are done. */
static int
uct_nprdma_service_run_timed(uct_nprdma_service_t *service,
                             uct_nprdma_service_conn_t *conn,
                             const uct_nprdma_svc_request_t *request,
                             uint32_t limit)
{
    /* Others than POPULATE are short, so their time tells, without a system
     * call */
    int is_populate  = request->type == UCT_NPRDMA_SVC_POPULATE;
    long num_waits   = is_populate ? nprdma_pagein_num_waits() : 0;
    ucs_time_t start = ucs_get_time();

    if (!uct_nprdma_service_execute(service, conn, request, limit)) {
        return 0;
    }

    if ((ucs_time_to_usec(ucs_get_time() - start) >
         UCT_NPRDMA_SERVICE_SLOW_USEC) &&
        (!is_populate || (nprdma_pagein_num_waits() != num_waits))) {
        uct_nprdma_service_hint_set(service, request->address,
                                    UCT_NPRDMA_SERVICE_HINT_SLOW);
    }
    return 1;
}

/* Execute a request, at most `limit` bytes of it. Zero if it has to wait until
 * earlier replies are done. */
static int uct_nprdma_service_run_one(uct_nprdma_service_t *service,
                                      uct_nprdma_service_conn_t *conn,
                                      const uct_nprdma_svc_request_t *request,
                                      uint32_t limit)
{
    if (request->type == UCT_NPRDMA_SVC_FIN) {
        /* Only a conforming peer sends nothing after it, so the queue pair goes
         * to ERR */
        uct_nprdma_service_conn_stop(service, conn);
        return 1;
    }

    if (!(uct_nprdma_service_is_timed(request) ?
          uct_nprdma_service_run_timed(service, conn, request, limit) :
          uct_nprdma_service_execute(service, conn, request, limit))) {
        return 0;
    }

    conn->sn = request->sn;
    return 1;
}

/* Parked requests of a connection can perhaps be executed */
static void uct_nprdma_service_resume_later(uct_nprdma_service_t *service,
                                            uct_nprdma_service_conn_t *conn)
{
    if (!conn->is_resuming) {
        conn->is_resuming = 1;
        ucs_list_add_tail(&service->resuming, &conn->resuming);
    }
}

/* Execute a parked request. Zero if it has to wait for its page, earlier
 * replies, or a probe. */
static int
uct_nprdma_service_resume_one(uct_nprdma_service_t *service,
                              uct_nprdma_service_conn_t *conn,
                              const uct_nprdma_service_parked_t *parked)
{
    int i;

    for (i = 0; i < 2; ++i) {
        if ((conn->state != UCT_NPRDMA_SERVICE_CONN_READY) || conn->released) {
            return 0; /* uct_nprdma_service_next_dead() drops it */
        }

        if (uct_nprdma_service_may_change(service, conn, parked->request) &&
            (conn->state == UCT_NPRDMA_SERVICE_CONN_READY) &&
            uct_nprdma_service_run_one(service, conn, parked->request,
                                       parked->need.limit)) {
            return 1;
        }
        uct_nprdma_service_reap(service);
    }
    return 0;
}

/* The first parked request of a connection, if it does not wait for its pages;
 * or NULL. uct_nprdma_service_next_dead() drops those of an ended one. */
static uct_nprdma_service_parked_t *
uct_nprdma_service_first_ready(uct_nprdma_service_conn_t *conn)
{
    uct_nprdma_service_parked_t *parked;

    if ((conn->num_parked == 0) || conn->released ||
        (conn->state != UCT_NPRDMA_SERVICE_CONN_READY)) {
        return NULL;
    }

    parked = ucs_queue_head_elem_non_empty(&conn->parked,
                                           uct_nprdma_service_parked_t, queue);
    return parked->is_waiting ? NULL : parked;
}

/* Execute the first parked request of a connection that is being resumed.
 * Nonzero if it was executed. */
static int uct_nprdma_service_resume(uct_nprdma_service_t *service,
                                     uct_nprdma_service_conn_t *conn)
{
    uct_nprdma_service_parked_t *parked = uct_nprdma_service_first_ready(conn);

    if (parked != NULL) {
        if (!uct_nprdma_service_resume_one(service, conn, parked)) {
            return 0; /* A completion of a send wakes the thread */
        }
        uct_nprdma_service_parked_put(service,
                                      uct_nprdma_service_parked_pull(conn));
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
    uct_nprdma_service_parked_t *parked;
    uct_nprdma_pager_job_t *job;
    uint32_t bytes;

    if (!atomic_exchange(&service->pages_came, 0)) {
        return;
    }

    while ((job = uct_nprdma_pager_take_done(service->pager)) != NULL) {
        parked = ucs_container_of(job, uct_nprdma_service_parked_t, need.job);
        bytes  = uct_nprdma_service_bytes(parked->request, job->done);

        /* The execution reports what cannot be brought in */
        parked->is_waiting = 0;
        parked->need.limit = (bytes == 0) ? UINT32_MAX : bytes;
        uct_nprdma_service_hint_set(service, parked->request->address,
                                    job->is_slow ?
                                    UCT_NPRDMA_SERVICE_HINT_SLOW :
                                    UCT_NPRDMA_SERVICE_HINT_QUICK);
        if (parked->conn != NULL) {
            uct_nprdma_service_conn_doubt(parked->conn);
            uct_nprdma_service_resume_later(service, parked->conn);
        } else {
            uct_nprdma_service_parked_put(service, parked); /* Was dropped */
        }
    }
}

/* Execute parked requests whose pages have come: one of each connection in
 * turn, and only a few, because the requests of other peers do not wait for all
 * of them. */
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


/* ---- the end of a connection ---- */

static void uct_nprdma_service_drop_parked(uct_nprdma_service_t *service,
                                           uct_nprdma_service_conn_t *conn)
{
    uct_nprdma_service_parked_t *parked;

    if (conn->is_resuming) {
        ucs_list_del(&conn->resuming);
        conn->is_resuming = 0;
    }

    while (conn->num_parked > 0) {
        parked = uct_nprdma_service_parked_pull(conn);
        if (parked->is_waiting &&
            !uct_nprdma_pager_cancel(service->pager, &parked->need.job)) {
            parked->conn = NULL; /* A thread is bringing its pages in */
        } else {
            uct_nprdma_service_parked_put(service, parked);
        }
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

/* Find a connection with a queue pair that can be destroyed now, and remove it
 * from the table; or NULL */
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
        --service->num_conns;
    }
    pthread_mutex_unlock(&service->conns_lock);
    return dead;
}

/* Probe connections, and end those that are closed and have no replies */
static void uct_nprdma_service_reclaim(uct_nprdma_service_t *service)
{
    uct_nprdma_service_conn_t *conn;

    service->attention = 0;
    uct_nprdma_service_probe_conns(service);
    while ((conn = uct_nprdma_service_next_dead(service)) != NULL) {
        service->md->super.verbs->destroy_qp(conn->qp);
        uct_nprdma_pager_populate_cancel(service->pager, conn);
        uct_nprdma_service_end_executed(conn);
        conn->state = UCT_NPRDMA_SERVICE_CONN_CLOSED;
    }
}


/* ---- requests that arrive ---- */

/* Execute a request that has arrived, or park it if it waits for pages, for
 * earlier requests of its connection or for a probe. Zero if the request can be
 * neither executed nor parked now. */
static int uct_nprdma_service_arrived(uct_nprdma_service_t *service,
                                      uct_nprdma_service_conn_t *conn,
                                      const uct_nprdma_svc_request_t *request,
                                      struct ibv_wc *wc)
{
    const uct_nprdma_service_parked_t *parked;
    uct_nprdma_service_need_t need;

    uct_nprdma_service_find_need(service, request, &need);

    /* Mostly the answer to a probe is there before a place to park is needed */
    if (ucs_likely((need.job.count == 0) && (conn->num_parked == 0) &&
                   uct_nprdma_service_may_change(service, conn, request))) {
        return (conn->state != UCT_NPRDMA_SERVICE_CONN_READY) ||
               uct_nprdma_service_run_one(service, conn, request, need.limit);
    }

    do {
        parked = uct_nprdma_service_park(service, conn,
                                         (uct_nprdma_slot_t*)wc->wr_id, request,
                                         wc->byte_len, &need);
    } while ((parked == NULL) && uct_nprdma_service_grow(service));
    if (parked == NULL) {
        return 0;
    }

    if (parked->slot != NULL) {
        wc->wr_id = 0; /* uct_nprdma_service_refill() leaves it out */
    }

    if (!parked->is_waiting && (conn->num_parked == 1)) {
        /* There is no thread for its pages, or it waits for a probe */
        uct_nprdma_service_resume_later(service, conn);
    }
    return 1;
}

/* Handle a completion of the receive CQ. Zero if the request has to wait until
 * earlier replies are done. */
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

    request = uct_nprdma_svc_request_parse(slot->data, wc->byte_len);
    if ((request == NULL) || (wc->opcode != IBV_WC_RECV) ||
        (request->sn != (conn->arrived_sn + 1)) ||
        (uct_nprdma_svc_reply_length(request) + sizeof(uct_nprdma_svc_reply_t) >
         service->tx_pool.slot_size)) {
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
        uct_nprdma_service_grow(service); /* Half of the slots at once */
    }
}

/* Execute or park the requests that have arrived, up to a batch. *blocked_p is
 * set to 1 if the next one waits until earlier replies are done, or parked ones
 * are executed. */
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
    if (service->is_kick_due) {
        service->is_kick_due = 0;
        uct_nprdma_pager_kick(service->pager);
    }
    return service->next_wc - first;
}

/* The executing thread has executed some requests, and executes no more now */
static void uct_nprdma_service_ran(uct_nprdma_service_t *service,
                                   unsigned count)
{
    uct_nprdma_service_section_end(service);
    atomic_store_explicit(&service->changing, 0, memory_order_release);
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

unsigned uct_nprdma_service_run(uct_nprdma_service_t *service, int *blocked_p)
{
    unsigned count = 0;
    unsigned num;

    *blocked_p = 0;
    do {
        num    = uct_nprdma_service_resume_some(service);
        num   += uct_nprdma_service_handle_some(service, blocked_p);
        count += num;
    } while ((num > 0) && (count < UCT_NPRDMA_SERVICE_MAX_REQUESTS) &&
             !*blocked_p);

    uct_nprdma_service_ran(service, count);
    *blocked_p |= !ucs_list_is_empty(&service->resuming);
    return count;
}

unsigned uct_nprdma_service_progress(uct_nprdma_service_t *service)
{
    unsigned count;
    int blocked;

    /* Acquire: a nonzero count makes the queues visible that were created
     * before the first connection was counted. Execution does not take the lock
     * of the start */
    if (ucs_likely(atomic_load_explicit(&service->num_conns,
                                        memory_order_acquire) == 0) ||
        !uct_nprdma_service_try_begin(service)) {
        return 0;
    }

    /* Not an atomic increment: only the executing thread writes it */
    atomic_store_explicit(&service->num_polls,
                          atomic_load_explicit(&service->num_polls,
                                               memory_order_relaxed) + 1,
                          memory_order_relaxed);
    service->by_thread = 0;
    count = uct_nprdma_service_run(service, &blocked);
    uct_nprdma_service_end(service);
    return count;
}
