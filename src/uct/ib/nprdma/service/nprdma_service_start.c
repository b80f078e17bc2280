/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service_int.h"
#include "uct/ib/nprdma/net/nprdma_qp.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>


/* ---- start and end ---- */

/*
 * What the service cannot start without, and why. Descriptors may be free again
 * in a moment: requesters try again, and the line is written once.
 */
static ucs_status_t uct_nprdma_service_lacks(uct_nprdma_service_t *service,
                                             const char *what)
{
    const char *name      = service->md->super.name;
    ucs_log_level_t level = service->told_shortage ? UCS_LOG_LEVEL_DEBUG :
                                                     UCS_LOG_LEVEL_ERROR;
    int error             = errno;
    struct rlimit limit;

    if ((error != EMFILE) && (error != ENFILE)) {
        ucs_error("%s: service: %s failed: %s", name, what, strerror(error));
        return UCS_ERR_IO_ERROR;
    }

    getrlimit(RLIMIT_NOFILE, &limit);
    ucs_log(level, "%s: service: %s failed: %s (ulimit -n is %zu): peers that "
            "connect have to try again, for UCX_NPRDMA_CM_TIMEOUT", name, what,
            strerror(error), (size_t)limit.rlim_cur);
    service->told_shortage = 1;
    return UCS_ERR_NO_RESOURCE;
}

static ucs_status_t uct_nprdma_service_create_cqs(uct_nprdma_service_t *service,
                                                  unsigned recv_cq_len)
{
    const uct_nprdma_verbs_t *verbs = service->md->super.verbs;
    struct ibv_context *context     = service->md->super.context;
    ucs_status_t status;
    int flags;

    service->channel = verbs->create_comp_channel(context);
    if (service->channel == NULL) {
        return uct_nprdma_service_lacks(service, "ibv_create_comp_channel()");
    }

    flags = fcntl(service->channel->fd, F_GETFL);
    if (fcntl(service->channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        status = uct_nprdma_service_lacks(service,
                                          "fcntl() of a completion channel");
        goto err_channel;
    }

    service->recv_cq = verbs->create_cq(context, recv_cq_len, NULL,
                                        service->channel, 0);
    if (service->recv_cq == NULL) {
        status = uct_nprdma_service_lacks(service, "ibv_create_cq()");
        goto err_channel;
    }

    service->send_cq = verbs->create_cq(context, UCT_NPRDMA_SERVICE_SEND_CQ_LEN,
                                        NULL, service->channel, 0);
    if (service->send_cq == NULL) {
        status = uct_nprdma_service_lacks(service, "ibv_create_cq()");
        goto err_recv_cq;
    }

    service->send_cq_avail = UCT_NPRDMA_SERVICE_SEND_CQ_LEN;
    return UCS_OK;

err_recv_cq:
    verbs->destroy_cq(service->recv_cq);
err_channel:
    verbs->destroy_comp_channel(service->channel);
    return status;
}

static void uct_nprdma_service_destroy_cqs(uct_nprdma_service_t *service)
{
    const uct_nprdma_verbs_t *verbs = service->md->super.verbs;

    verbs->destroy_cq(service->send_cq);
    verbs->destroy_cq(service->recv_cq);
    verbs->destroy_comp_channel(service->channel);
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

    service->wakeup_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (service->wakeup_fd < 0) {
        status = uct_nprdma_service_lacks(service, "eventfd()");
        goto err_srq;
    }

    service->told_shortage = 0;
    service->started       = 1;
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

ucs_status_t uct_nprdma_service_create(uct_nprdma_mem_md_t *md,
                                       unsigned num_slots,
                                       uct_nprdma_service_t **service_p)
{
    uct_nprdma_service_t *service;
    ucs_status_t status;

    service = ucs_calloc(1, sizeof(*service), "nprdma_service");
    if (service == NULL) {
        ucs_error("failed to allocate the service of %s", md->super.name);
        return UCS_ERR_NO_MEMORY;
    }

    status = uct_nprdma_populator_create(md, &service->populator);
    if (status != UCS_OK) {
        ucs_free(service);
        return status;
    }

    service->md        = md;
    service->num_slots = num_slots;
    pthread_mutex_init(&service->start_lock, NULL);
    pthread_mutex_init(&service->conns_lock, NULL);
    kh_init_inplace(uct_nprdma_service_conns, &service->conns_hash);
    ucs_list_head_init(&service->conns);
    *service_p = service;
    return UCS_OK;
}

static void uct_nprdma_service_stop(uct_nprdma_service_t *service)
{
    const uct_nprdma_verbs_t *verbs = service->md->super.verbs;
    uct_nprdma_service_conn_t *conn, *tmp;

    uct_nprdma_service_thread_stop(service);
    close(service->wakeup_fd);
    ucs_list_for_each_safe(conn, tmp, &service->conns, list) {
        if (conn->state != UCT_NPRDMA_SERVICE_CONN_CLOSED) {
            verbs->destroy_qp(conn->qp);
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
    uct_nprdma_populator_destroy(service->populator);

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

    /* Whoever waits for a reply has posted a receive for it before it sent the
     * request. To wait for one that has not would hold up all others. */
    status = uct_nprdma_qp_connect(&service->md->super, port_num, conn->qp,
                                   local_psn, peer, 0);
    if (status != UCS_OK) {
        service->md->super.verbs->destroy_qp(conn->qp);
        return status;
    }

    conn->qpn        = conn->qp->qp_num;
    conn->max_inline = ucs_min(max_inline, (uint32_t)UCT_NPRDMA_SERVICE_INLINE);
    return UCS_OK;
}

ucs_status_t
uct_nprdma_service_accept(uct_nprdma_service_t *service, uint8_t port_num,
                          const uct_nprdma_qp_addr_t *peer, uint32_t local_psn,
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
     * The peer cannot send before it knows our queue pair number, so it is in
     * the table in time.
     */
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
    /* By whoever executes: the queue pair is not ours. One wake-up is enough
     * for all connections that are probed at a time. */
    conn->probe_wanted = 1;
    if (!atomic_exchange(&service->probe_wanted, 1)) {
        service->attention = 1;
        uct_nprdma_service_thread_wakeup(service);
    }
}

void uct_nprdma_service_release(uct_nprdma_service_t *service,
                                uct_nprdma_service_conn_t *conn)
{
    /* The thread does the rest: the connection may be in use just now */
    conn->released     = 1;
    service->attention = 1;
    uct_nprdma_service_thread_wakeup(service);
}
