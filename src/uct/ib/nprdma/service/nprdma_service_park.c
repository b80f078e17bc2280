/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service_park.h"
#include "nprdma_service_conn.h"
#include "nprdma_service_execute.h"
#include "nprdma_service_recv.h"
#include "nprdma_svc_parked.h"

#include "uct/ib/nprdma/net/nprdma_cm_types.h"

#include <ucs/debug/memtrack_int.h>

#include <pthread.h>

/* Parked requests executed between two polls */
#define UCT_NPRDMA_SERVICE_RESUME       4

/* Parked requests of a connection can perhaps be executed */
static void uct_nprdma_service_resume_later(uct_nprdma_service_t *service,
                                            uct_nprdma_service_conn_t *conn)
{
    if (!conn->is_resuming) {
        conn->is_resuming = 1;
        ucs_list_add_tail(&service->resuming, &conn->resuming);
    }
}

/* Execute a request that has arrived, or park it if it waits for pages, for
 * earlier requests of its connection or for a probe. Zero if the request can be
 * neither executed nor parked now. */
int uct_nprdma_service_arrived(uct_nprdma_service_t *service,
                               uct_nprdma_service_conn_t *conn,
                               const uct_nprdma_svc_request_t *request,
                               struct ibv_wc *wc)
{
    uct_nprdma_svc_need_t need;
    const uct_nprdma_svc_parked_t *parked;

    uct_nprdma_svc_parking_need(service->parking, request, &need);

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

/* Execute a parked request. Zero if it has to wait for its page, earlier
 * replies, or a probe. */
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

/* Execute the first parked request of a connection that is being resumed.
 * Nonzero if it was executed. */
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

/* Execute parked requests whose pages have come: one of each connection in
 * turn, and only a few, because the requests of other peers do not wait for all
 * of them. */
unsigned uct_nprdma_service_resume_some(uct_nprdma_service_t *service)
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
        --service->super.num_conns;
    }
    pthread_mutex_unlock(&service->conns_lock);
    return dead;
}

void uct_nprdma_service_reclaim(uct_nprdma_service_t *service)
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
