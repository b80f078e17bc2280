/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "engine/emlx5_connected.h"
#include "base/emlx5_log.h"
#include "engine/emlx5_move.h"
#include "engine/emlx5_rq.h"
#include "object/emlx5_eq.h"
#include "object/emlx5_fabric.h"
#include "object/emlx5_mkey.h"

enum { EMLX5_NO_PD = 1 << 24 }; /* domains have 24 bits */

/* A packet's payload. One thread does everything, and a DMA never begins
 * another one. */
static uint8_t emlx5_packet[EMLX5_MAX_CHUNK];

/* The queue pair at the other end, NULL if it does not answer */
static emlx5_qp_t *emlx5_connected_peer(const emlx5_qp_t *qp)
{
    uint32_t lid     = EMLX5_GET32(emlx5_qp_path(qp), ads, rlid);
    emlx5_hca_t *hca = emlx5_fabric_find(qp->hca, lid);
    emlx5_qp_t *peer;

    peer = (hca != NULL) ? emlx5_table_get(&hca->qps, qp->remote) : NULL;
    if ((peer == NULL) || (peer->st != qp->st) ||
        (peer->remote != qp->number) ||
        (EMLX5_GET(emlx5_qp_path(peer), ads, rlid) != qp->hca->lid) ||
        ((peer->state != EMLX5_QP_RTR) && (peer->state != EMLX5_QP_RTS))) {
        return NULL;
    }
    return peer;
}

static emlx5_buffer_t emlx5_local_buffer(const emlx5_qp_t *qp)
{
    return (emlx5_buffer_t){qp->hca, qp->pd, &qp->wqe.sgl, qp->wqe.bytes, 0};
}

static uint32_t emlx5_connected_chunk(const emlx5_qp_t *qp)
{
    uint64_t left = qp->wqe.sgl.total - qp->done;

    return (left < qp->hca->chunk) ? left : qp->hca->chunk;
}

/* A packet has gone from one port to the other. Returns 1 if there is more. */
static int emlx5_connected_advance(emlx5_qp_t *qp, emlx5_hca_t *from,
                                   emlx5_hca_t *to, uint32_t length)
{
    emlx5_fabric_count(from, to, length);
    qp->done += length;
    return qp->done < qp->wqe.sgl.total;
}

/* The responder refuses: both ends fail. */
static emlx5_result_t emlx5_connected_refuse(emlx5_qp_t *peer, uint8_t event,
                                             emlx5_result_t result)
{
    emlx5_qp_fail(peer, event);
    return result;
}

/* The peer's receive for this message; taken at its begin */
static emlx5_result_t emlx5_connected_recv(emlx5_qp_t *qp, emlx5_qp_t *peer)
{
    uint32_t srqn = (qp->st == EMLX5_ST_XRC) ? qp->wqe.xrc_srqn : peer->srqn;

    if (qp->in_progress > 1) {
        /* The peer was reset meanwhile */
        return peer->recv.active ? EMLX5_OK : EMLX5_E_REMOTE_OP;
    }
    switch (emlx5_rq_take(peer, srqn)) {
    case 0:
        return EMLX5_WAIT_RECV;
    case 1:
        qp->in_progress = 2;
        return EMLX5_OK;
    default:
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_CATASTROPHE,
                                      EMLX5_E_REMOTE_OP);
    }
}

static void emlx5_connected_recv_done(emlx5_qp_t *qp, emlx5_qp_t *peer)
{
    uint8_t entry[EMLX5_CQE_SIZE] = {0};
    emlx5_cqe_opcode_t opcode;

    switch (qp->wqe.opcode) {
    case EMLX5_WQE_WRITE_IMM:
        opcode = EMLX5_CQE_WRITE_IMM;
        break;
    case EMLX5_WQE_SEND_IMM:
        opcode = EMLX5_CQE_SEND_IMM;
        break;
    case EMLX5_WQE_SEND_INVAL:
        opcode = EMLX5_CQE_SEND_INVAL;
        break;
    default:
        opcode = EMLX5_CQE_SEND;
    }
    emlx5_put_be32(entry + 24, qp->number);
    emlx5_put_be32(entry + 36, qp->wqe.imm);
    emlx5_put_be32(entry + 44, qp->wqe.sgl.total);
    emlx5_rq_done(peer, entry, opcode, qp->wqe.solicited);
}

static emlx5_result_t emlx5_connected_send(emlx5_qp_t *qp, emlx5_qp_t *peer)
{
    emlx5_buffer_t from = emlx5_local_buffer(qp);
    emlx5_buffer_t to   = {peer->hca, 0, &peer->recv.sgl, peer->recv.bytes, 0};
    uint32_t length     = emlx5_connected_chunk(qp);
    emlx5_result_t result;

    result = emlx5_connected_recv(qp, peer);
    if (result != EMLX5_OK) {
        return result;
    }
    if (qp->wqe.sgl.total > peer->recv.sgl.total) {
        emlx5_rq_error(peer, EMLX5_E_LOCAL_LENGTH);
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_INVALID,
                                      EMLX5_E_REMOTE_INVALID);
    }
    to.pd = peer->recv.pd;
    if (emlx5_buffer_get(&from, qp->done, emlx5_packet, length) != 0) {
        return EMLX5_E_LOCAL_PROT;
    }
    if (emlx5_buffer_put(&to, qp->done, emlx5_packet, length) != 0) {
        emlx5_rq_error(peer, EMLX5_E_LOCAL_PROT);
        return emlx5_connected_refuse(peer, 0, EMLX5_E_REMOTE_OP);
    }
    if (emlx5_connected_advance(qp, qp->hca, peer->hca, length)) {
        return EMLX5_MORE;
    }
    emlx5_connected_recv_done(qp, peer);
    return EMLX5_OK;
}

/* Requests of XRC are checked with the protection domain of the SRQ that they
 * name (InfiniBand volume 1, annex A14), because the queue pair has none. */
static uint32_t emlx5_connected_pd(const emlx5_qp_t *qp, const emlx5_qp_t *peer)
{
    const emlx5_srq_t *srq;

    if (qp->st != EMLX5_ST_XRC) {
        return peer->pd;
    }
    srq = emlx5_rq_shared(peer, qp->wqe.xrc_srqn);
    return (srq != NULL) ? srq->pd : EMLX5_NO_PD;
}

/* What a request may do at the responder, checked with its first packet */
static int emlx5_connected_permitted(const emlx5_qp_t *qp,
                                     const emlx5_qp_t *peer, uint32_t right)
{
    emlx5_access_t access = {qp->wqe.remote_key, emlx5_connected_pd(qp, peer),
                             right, qp->wqe.remote_va, qp->wqe.sgl.total, 0};
    int permitted;

    switch (right) {
    case EMLX5_REMOTE_READ:
        permitted = EMLX5_GET(peer->context, qpc, rre);
        break;
    case EMLX5_REMOTE_WRITE:
        permitted = EMLX5_GET(peer->context, qpc, rwe);
        break;
    default:
        permitted = EMLX5_GET(peer->context, qpc, rae);
    }
    return permitted && (emlx5_mkey_check(peer->hca, &access) == 0);
}

static emlx5_access_t emlx5_connected_access(const emlx5_qp_t *qp,
                                             const emlx5_qp_t *peer,
                                             uint32_t right, uint32_t length)
{
    return (emlx5_access_t){qp->wqe.remote_key, emlx5_connected_pd(qp, peer),
                            right, qp->wqe.remote_va + qp->done, length, 0};
}

static emlx5_result_t emlx5_connected_write(emlx5_qp_t *qp, emlx5_qp_t *peer)
{
    emlx5_buffer_t from = emlx5_local_buffer(qp);
    uint32_t length     = emlx5_connected_chunk(qp);
    emlx5_access_t to   = emlx5_connected_access(qp, peer, EMLX5_REMOTE_WRITE,
                                                 length);
    emlx5_result_t result;

    to.is_rdma = 1;
    if ((qp->done == 0) &&
        !emlx5_connected_permitted(qp, peer, EMLX5_REMOTE_WRITE)) {
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_ACCESS,
                                      EMLX5_E_REMOTE_ACCESS);
    }
    if (qp->wqe.opcode == EMLX5_WQE_WRITE_IMM) {
        result = emlx5_connected_recv(qp, peer);
        if (result != EMLX5_OK) {
            return result;
        }
    }
    if (emlx5_buffer_get(&from, qp->done, emlx5_packet, length) != 0) {
        return EMLX5_E_LOCAL_PROT;
    }
    if (emlx5_mkey_put(peer->hca, &to, emlx5_packet) != 0) {
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_ACCESS,
                                      EMLX5_E_REMOTE_ACCESS);
    }
    if (emlx5_connected_advance(qp, qp->hca, peer->hca, length)) {
        return EMLX5_MORE;
    }
    if (qp->wqe.opcode == EMLX5_WQE_WRITE_IMM) {
        emlx5_connected_recv_done(qp, peer);
    }
    /* The requester's completion must not be seen before the data */
    emlx5_dma_drain(&peer->hca->dma);
    return EMLX5_OK;
}

/* Reads memory of the responder. */
static emlx5_result_t emlx5_connected_fetch(emlx5_qp_t *qp, emlx5_qp_t *peer,
                                            uint32_t right, void *data,
                                            uint32_t length)
{
    emlx5_access_t from = emlx5_connected_access(qp, peer, right, length);
    int refused         = emlx5_mkey_get(peer->hca, &from, data);
    int failed          = emlx5_dma_finish(&peer->hca->dma);

    if (refused) {
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_ACCESS,
                                      EMLX5_E_REMOTE_ACCESS);
    }
    if (failed) {
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_CATASTROPHE,
                                      EMLX5_E_REMOTE_OP);
    }
    return EMLX5_OK;
}

static emlx5_result_t emlx5_connected_read(emlx5_qp_t *qp, emlx5_qp_t *peer)
{
    emlx5_buffer_t to = emlx5_local_buffer(qp);
    uint32_t length   = emlx5_connected_chunk(qp);
    emlx5_result_t result;

    to.is_rdma = 1;
    if ((qp->done == 0) &&
        !emlx5_connected_permitted(qp, peer, EMLX5_REMOTE_READ)) {
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_ACCESS,
                                      EMLX5_E_REMOTE_ACCESS);
    }
    result = emlx5_connected_fetch(qp, peer, EMLX5_REMOTE_READ, emlx5_packet,
                                   length);
    if (result != EMLX5_OK) {
        return result;
    }
    if (emlx5_buffer_put(&to, qp->done, emlx5_packet, length) != 0) {
        return EMLX5_E_LOCAL_PROT;
    }
    return emlx5_connected_advance(qp, peer->hca, qp->hca, length) ?
           EMLX5_MORE : EMLX5_OK;
}

/* 8 bytes in the host's order. Two transactions, so it is atomic among requests
 * to this function, not against the guest's CPUs. */
static emlx5_result_t emlx5_connected_atomic(emlx5_qp_t *qp, emlx5_qp_t *peer)
{
    emlx5_buffer_t to = emlx5_local_buffer(qp);
    emlx5_access_t access;
    uint64_t old, value;
    emlx5_result_t result;

    if ((qp->wqe.remote_va % 8 != 0) || (qp->wqe.sgl.total != 8)) {
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_INVALID,
                                      EMLX5_E_REMOTE_INVALID);
    }
    if (!emlx5_connected_permitted(qp, peer, EMLX5_REMOTE_ATOMIC)) {
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_ACCESS,
                                      EMLX5_E_REMOTE_ACCESS);
    }
    result = emlx5_connected_fetch(qp, peer, EMLX5_REMOTE_ATOMIC, &old, 8);
    if (result != EMLX5_OK) {
        return result;
    }
    if (qp->wqe.opcode == EMLX5_WQE_ADD) {
        value = htole64(le64toh(old) + qp->wqe.swap_add);
    } else {
        value = (le64toh(old) == qp->wqe.compare) ? htole64(qp->wqe.swap_add) :
                                                    old;
    }
    access = emlx5_connected_access(qp, peer, EMLX5_REMOTE_ATOMIC, 8);
    if ((value != old) && (emlx5_mkey_put(peer->hca, &access, &value) != 0)) {
        return emlx5_connected_refuse(peer, EMLX5_EVENT_WQ_ACCESS,
                                      EMLX5_E_REMOTE_ACCESS);
    }
    emlx5_dma_drain(&peer->hca->dma);
    emlx5_connected_advance(qp, qp->hca, peer->hca, 8);
    return (emlx5_buffer_put(&to, 0, (uint8_t*)&old, 8) == 0) ?
           EMLX5_OK : EMLX5_E_LOCAL_PROT;
}

static emlx5_result_t emlx5_connected_do(emlx5_qp_t *qp, emlx5_qp_t *peer)
{
    switch (qp->wqe.opcode) {
    case EMLX5_WQE_SEND:
    case EMLX5_WQE_SEND_IMM:
    case EMLX5_WQE_SEND_INVAL:
        return emlx5_connected_send(qp, peer);
    case EMLX5_WQE_WRITE:
    case EMLX5_WQE_WRITE_IMM:
        return emlx5_connected_write(qp, peer);
    case EMLX5_WQE_READ:
        return emlx5_connected_read(qp, peer);
    case EMLX5_WQE_CAS:
    case EMLX5_WQE_ADD:
        return emlx5_connected_atomic(qp, peer);
    default:
        return EMLX5_E_LOCAL_QP;
    }
}

emlx5_result_t emlx5_connected_step(emlx5_qp_t *qp)
{
    emlx5_qp_t *peer = emlx5_connected_peer(qp);
    emlx5_result_t result;

    result = (peer != NULL) ? emlx5_connected_do(qp, peer) : EMLX5_WAIT_PEER;
    if (qp->st != EMLX5_ST_UC) {
        return result;
    }
    /* Without acknowledgements, the sender learns only of its own errors */
    return ((result < EMLX5_E_REMOTE_INVALID) || (result == EMLX5_MORE)) ?
           result : EMLX5_OK;
}
