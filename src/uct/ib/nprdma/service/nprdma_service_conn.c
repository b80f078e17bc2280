/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service_conn.h"

#include "uct/ib/nprdma/net/nprdma_qp.h"

#include <ucs/debug/log.h>

#include <pthread.h>

uct_nprdma_service_conn_t *
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

/* Stop a connection. It may have completions in the receive CQ. If its queue
 * pair is destroyed before they are polled, the slots of the SRQ that they
 * refer to are lost. Therefore the CQ must be found empty first. */
void uct_nprdma_service_conn_stop(uct_nprdma_service_t *service,
                                  uct_nprdma_service_conn_t *conn)
{
    if (conn->state == UCT_NPRDMA_SERVICE_CONN_READY) {
        uct_nprdma_qp_to_err(&service->md->super, conn->qp);
        conn->drain        = service->num_drained;
        conn->state        = UCT_NPRDMA_SERVICE_CONN_CLOSING;
        service->attention = 1;
    }
}

void uct_nprdma_service_reap(uct_nprdma_service_t *service)
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

/* Probe the requester by a WRITE of zero bytes, which completes if its queue
 * pair exists. A reply would detect the same, but without requests there are no
 * replies. If there is no room for a probe, the send queue is full of replies,
 * which detect it. */
void uct_nprdma_service_conn_probe(uct_nprdma_service_t *service,
                                   uct_nprdma_service_conn_t *conn)
{
    struct ibv_send_wr wr = {
        .wr_id      = UCT_NPRDMA_SERVICE_WR_PROBE,
        .opcode     = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED
    };
    struct ibv_send_wr *bad_wr;

    if ((conn->state != UCT_NPRDMA_SERVICE_CONN_READY) || conn->probing ||
        !uct_nprdma_service_can_send(service, conn)) {
        return;
    }

    if (ibv_post_send(conn->qp, &wr, &bad_wr) == 0) {
        conn->probing = 1;
        ++conn->outstanding;
        ++service->num_probes;
        --service->send_cq_avail;
    }
}

void uct_nprdma_service_conn_doubt(uct_nprdma_service_conn_t *conn)
{
    conn->is_alive      = 0;
    conn->is_probe_late = conn->probing;
}

/* Find out whether a requester exists. Zero if the answer to a probe has to be
 * awaited. */
static int uct_nprdma_service_conn_check(uct_nprdma_service_t *service,
                                         uct_nprdma_service_conn_t *conn)
{
    unsigned accepted;

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
 * A requester that destroys its endpoint is not heard of, and may connect again
 * and write to the same place. What it sent before that must not be executed
 * later. So a request that changes memory is executed only if the requester has
 * answered a probe that was posted
 *   - after the page came, if a request has waited for one. Those behind it may
 *     be as old, also if they arrive later.
 *   - after the last connection was accepted: that may be of this requester,
 *     and then it has left. A request may have been in the CQ for long.
 */
int uct_nprdma_service_may_change(uct_nprdma_service_t *service,
                                  uct_nprdma_service_conn_t *conn,
                                  const uct_nprdma_svc_request_t *request)
{
    int changes = (request->type == UCT_NPRDMA_SVC_STORE) ||
                  (request->type == UCT_NPRDMA_SVC_ATOMIC);
    unsigned changing;

    if (ucs_unlikely(changes && (!conn->is_alive ||
                                 (conn->seen_accepted !=
                                  atomic_load(&service->num_accepted))))) {
        atomic_store(&service->changing, 0);
        if (!uct_nprdma_service_conn_check(service, conn)) {
            return 0;
        }
    }

    /* A connection that is accepted from now on waits until the request is
     * executed: see uct_nprdma_service_settle() */
    changing = changes ? ((2 * conn->seen_accepted) + 1) : 0;
    if (atomic_load_explicit(&service->changing, memory_order_relaxed) !=
        changing) {
        atomic_store(&service->changing, changing);
    }
    return !changes ||
           (conn->seen_accepted == atomic_load(&service->num_accepted));
}

void uct_nprdma_service_end_executed(uct_nprdma_service_conn_t *conn)
{
    if (conn->executed != NULL) {
        uct_nprdma_executed_end(conn->executed);
        uct_nprdma_executed_leave(conn->executed);
        conn->executed = NULL;
    }
}
