/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "engine/emlx5_datagram.h"
#include "engine/emlx5_move.h"
#include "engine/emlx5_rq.h"
#include "object/emlx5_fabric.h"

enum {
    EMLX5_GRH_SIZE       = 40,
    EMLX5_GRH_NEXT       = 0x1b,     /* what follows is InfiniBand */
    EMLX5_GRH_OVERHEAD   = 12 + 8 + 4, /* BTH, DETH, checksum */
    EMLX5_QKEY_OWN       = 1u << 31, /* the sender's own Q_Key counts */
    EMLX5_QP0_NUMBER     = 0,
    EMLX5_QP1_NUMBER     = 1,
    EMLX5_CQE_GRH        = 1 << 28
};

static uint8_t emlx5_datagram[EMLX5_GRH_SIZE + EMLX5_MAX_MTU];

/* QPs 0 and 1 have other numbers inside of the device. */
static emlx5_qp_t *emlx5_datagram_special(const emlx5_hca_t *hca, emlx5_st_t st)
{
    uint32_t number = 0;
    emlx5_qp_t *qp;

    while ((qp = emlx5_table_next(&hca->qps, &number)) != NULL) {
        if (qp->st == st) {
            return qp;
        }
        ++number;
    }
    return NULL;
}

/* The receiver, NULL if there is none that accepts it */
static emlx5_qp_t *emlx5_datagram_peer(const emlx5_qp_t *qp)
{
    const emlx5_av_t *av = &qp->wqe.av;
    emlx5_hca_t *hca     = emlx5_fabric_find(qp->hca, av->lid);
    uint32_t qkey        = av->qkey;
    emlx5_qp_t *peer;

    if (hca == NULL) {
        return NULL;
    }
    if (av->qpn == EMLX5_QP0_NUMBER) {
        peer = emlx5_datagram_special(hca, EMLX5_ST_QP0);
    } else if (av->qpn == EMLX5_QP1_NUMBER) {
        peer = emlx5_datagram_special(hca, EMLX5_ST_QP1);
    } else {
        peer = emlx5_table_get(&hca->qps, av->qpn);
        if (qkey & (uint32_t)EMLX5_QKEY_OWN) {
            qkey = EMLX5_GET32(qp->context, qpc, q_key);
        }
        if ((peer == NULL) || (peer->st != EMLX5_ST_UD) ||
            (EMLX5_GET(peer->context, qpc, q_key) != qkey)) {
            return NULL;
        }
    }
    return ((peer != NULL) && ((peer->state == EMLX5_QP_RTR) ||
                               (peer->state == EMLX5_QP_RTS) ||
                               (peer->state == EMLX5_QP_SQER))) ? peer : NULL;
}

/* The global route header as IBA describes it (8.3) */
static void emlx5_datagram_grh(const emlx5_qp_t *qp, uint8_t *grh)
{
    const emlx5_av_t *av = &qp->wqe.av;
    uint16_t imm         = (qp->wqe.opcode == EMLX5_WQE_SEND_IMM) ? 4 : 0;

    emlx5_put_be32(grh, (6u << 28) | ((uint32_t)av->traffic_class << 20) |
                        av->flow);
    emlx5_put_be16(grh + 4, ((qp->wqe.sgl.total + 3) & ~3u) + imm +
                            EMLX5_GRH_OVERHEAD);
    grh[6] = EMLX5_GRH_NEXT;
    grh[7] = av->hop_limit;
    emlx5_put_be64(grh + 8, 0xfe80000000000000ull);
    emlx5_put_be64(grh + 16, qp->hca->guid);
    memcpy(grh + 24, av->gid, sizeof(av->gid));
}

/* Into qp->recv of the receiver. Without a header its 40 bytes are left out. */
static int emlx5_datagram_place(const emlx5_qp_t *qp, emlx5_qp_t *peer)
{
    emlx5_buffer_t to = {peer->hca, peer->recv.pd, &peer->recv.sgl,
                         peer->recv.bytes, 0};
    uint32_t skip     = EMLX5_GRH_SIZE;

    if (qp->wqe.av.global) {
        emlx5_datagram_grh(qp, emlx5_datagram);
        skip = 0;
    }
    return emlx5_buffer_put(&to, skip, emlx5_datagram + skip,
                            EMLX5_GRH_SIZE + qp->wqe.sgl.total - skip);
}

static void emlx5_datagram_receive(const emlx5_qp_t *qp, emlx5_qp_t *peer)
{
    int with_imm = qp->wqe.opcode == EMLX5_WQE_SEND_IMM;
    uint32_t source = (qp->st == EMLX5_ST_QP0) ? EMLX5_QP0_NUMBER :
                      (qp->st == EMLX5_ST_QP1) ? EMLX5_QP1_NUMBER : qp->number;
    uint8_t entry[EMLX5_CQE_SIZE] = {0};
    uint64_t total  = EMLX5_GRH_SIZE + qp->wqe.sgl.total;

    if ((total > peer->recv.sgl.total) ||
        (emlx5_datagram_place(qp, peer) != 0)) {
        emlx5_rq_error(peer, (total > peer->recv.sgl.total) ?
                             EMLX5_E_LOCAL_LENGTH : EMLX5_E_LOCAL_PROT);
        emlx5_qp_fail(peer, 0);
        return;
    }
    emlx5_fabric_count(qp->hca, peer->hca, qp->wqe.sgl.total);
    emlx5_put_be16(entry + 22, qp->hca->lid);
    emlx5_put_be32(entry + 24, source | ((uint32_t)qp->wqe.av.sl << 24) |
                               (qp->wqe.av.global ? EMLX5_CQE_GRH : 0));
    emlx5_put_be32(entry + 36, with_imm ? qp->wqe.imm : 0);
    emlx5_put_be32(entry + 44, total);
    emlx5_rq_done(peer, entry, with_imm ? EMLX5_CQE_SEND_IMM : EMLX5_CQE_SEND,
                  qp->wqe.solicited);
}

emlx5_result_t emlx5_datagram_send(emlx5_qp_t *qp)
{
    emlx5_buffer_t from = {qp->hca, qp->pd, &qp->wqe.sgl, qp->wqe.bytes, 0};
    emlx5_qp_t *peer;
    int taken;

    if (qp->wqe.sgl.total > EMLX5_MAX_MTU) {
        return EMLX5_E_LOCAL_LENGTH;
    }
    if (emlx5_buffer_get(&from, 0, emlx5_datagram + EMLX5_GRH_SIZE,
                         qp->wqe.sgl.total) != 0) {
        return EMLX5_E_LOCAL_PROT;
    }
    qp->done = qp->wqe.sgl.total;
    peer     = emlx5_datagram_peer(qp);
    taken    = (peer != NULL) ? emlx5_rq_take(peer, peer->srqn) : 0;
    if (taken > 0) {
        emlx5_datagram_receive(qp, peer);
    } else {
        ++qp->hca->stats.dropped_datagrams;
        if (taken < 0) {
            emlx5_qp_fail(peer, 0);
        }
    }
    return EMLX5_OK;
}
