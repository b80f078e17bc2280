/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "qp_gate.h"

#include "uct/ib/nprdma/base/nprdma_ep.h"
#include "uct/ib/nprdma/service/nprdma_service_types.h"

#include <uct/base/uct_worker.h>

#include <string.h>

#define QP_GATE_MAX_QPS   512
#define QP_GATE_MAX_HELD  128

static struct {
    const uct_nprdma_verbs_t *real;
    uct_nprdma_verbs_t       verbs;
    int                      (*post_send)(struct ibv_qp *qp,
                                          struct ibv_send_wr *wr,
                                          struct ibv_send_wr **bad_wr);
    struct {
        uint32_t qpn;
        unsigned counts[QP_GATE_NUM_OPS];
    } qps[QP_GATE_MAX_QPS];
    struct ibv_qp            *_Atomic qp; /* Behind the gate; NULL: it is open.
                                           * Other threads post as well */
    qp_gate_op_t             from;
    int                      is_destroyed;
    unsigned                 num_held;
    struct {
        struct ibv_send_wr wr;
        struct ibv_sge     sge[UCT_NPRDMA_MAX_SEND_SGE];
        char               data[UCT_NPRDMA_MAX_INLINE];
    } held[QP_GATE_MAX_HELD];
} gate;


/* @return Kind of a work request, or QP_GATE_NUM_OPS if it moves no data. */
static qp_gate_op_t qp_gate_op(const struct ibv_send_wr *wr)
{
    if (wr->num_sge == 0) {
        return QP_GATE_NUM_OPS;
    }
    return ((wr->opcode == IBV_WR_SEND) ||
            (wr->opcode == IBV_WR_SEND_WITH_IMM)) ? QP_GATE_SEND :
           (wr->opcode == IBV_WR_RDMA_READ) ? QP_GATE_READ : QP_GATE_WRITE;
}

/* @return Counts of a queue pair. Numbers of queue pairs are not used again so
 *         soon. */
static unsigned *qp_gate_counts(uint32_t qpn)
{
    unsigned i;

    for (i = 0; (i < QP_GATE_MAX_QPS - 1) && (gate.qps[i].qpn != 0) &&
                (gate.qps[i].qpn != qpn); ++i) {
    }
    gate.qps[i].qpn = qpn;
    return gate.qps[i].counts;
}

/* Keep a work request. The caller may reuse inline data when it has posted. */
static void qp_gate_hold(const struct ibv_send_wr *wr)
{
    struct ibv_sge *sge = gate.held[gate.num_held].sge;
    char *data          = gate.held[gate.num_held].data;
    int i;

    gate.held[gate.num_held].wr = *wr;
    for (i = 0; i < wr->num_sge; ++i) {
        sge[i] = wr->sg_list[i];
    }
    for (i = 0; (wr->send_flags & IBV_SEND_INLINE) && (i < wr->num_sge); ++i) {
        memcpy(data, (void*)(uintptr_t)sge[i].addr, sge[i].length);
        sge[i].addr = (uintptr_t)data;
        data       += sge[i].length;
    }
    ++gate.num_held;
}

static int qp_gate_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                             struct ibv_send_wr **bad_wr)
{
    qp_gate_op_t op = qp_gate_op(wr);

    /* Datagrams leave in other threads as well */
    if (qp->qp_type != IBV_QPT_RC) {
        return gate.post_send(qp, wr, bad_wr);
    }

    if (op != QP_GATE_NUM_OPS) {
        ++qp_gate_counts(qp->qp_num)[op];
    }
    if ((qp != gate.qp) || ((gate.num_held == 0) && (op != gate.from))) {
        return gate.post_send(qp, wr, bad_wr);
    }

    if (gate.num_held == QP_GATE_MAX_HELD) {
        *bad_wr = wr;
        return ENOMEM;
    }

    qp_gate_hold(wr);
    return 0;
}

static int qp_gate_destroy_qp(struct ibv_qp *qp)
{
    if (qp == gate.qp) {
        gate.is_destroyed = 1;
        gate.num_held     = 0;
        gate.qp           = NULL;
    }
    return gate.real->destroy_qp(qp);
}

static uct_nprdma_conn_t *qp_gate_conn(uct_ep_h ep, unsigned kind)
{
    return &ucs_derived_of(ep, uct_nprdma_ep_t)->net.conns[kind];
}

void qp_gate_start(uct_md_h md, uct_iface_h iface)
{
    uct_nprdma_device_t *dev   = ucs_derived_of(md, uct_nprdma_device_t);
    ucs_async_context_t *async = ucs_derived_of(iface, uct_base_iface_t)
                                         ->worker->async;

    /* Its thread uses the device while it has this */
    UCS_ASYNC_BLOCK(async);
    memset(&gate, 0, sizeof(gate));
    gate.real                   = dev->verbs;
    gate.verbs                  = *dev->verbs;
    gate.verbs.destroy_qp       = qp_gate_destroy_qp;
    dev->verbs                  = &gate.verbs;
    gate.post_send              = dev->context->ops.post_send;
    dev->context->ops.post_send = qp_gate_post_send;
    UCS_ASYNC_UNBLOCK(async);
}

void qp_gate_close(uct_ep_h ep, unsigned kind, qp_gate_op_t from)
{
    gate.qp           = qp_gate_conn(ep, kind)->qp;
    gate.from         = from;
    gate.is_destroyed = 0;
}

unsigned qp_gate_num_held(void)
{
    return gate.num_held;
}

int qp_gate_is_destroyed(void)
{
    return gate.is_destroyed;
}

void qp_gate_open(void)
{
    struct ibv_qp *qp = gate.qp;
    unsigned num_held = gate.num_held;
    struct ibv_send_wr *bad_wr;
    unsigned i;

    gate.qp       = NULL;
    gate.num_held = 0;
    for (i = 0; i < num_held; ++i) {
        gate.held[i].wr.sg_list = gate.held[i].sge;
        gate.held[i].wr.next    = NULL;
        (void)gate.post_send(qp, &gate.held[i].wr, &bad_wr);
    }
}

unsigned qp_gate_count(uct_ep_h ep, unsigned kind, qp_gate_op_t op)
{
    const uct_nprdma_conn_t *conn = qp_gate_conn(ep, kind);

    return (conn->qp == NULL) ? 0 : qp_gate_counts(conn->qp->qp_num)[op];
}

int qp_gate_is_connecting(uct_ep_h ep, unsigned kind)
{
    return qp_gate_conn(ep, kind)->state == UCT_NPRDMA_CONN_CONNECTING;
}

int qp_gate_is_connected(uct_ep_h ep, unsigned kind)
{
    return qp_gate_conn(ep, kind)->state == UCT_NPRDMA_CONN_CONNECTED;
}

int qp_gate_are_freed(uct_iface_h iface)
{
    return ucs_list_is_empty(&ucs_derived_of(iface,
                                             uct_nprdma_iface_t)->closing);
}

unsigned qp_gate_num_served(uct_iface_h iface)
{
    uct_md_h md = ucs_derived_of(iface, uct_base_iface_t)->md;
    uct_nprdma_service_t *service =
            ucs_derived_of(md, uct_nprdma_md_t)->service;
    unsigned count = 0;
    uct_nprdma_service_conn_t *conn;

    pthread_mutex_lock(&service->conns_lock);
    ucs_list_for_each(conn, &service->conns, list) {
        count += conn->state != UCT_NPRDMA_SERVICE_CONN_CLOSED;
    }
    pthread_mutex_unlock(&service->conns_lock);
    return count;
}
