/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "engine/emlx5_rq.h"
#include "base/emlx5_time.h"

enum {
    EMLX5_RQ_LINK      = 16,           /* bytes before the list, in an SRQ */
    EMLX5_RQ_FLUSH_NS  = 5 * EMLX5_MS  /* between looks for late receives */
};

/* Receives that are posted and not taken, or -1 if the record cannot be read or
 * says more than there can be. */
static int emlx5_rq_posted(emlx5_hca_t *hca, uint64_t dbr, uint16_t taken,
                           uint32_t log_size, uint16_t *posted)
{
    uint8_t record[4];
    uint16_t count;

    if (emlx5_dma_read(&hca->dma, dbr, record, sizeof(record)) != 0) {
        return -1;
    }
    *posted = emlx5_be32(record);
    count   = *posted - taken;
    return (count <= (1u << log_size)) ? count : -1;
}

static int emlx5_rq_parse(emlx5_recv_t *recv, uint32_t skip, uint32_t size)
{
    recv->active = 1;
    if (emlx5_sgl_parse(&recv->sgl, recv->bytes, skip, size) != 0) {
        recv->active = 0;
        return -1;
    }
    return 1;
}

emlx5_srq_t *emlx5_rq_shared(const emlx5_qp_t *qp, uint32_t srqn)
{
    emlx5_srq_t *srq = emlx5_table_get(&qp->hca->srqs, srqn);

    if ((srq != NULL) && (qp->st == EMLX5_ST_XRC) &&
        ((srq->cqn == 0) ||
         (srq->xrcd != EMLX5_GET32(qp->context, qpc, xrcd)))) {
        return NULL;
    }
    return srq;
}

static int emlx5_rq_take_shared(emlx5_qp_t *qp, uint32_t srqn)
{
    emlx5_srq_t *srq   = emlx5_rq_shared(qp, srqn);
    emlx5_recv_t *recv = &qp->recv;
    uint16_t posted;
    int count;

    if (srq == NULL) {
        return -1;
    }
    count = emlx5_rq_posted(qp->hca, srq->dbr, srq->taken, srq->log_size,
                            &posted);
    if (count <= 0) {
        return count;
    }
    if (emlx5_pages_read(&qp->hca->dma, &srq->ring,
                         (uint64_t)srq->head * srq->stride, recv->bytes,
                         srq->stride) != 0) {
        return -1;
    }
    recv->index = srq->head;
    recv->pd    = srq->pd;
    recv->srqn  = srq->number;
    recv->cqn   = (srq->cqn != 0) ? srq->cqn : qp->cqn_recv;
    srq->head   = emlx5_be16(recv->bytes + 2) & ((1u << srq->log_size) - 1);
    ++srq->taken;
    emlx5_srq_check_limit(srq, posted);
    return emlx5_rq_parse(recv, EMLX5_RQ_LINK, srq->stride);
}

int emlx5_rq_take(emlx5_qp_t *qp, uint32_t srqn)
{
    emlx5_recv_t *recv = &qp->recv;
    uint16_t posted;
    uint64_t at;
    int count;

    if (qp->rq_type == EMLX5_RQ_SHARED) {
        return emlx5_rq_take_shared(qp, srqn);
    }
    if (qp->rq_type != EMLX5_RQ_OWN) {
        return 0;
    }
    count = emlx5_rq_posted(qp->hca, qp->dbr, qp->rq_consumer, qp->log_rq,
                            &posted);
    if (count <= 0) {
        return count;
    }
    at = (uint64_t)(qp->rq_consumer & ((1u << qp->log_rq) - 1)) * qp->rq_stride;
    if (emlx5_pages_read(&qp->hca->dma, &qp->ring, at, recv->bytes,
                         qp->rq_stride) != 0) {
        return -1;
    }
    recv->index = qp->rq_consumer++;
    recv->pd    = qp->pd;
    recv->srqn  = 0;
    recv->cqn   = qp->cqn_recv;
    return emlx5_rq_parse(recv, 0, qp->rq_stride);
}

void emlx5_rq_done(emlx5_qp_t *qp, uint8_t *entry, emlx5_cqe_opcode_t opcode,
                   int solicited)
{
    emlx5_put_be32(entry + 32, qp->recv.srqn);
    emlx5_put_be32(entry + 56, qp->number);
    emlx5_put_be16(entry + 60, qp->recv.index);
    qp->recv.active = 0;
    emlx5_cq_post(qp->hca, qp->recv.cqn, entry, opcode, solicited);
}

void emlx5_rq_error(emlx5_qp_t *qp, emlx5_result_t syndrome)
{
    uint8_t entry[EMLX5_CQE_SIZE] = {0};

    entry[55] = syndrome;
    emlx5_rq_done(qp, entry, EMLX5_CQE_RECV_ERROR, 1);
}

void emlx5_rq_flush(emlx5_work_t *work)
{
    emlx5_qp_t *qp = emlx5_container_of(work, emlx5_qp_t, flush_work);

    if (qp->state != EMLX5_QP_ERR) {
        return;
    }
    if (qp->recv.active) {
        emlx5_rq_error(qp, EMLX5_E_FLUSH);
    }
    if (qp->rq_type != EMLX5_RQ_OWN) {
        return;
    }
    while (emlx5_rq_take(qp, 0) == 1) {
        emlx5_rq_error(qp, EMLX5_E_FLUSH);
    }
    emlx5_work_add_at(&qp->hca->queue, &qp->flush_work,
                      emlx5_now() + EMLX5_RQ_FLUSH_NS);
}
