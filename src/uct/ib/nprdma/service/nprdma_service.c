/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service_int.h"
#include "nprdma_svc_exec.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/net/nprdma_qp.h"


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


/* ---- replies and their completions; the caller has begun ---- */

/*
 * Stop a connection that may have completions in the receive CQ. They take
 * slots of the SRQ with them if the queue pair is destroyed before they have
 * been polled, so it must be seen empty first.
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
            } else if (wcs[i].wr_id != 0) {
                uct_nprdma_bounce_put((uct_nprdma_slot_t*)wcs[i].wr_id);
            }

            conn = uct_nprdma_service_find(service, wcs[i].qp_num);
            if (conn == NULL) {
                continue;
            }

            --conn->outstanding;
            if (wcs[i].wr_id == UCT_NPRDMA_SERVICE_WR_PROBE) {
                conn->probing = 0;
            }

            if (wcs[i].status != IBV_WC_SUCCESS) {
                ucs_debug("service: send on qp 0x%x failed: work completion "
                          "status %d", conn->qpn, wcs[i].status);
                uct_nprdma_service_conn_stop(service, conn);
            }
        }
    } while (count == UCT_NPRDMA_SERVICE_BATCH);
}

/* Whether one more reply may be sent; needs_slot tells what kind */
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


/* ---- requests; the caller has begun ---- */

static void uct_nprdma_service_count(uct_nprdma_service_t *service,
                                     uint8_t type,
                                     uct_nprdma_svc_status_t status)
{
    atomic_uint_fast64_t *counter;

    switch (type) {
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

    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    if (ucs_unlikely(status != UCT_NPRDMA_SVC_OK)) {
        atomic_fetch_add_explicit(&service->stats.errors, 1,
                                  memory_order_relaxed);
    }
}

/* Go on with a POPULATE where its reply ends */
static void
uct_nprdma_service_populate_ahead(uct_nprdma_service_t *service,
                                  uct_nprdma_service_conn_t *conn,
                                  const uct_nprdma_svc_request_t *request,
                                  const uct_nprdma_svc_populated_t *populated)
{
    int is_write                  = request->op & UCT_NPRDMA_SVC_POPULATE_WRITE;
    uct_nprdma_populate_job_t job = {
        .key     = request->key,
        .address = request->address + populated->length,
        .length  = (uint64_t)request->length + request->ahead -
                   populated->length,
        .access  = is_write ? NPRDMA_REG_ACCESS_PUT : NPRDMA_REG_ACCESS_GET,
        .flags   = is_write ? NPRDMA_POPULATE_WRITE : 0,
        .owner   = conn
    };

    uct_nprdma_populator_add(service->populator, &job);
}

/* What a FETCH has brought in is for the NIC, the next time. It is there by
 * now, so this takes no time. */
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
 * Requests that touch memory of the application have to have its faults
 * reported. That takes a system call for as many of them as come together. The
 * service's own thread, where nobody polls, makes two of them to be sure that
 * the handler is in place.
 */
static inline void
uct_nprdma_service_begin_turn(uct_nprdma_service_t *service,
                              const uct_nprdma_svc_request_t *request)
{
    if (!service->has_turn && (request->type != UCT_NPRDMA_SVC_NOP) &&
        (request->type != UCT_NPRDMA_SVC_POPULATE)) {
        if (service->by_thread) {
            nprdma_fault_install();
            service->turn.blocked = 0;
        } else {
            nprdma_fault_enter(&service->turn);
        }
        service->has_turn = 1;
    }
}

static inline void uct_nprdma_service_end_turn(uct_nprdma_service_t *service)
{
    if (service->has_turn) {
        nprdma_fault_leave(&service->turn);
        service->has_turn = 0;
    }
}

/*
 * @return Zero if the request has to wait for a reply to leave.
 */
static int uct_nprdma_service_execute(uct_nprdma_service_t *service,
                                      uct_nprdma_service_conn_t *conn,
                                      const uct_nprdma_svc_request_t *request)
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

    uct_nprdma_service_begin_turn(service, request);
    reply  = (slot == NULL) ? (void*)inline_reply : (void*)slot->data;
    status = uct_nprdma_svc_execute(service->md, request,
                                    has_reply ? (void*)(reply + 1) : &result,
                                    &length);
    uct_nprdma_service_count(service, request->type, status);
    if (!has_reply) {
        if ((status != UCT_NPRDMA_SVC_OK) && (conn->failed_status == 0)) {
            conn->failed_status = status;
            conn->failed_sn     = request->sn;
        }
        return 1;
    }

    if ((request->type == UCT_NPRDMA_SVC_POPULATE) &&
        (status == UCT_NPRDMA_SVC_OK)) {
        uct_nprdma_service_populate_ahead(service, conn, request,
                                          (void*)(reply + 1));
    }

    reply->type          = UCT_NPRDMA_SVC_REPLY;
    reply->status        = status;
    reply->failed_status = conn->failed_status;
    reply->reserved      = 0;
    reply->sn            = request->sn;
    reply->failed_sn     = conn->failed_sn;
    reply->length        = length;
    conn->failed_status  = 0;
    conn->failed_sn      = 0;
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
 * @return Zero if the request has to wait for a reply to leave.
 */
static int uct_nprdma_service_handle(uct_nprdma_service_t *service,
                                     const struct ibv_wc *wc)
{
    const uct_nprdma_slot_t *slot = (uct_nprdma_slot_t*)wc->wr_id;
    const uct_nprdma_svc_request_t *request;
    uct_nprdma_service_conn_t *conn;

    conn = uct_nprdma_service_find(service, wc->qp_num);
    if ((conn == NULL) || (conn->state != UCT_NPRDMA_SERVICE_CONN_READY)) {
        return 1; /* Late */
    }

    if (wc->status != IBV_WC_SUCCESS) {
        uct_nprdma_service_conn_stop(service, conn);
        return 1;
    }

    request = uct_nprdma_svc_request_parse(slot->data, wc->byte_len);
    if ((request == NULL) || (request->sn != (conn->sn + 1))) {
        ucs_error("service: malformed request of %u bytes on qp 0x%x, closing"
                  " the connection", wc->byte_len, conn->qpn);
        uct_nprdma_service_conn_stop(service, conn);
        return 1;
    }

    if (request->type == UCT_NPRDMA_SVC_FIN) {
        /* Nothing comes after it only from who keeps to the rules */
        uct_nprdma_service_conn_stop(service, conn);
        return 1;
    }

    if (!uct_nprdma_service_execute(service, conn, request)) {
        return 0;
    }

    conn->sn = request->sn;
    return 1;
}

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

/* Requests have come for half of the slots at once, so peers may have to wait
 * for a free one: have more of them */
static void uct_nprdma_service_grow(uct_nprdma_service_t *service)
{
    if (uct_nprdma_bounce_grow(&service->rx_pool) > 0) {
        uct_nprdma_service_fill_srq(service);
    }
}

/* Give the slots of executed requests back to the SRQ */
static void uct_nprdma_service_refill(uct_nprdma_service_t *service, int first,
                                      int last)
{
    struct ibv_recv_wr *head = NULL;
    struct ibv_recv_wr *bad_wr;
    int i, ret;

    for (i = first; i < last; ++i) {
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

/*
 * A write of nothing completes if the requester's queue pair is there. Replies
 * find out as well, but only a request makes us send one. If there is no room
 * for a probe the send queue is full of replies, which do its work.
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

static void uct_nprdma_service_probe_conns(uct_nprdma_service_t *service)
{
    uct_nprdma_service_conn_t *conn;

    if (!atomic_exchange(&service->probe_wanted, 0)) {
        return;
    }

    pthread_mutex_lock(&service->conns_lock);
    ucs_list_for_each(conn, &service->conns, list) {
        if (atomic_exchange(&conn->probe_wanted, 0)) {
            uct_nprdma_service_conn_probe(service, conn);
        }
    }
    pthread_mutex_unlock(&service->conns_lock);
}

/*
 * @return A connection whose queue pair is to be destroyed now; requests do not
 *         find it any more.
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
            if ((conn->outstanding == 0) &&
                (conn->drain != service->num_drained)) {
                dead = conn;
                break;
            }
            service->attention = 1; /* Look again when nothing is left of it */
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

/* Do what the cm has asked for, destroy what has come to its end */
static void uct_nprdma_service_reclaim(uct_nprdma_service_t *service)
{
    uct_nprdma_service_conn_t *conn;

    service->attention = 0;
    uct_nprdma_service_probe_conns(service);
    while ((conn = uct_nprdma_service_next_dead(service)) != NULL) {
        service->md->super.verbs->destroy_qp(conn->qp);
        uct_nprdma_populator_cancel(service->populator, conn);
        conn->state = UCT_NPRDMA_SERVICE_CONN_CLOSED;
    }
}

unsigned uct_nprdma_service_run(uct_nprdma_service_t *service, unsigned max,
                                int *blocked_p)
{
    unsigned count = 0;
    int first, num_wcs;

    *blocked_p = 0;
    while ((count < max) && !*blocked_p) {
        if (service->next_wc == service->num_wcs) {
            service->next_wc = service->num_wcs = 0;
            num_wcs = ibv_poll_cq(service->recv_cq, UCT_NPRDMA_SERVICE_BATCH,
                                  service->wcs);
            if (num_wcs <= 0) {
                ++service->num_drained;
                break;
            }
            service->num_wcs = num_wcs;
            if (ucs_unlikely((2 * (unsigned)num_wcs >=
                              service->rx_pool.num_slots) &&
                             (service->rx_pool.num_slots <
                              service->rx_pool.max_slots))) {
                uct_nprdma_service_grow(service);
            }
        }

        first = service->next_wc;
        while (service->next_wc < service->num_wcs) {
            if (!uct_nprdma_service_handle(service,
                                           &service->wcs[service->next_wc])) {
                uct_nprdma_service_reap(service);
                if (!uct_nprdma_service_handle(
                            service, &service->wcs[service->next_wc])) {
                    *blocked_p = 1;
                    break;
                }
            }
            ++service->next_wc;
            ++count;
        }
        uct_nprdma_service_refill(service, first, service->next_wc);
    }

    uct_nprdma_service_end_turn(service);
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

    return count;
}

unsigned uct_nprdma_service_progress_active(uct_nprdma_service_t *service)
{
    unsigned count;
    int blocked;

    if (!uct_nprdma_service_try_begin(service)) {
        return 0;
    }

    /* Others only look whether it changes */
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

void uct_nprdma_service_populate_later(uct_nprdma_service_t *service,
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
    stats->ahead_jobs       = populator.jobs;
    stats->ahead_dropped    = populator.dropped;
    stats->ahead_bytes      = populator.bytes;
}
