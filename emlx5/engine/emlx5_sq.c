/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "engine/emlx5_sq.h"
#include "base/emlx5_log.h"
#include "base/emlx5_time.h"
#include "engine/emlx5_connected.h"
#include "engine/emlx5_datagram.h"
#include "engine/emlx5_rq.h"
#include "engine/emlx5_umr.h"
#include "object/emlx5_eq.h"
#include "object/emlx5_fabric.h"

enum {
    EMLX5_SQ_BUDGET     = 16,            /* packets before others have a turn */
    EMLX5_SQ_FIRST_WAIT = EMLX5_MS,      /* ns */
    EMLX5_SQ_LONGEST_WAIT = 16 * EMLX5_MS,
    /* A guest that is emulated needs longer to post a receive */
    EMLX5_SQ_RNR_EXTRA  = 50 * EMLX5_MS,
    EMLX5_RNR_FOR_EVER  = 7,
    EMLX5_ACK_UNIT      = 4096           /* ns */
};

/* IBA 9.7.5.2.8: time of a NAK's timer, in units of 10 us */
static const uint16_t emlx5_rnr_timer[32] = {
    65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384,
    24576, 32768, 49152
};

/* --- completions -----------------------------------------------------------*/

static void emlx5_sq_complete(emlx5_qp_t *qp, emlx5_result_t result)
{
    uint8_t entry[EMLX5_CQE_SIZE] = {0};

    emlx5_put_be32(entry + 56, qp->number | ((uint32_t)qp->wqe.opcode << 24));
    emlx5_put_be16(entry + 60, qp->wqe.index);
    if (result == EMLX5_OK) {
        emlx5_put_be32(entry + 44, qp->done);
        emlx5_cq_post(qp->hca, qp->cqn_send, entry, EMLX5_CQE_REQ, 0);
        return;
    }
    ++qp->hca->stats.failed_requests;
    if (result != EMLX5_E_FLUSH) {
        emlx5_event("port %u: QP %#x: request %#x fails: syndrome %#x",
                    qp->hca->lid, qp->number, qp->wqe.opcode, result);
    }
    entry[55] = result;
    emlx5_cq_post(qp->hca, qp->cqn_send, entry, EMLX5_CQE_REQ_ERROR, 0);
}

/* After its own error, a connected QP is unusable, a datagram QP still
 * receives. */
static void emlx5_sq_error(emlx5_qp_t *qp)
{
    if (emlx5_st_is_datagram(qp->st)) {
        qp->state = EMLX5_QP_SQER;
        emlx5_work_add(&qp->hca->queue, &qp->sq_work);
    } else {
        emlx5_qp_fail(qp, 0);
    }
}

static void emlx5_sq_end(emlx5_qp_t *qp, emlx5_result_t result)
{
    qp->sq_consumer += (qp->wqe.size + EMLX5_WQE_BB - 1) / EMLX5_WQE_BB;
    qp->in_progress  = 0;
    qp->waits_since  = 0;
    if ((result != EMLX5_OK) || qp->wqe.signaled) {
        emlx5_sq_complete(qp, result);
    }
    if (result != EMLX5_OK) {
        emlx5_sq_error(qp);
    }
}

/* --- requests --------------------------------------------------------------*/

/* Reads the next request; it may wrap around the ring's end. -1 if it cannot be
 * read, or is longer than what the driver has posted. */
static int emlx5_sq_fetch(emlx5_qp_t *qp)
{
    uint32_t ring   = EMLX5_WQE_BB << qp->log_sq;
    uint32_t at     = (qp->sq_consumer * EMLX5_WQE_BB) & (ring - 1);
    uint16_t posted = qp->sq_producer - qp->sq_consumer;
    uint32_t blocks, first;
    uint8_t *bytes  = qp->wqe.bytes;

    if (emlx5_pages_read(&qp->hca->dma, &qp->ring, qp->sq_offset + at, bytes,
                         EMLX5_WQE_BB) != 0) {
        return -1;
    }
    qp->wqe.size = emlx5_wqe_size(bytes);
    blocks       = (qp->wqe.size + EMLX5_WQE_BB - 1) / EMLX5_WQE_BB;
    if ((blocks == 0) || (blocks > posted)) {
        return -1;
    }
    if (qp->wqe.size <= EMLX5_WQE_BB) {
        return 0;
    }
    first = ring - at;
    first = (first < qp->wqe.size) ? first : qp->wqe.size;
    if (emlx5_pages_read(&qp->hca->dma, &qp->ring, qp->sq_offset + at, bytes,
                         first) != 0) {
        return -1;
    }
    return (first == qp->wqe.size) ? 0 :
           emlx5_pages_read(&qp->hca->dma, &qp->ring, qp->sq_offset,
                            bytes + first, qp->wqe.size - first);
}

static void emlx5_sq_count(emlx5_hca_t *hca, const emlx5_wqe_t *wqe,
                           emlx5_st_t st)
{
    switch (wqe->opcode) {
    case EMLX5_WQE_WRITE:
    case EMLX5_WQE_WRITE_IMM:
        ++hca->stats.writes;
        break;
    case EMLX5_WQE_READ:
        ++hca->stats.reads;
        break;
    case EMLX5_WQE_CAS:
    case EMLX5_WQE_ADD:
        ++hca->stats.atomics;
        break;
    case EMLX5_WQE_UMR:
        ++hca->stats.umrs;
        break;
    case EMLX5_WQE_NOP:
        break;
    default:
        ++*(emlx5_st_is_datagram(st) ? &hca->stats.datagrams :
                                       &hca->stats.sends);
    }
}

/* Begins the next request. -1 after an error, which has ended the queue. */
static int emlx5_sq_begin(emlx5_qp_t *qp)
{
    if (emlx5_sq_fetch(qp) != 0) {
        emlx5_event("port %u: QP %#x: bad request at %u of %u", qp->hca->lid,
                    qp->number, qp->sq_consumer, qp->sq_producer);
        qp->sq_consumer = qp->sq_producer;
        emlx5_qp_fail(qp, EMLX5_EVENT_WQ_CATASTROPHE);
        return -1;
    }
    qp->in_progress = 1;
    qp->done        = 0;
    if (emlx5_wqe_parse(&qp->wqe, qp->st) != 0) {
        emlx5_sq_end(qp, EMLX5_E_LOCAL_QP);
        return -1;
    }
    emlx5_log(EMLX5_LOG_REQUEST, "port %u: QP %#x: request %#x of %llu bytes",
              qp->hca->lid, qp->number, qp->wqe.opcode,
              (unsigned long long)qp->wqe.sgl.total);
    emlx5_sq_count(qp->hca, &qp->wqe, qp->st);
    return 0;
}

static emlx5_result_t emlx5_sq_step(emlx5_qp_t *qp)
{
    if (qp->wqe.opcode == EMLX5_WQE_NOP) {
        return EMLX5_OK;
    }
    if (qp->wqe.opcode == EMLX5_WQE_UMR) {
        return emlx5_umr(qp);
    }
    if (qp->wqe.sgl.total > (1ull << EMLX5_LOG_MAX_MSG)) {
        return EMLX5_E_LOCAL_LENGTH;
    }
    return emlx5_st_is_datagram(qp->st) ? emlx5_datagram_send(qp) :
                                          emlx5_connected_step(qp);
}

/* --- waiting for the peer --------------------------------------------------*/

/* How long the request may wait, in ns */
static uint64_t emlx5_sq_patience(const emlx5_qp_t *qp, emlx5_result_t result)
{
    uint32_t timer   = EMLX5_GET32(qp->context, qpc, min_rnr_nak);
    uint32_t retries = EMLX5_GET32(qp->context, qpc, rnr_retry);
    uint32_t timeout = EMLX5_GET32(emlx5_qp_path(qp), ads, ack_timeout);

    if (result == EMLX5_WAIT_RECV) {
        return (retries == EMLX5_RNR_FOR_EVER) ? UINT64_MAX :
               retries * ((emlx5_rnr_timer[timer] * 10000ull) +
                          EMLX5_SQ_RNR_EXTRA);
    }
    return (timeout == 0) ? UINT64_MAX :
           (EMLX5_GET(qp->context, qpc, retry_count) + 1) *
           ((uint64_t)EMLX5_ACK_UNIT << timeout);
}

/* Receives are not announced to the device, so it looks again, at longer and
 * longer intervals. Returns the result if it has waited long enough. */
static emlx5_result_t emlx5_sq_wait(emlx5_qp_t *qp, emlx5_result_t result)
{
    uint64_t now = emlx5_now();

    if (qp->waits_since == 0) {
        qp->waits_since = now;
        qp->wait_time   = EMLX5_SQ_FIRST_WAIT;
    }
    if (now - qp->waits_since >= emlx5_sq_patience(qp, result)) {
        return (result == EMLX5_WAIT_RECV) ? EMLX5_E_RNR_RETRY : EMLX5_E_RETRY;
    }
    emlx5_work_add_at(&qp->hca->queue, &qp->sq_work, now + qp->wait_time);
    qp->wait_time *= 2;
    if (qp->wait_time > EMLX5_SQ_LONGEST_WAIT) {
        qp->wait_time = EMLX5_SQ_LONGEST_WAIT;
    }
    return result;
}

/* --- the queue -------------------------------------------------------------*/

/* Looks how far the driver has posted. */
static void emlx5_sq_update(emlx5_qp_t *qp)
{
    uint8_t record[4];
    uint16_t producer;

    qp->doorbell = 0;
    if (!qp->has_sq) {
        return;
    }
    if (emlx5_dma_read(&qp->hca->dma, qp->dbr + 4, record,
                       sizeof(record)) != 0) {
        emlx5_qp_fail(qp, EMLX5_EVENT_WQ_CATASTROPHE);
        return;
    }
    producer = emlx5_be32(record);
    if ((uint16_t)(producer - qp->sq_consumer) > (1u << qp->log_sq)) {
        emlx5_event("port %u: QP %#x: doorbell record has %u, after %u",
                    qp->hca->lid, qp->number, producer, qp->sq_consumer);
        emlx5_qp_fail(qp, EMLX5_EVENT_WQ_CATASTROPHE);
        return;
    }
    qp->sq_producer = producer;
}

/* Every request comes back, the one in progress first. */
static void emlx5_sq_flush(emlx5_qp_t *qp)
{
    emlx5_sq_update(qp);
    while (qp->sq_consumer != qp->sq_producer) {
        if (!qp->in_progress) {
            if (emlx5_sq_fetch(qp) != 0) {
                qp->sq_consumer = qp->sq_producer;
                break;
            }
            qp->wqe.opcode = qp->wqe.bytes[3];
            qp->wqe.index  = emlx5_be16(qp->wqe.bytes + 1);
        }
        qp->in_progress  = 0;
        qp->waits_since  = 0;
        qp->sq_consumer += (qp->wqe.size + EMLX5_WQE_BB - 1) / EMLX5_WQE_BB;
        emlx5_sq_complete(qp, EMLX5_E_FLUSH);
    }
}

static void emlx5_sq_run(emlx5_qp_t *qp)
{
    emlx5_result_t result;
    unsigned i;

    for (i = 0; (i < EMLX5_SQ_BUDGET) && (qp->state == EMLX5_QP_RTS); ++i) {
        if (!qp->in_progress) {
            if ((qp->sq_consumer == qp->sq_producer) ||
                (emlx5_sq_begin(qp) != 0)) {
                return;
            }
        }
        result = emlx5_sq_step(qp);
        if ((result == EMLX5_WAIT_RECV) || (result == EMLX5_WAIT_PEER)) {
            result = emlx5_sq_wait(qp, result);
            if ((result == EMLX5_WAIT_RECV) || (result == EMLX5_WAIT_PEER)) {
                return;
            }
        }
        if (result == EMLX5_MORE) {
            qp->waits_since = 0;
        } else {
            emlx5_sq_end(qp, result);
        }
    }
    emlx5_work_add(&qp->hca->queue, &qp->sq_work);
}

static void emlx5_sq_work(emlx5_work_t *work)
{
    emlx5_qp_t *qp = emlx5_container_of(work, emlx5_qp_t, sq_work);

    switch (qp->state) {
    case EMLX5_QP_RTS:
        if (qp->doorbell) {
            emlx5_sq_update(qp);
        }
        emlx5_sq_run(qp);
        break;
    case EMLX5_QP_SQER:
    case EMLX5_QP_ERR:
        if (qp->has_sq) {
            emlx5_sq_flush(qp);
        }
        break;
    default:
        /* The doorbell counts when the state permits requests */
        break;
    }
}

void emlx5_sq_attach(emlx5_qp_t *qp)
{
    emlx5_work_init(&qp->sq_work, emlx5_sq_work);
    emlx5_work_init(&qp->flush_work, emlx5_rq_flush);
}

void emlx5_sq_ring(emlx5_hca_t *hca, uint32_t uar, uint32_t qpn)
{
    emlx5_qp_t *qp = emlx5_table_get(&hca->qps, qpn);

    ++hca->stats.doorbells;
    if ((qp == NULL) || (qp->uar != uar)) {
        ++hca->stats.bad_doorbells;
        emlx5_event("port %u: UAR %u: doorbell for QP %#x refused", hca->lid,
                    uar, qpn);
        return;
    }
    qp->doorbell = 1;
    emlx5_work_add(&hca->queue, &qp->sq_work);
}
