/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_qp.h"

#include <stdlib.h>

/* Bits of opt_param_mask */
enum {
    EMLX5_OPT_RRE        = 1 << 1,
    EMLX5_OPT_RAE        = 1 << 2,
    EMLX5_OPT_RWE        = 1 << 3,
    EMLX5_OPT_PKEY_INDEX = 1 << 4,
    EMLX5_OPT_Q_KEY      = 1 << 5,
    EMLX5_OPT_RNR_TIMER  = 1 << 6,
    EMLX5_OPT_SRA_MAX    = 1 << 8,
    EMLX5_OPT_RRA_MAX    = 1 << 9,
    EMLX5_OPT_RETRIES    = 1 << 12,
    EMLX5_OPT_RNR_RETRY  = 1 << 13,
    EMLX5_OPT_TIMEOUT    = 1 << 14
};

#define EMLX5_STATE(_s) (1u << EMLX5_QP_##_s)
#define EMLX5_ANY_STATE 0x7f

/* Fields that a command takes from its context. It leaves others there empty:
 * they must not be taken. */
static const uint32_t emlx5_init_fields[] = {
    EMLX5_FIELD(qpc, pd), EMLX5_FIELD(qpc, cqn_snd), EMLX5_FIELD(qpc, cqn_rcv),
    EMLX5_FIELD(qpc, rre), EMLX5_FIELD(qpc, rwe), EMLX5_FIELD(qpc, rae),
    EMLX5_FIELD(qpc, atomic_mode), EMLX5_FIELD(qpc, q_key),
    EMLX5_FIELD(qpc, counter_set_id), EMLX5_FIELD(qpc, pm_state), 0
};

static const uint32_t emlx5_init_path[] = {
    EMLX5_FIELD(ads, vhca_port_num), EMLX5_FIELD(ads, pkey_index), 0
};

static const uint32_t emlx5_rtr_fields[] = {
    EMLX5_FIELD(qpc, mtu), EMLX5_FIELD(qpc, log_msg_max),
    EMLX5_FIELD(qpc, remote_qpn), EMLX5_FIELD(qpc, next_rcv_psn),
    EMLX5_FIELD(qpc, min_rnr_nak), EMLX5_FIELD(qpc, log_rra_max),
    EMLX5_FIELD(qpc, log_ack_req_freq), 0
};

static const uint32_t emlx5_rtr_path[] = {
    EMLX5_FIELD(ads, rlid), EMLX5_FIELD(ads, sl), EMLX5_FIELD(ads, grh),
    EMLX5_FIELD(ads, mlid), EMLX5_FIELD(ads, hop_limit),
    EMLX5_FIELD(ads, tclass), EMLX5_FIELD(ads, flow_label),
    EMLX5_FIELD(ads, src_addr_index), EMLX5_FIELD(ads, stat_rate),
    EMLX5_FIELD(ads, fl), 0
};

static const uint32_t emlx5_rts_fields[] = {
    EMLX5_FIELD(qpc, next_send_psn), EMLX5_FIELD(qpc, retry_count),
    EMLX5_FIELD(qpc, rnr_retry), EMLX5_FIELD(qpc, log_sra_max), 0
};

static const uint32_t emlx5_rts_path[] = {
    EMLX5_FIELD(ads, ack_timeout), 0
};

/* Fields that a command takes if opt_param_mask says so */
static const struct {
    uint32_t option, field;
} emlx5_options[] = {
    {EMLX5_OPT_RRE, EMLX5_FIELD(qpc, rre)},
    {EMLX5_OPT_RAE, EMLX5_FIELD(qpc, rae)},
    {EMLX5_OPT_RWE, EMLX5_FIELD(qpc, rwe)},
    {EMLX5_OPT_Q_KEY, EMLX5_FIELD(qpc, q_key)},
    {EMLX5_OPT_RNR_TIMER, EMLX5_FIELD(qpc, min_rnr_nak)},
    {EMLX5_OPT_SRA_MAX, EMLX5_FIELD(qpc, log_sra_max)},
    {EMLX5_OPT_RRA_MAX, EMLX5_FIELD(qpc, log_rra_max)},
    {EMLX5_OPT_RETRIES, EMLX5_FIELD(qpc, retry_count)},
    {EMLX5_OPT_RNR_RETRY, EMLX5_FIELD(qpc, rnr_retry)},
};

static const struct {
    uint16_t         op;
    uint32_t         from; /* permitted states */
    emlx5_qp_state_t to;
    const uint32_t   *fields, *path;
} emlx5_transitions[] = {
    {EMLX5_OP(RST2INIT_QP), EMLX5_STATE(RST), EMLX5_QP_INIT, emlx5_init_fields,
     emlx5_init_path},
    {EMLX5_OP(INIT2INIT_QP), EMLX5_STATE(INIT), EMLX5_QP_INIT,
     emlx5_init_fields, emlx5_init_path},
    {EMLX5_OP(INIT2RTR_QP), EMLX5_STATE(INIT), EMLX5_QP_RTR, emlx5_rtr_fields,
     emlx5_rtr_path},
    {EMLX5_OP(RTR2RTS_QP), EMLX5_STATE(RTR), EMLX5_QP_RTS, emlx5_rts_fields,
     emlx5_rts_path},
    {EMLX5_OP(RTS2RTS_QP), EMLX5_STATE(RTS), EMLX5_QP_RTS, NULL, NULL},
    {EMLX5_OP(SQERR2RTS_QP), EMLX5_STATE(SQER), EMLX5_QP_RTS, NULL, NULL},
    {EMLX5_OP(SQD_RTS_QP), EMLX5_STATE(SQD), EMLX5_QP_RTS, NULL, NULL},
    {EMLX5_OP(2ERR_QP), EMLX5_ANY_STATE, EMLX5_QP_ERR, NULL, NULL},
    {EMLX5_OP(2RST_QP), EMLX5_ANY_STATE, EMLX5_QP_RST, NULL, NULL},
};

enum { EMLX5_TRANSITIONS = sizeof(emlx5_transitions) /
                           sizeof(emlx5_transitions[0]) };

static void emlx5_qp_read_context(emlx5_qp_t *qp)
{
    const uint8_t *c = qp->context;

    qp->pd       = EMLX5_GET32(c, qpc, pd);
    qp->cqn_send = EMLX5_GET32(c, qpc, cqn_snd);
    qp->cqn_recv = EMLX5_GET32(c, qpc, cqn_rcv);
    qp->srqn     = EMLX5_GET32(c, qpc, srqn_rmpn_xrqn);
    qp->rq_type  = EMLX5_GET32(c, qpc, rq_type);
    qp->remote   = EMLX5_GET32(c, qpc, remote_qpn);
}

static uint64_t emlx5_qp_rq_size(const uint8_t *c)
{
    if (EMLX5_GET(c, qpc, rq_type) != EMLX5_RQ_OWN) {
        return 0;
    }
    return 16ull << (EMLX5_GET(c, qpc, log_rq_stride) +
                     EMLX5_GET(c, qpc, log_rq_size));
}

uint64_t emlx5_qp_ring_size(const uint8_t *c)
{
    uint64_t sends = EMLX5_GET(c, qpc, no_sq) ? 0 :
                     ((uint64_t)EMLX5_WQE_BB << EMLX5_GET(c, qpc, log_sq_size));

    return emlx5_qp_rq_size(c) + sends;
}

emlx5_qp_t *emlx5_qp_create(emlx5_hca_t *hca, const uint8_t *context,
                            const emlx5_pages_t *ring)
{
    emlx5_qp_t *qp = calloc(1, sizeof(*qp));

    if ((qp == NULL) || (emlx5_table_add(&hca->qps, qp, &qp->number) != 0)) {
        free(qp);
        return NULL;
    }
    qp->hca  = hca;
    qp->ring = *ring;
    memcpy(qp->context, context, sizeof(qp->context));
    emlx5_qp_read_context(qp);
    qp->st        = EMLX5_GET32(context, qpc, st);
    qp->dbr       = EMLX5_GET(context, qpc, dbr_addr);
    qp->uar       = EMLX5_GET32(context, qpc, uar_page);
    qp->log_rq    = EMLX5_GET32(context, qpc, log_rq_size);
    qp->rq_stride = 16u << EMLX5_GET32(context, qpc, log_rq_stride);
    qp->log_sq    = EMLX5_GET32(context, qpc, log_sq_size);
    qp->has_sq    = !EMLX5_GET(context, qpc, no_sq);
    qp->sq_offset = emlx5_qp_rq_size(context);
    emlx5_list_init(&qp->sq_work.link);
    emlx5_list_init(&qp->flush_work.link);
    return qp;
}

void emlx5_qp_destroy(emlx5_qp_t *qp)
{
    emlx5_table_remove(&qp->hca->qps, qp->number);
    emlx5_work_cancel(&qp->sq_work);
    emlx5_work_cancel(&qp->flush_work);
    emlx5_pages_cleanup(&qp->ring);
    free(qp);
}

static void emlx5_qp_reset(emlx5_qp_t *qp)
{
    emlx5_work_cancel(&qp->sq_work);
    emlx5_work_cancel(&qp->flush_work);
    qp->sq_consumer = 0;
    qp->sq_producer = 0;
    qp->rq_consumer = 0;
    qp->doorbell    = 0;
    qp->in_progress = 0;
    qp->waits_since = 0;
    qp->recv.active = 0;
}

static void emlx5_qp_copy(uint8_t *to, const uint8_t *from,
                          const uint32_t *fields)
{
    for (; (fields != NULL) && (*fields != 0); ++fields) {
        emlx5_field_copy(to, from, *fields);
    }
}

static void emlx5_qp_copy_options(emlx5_qp_t *qp, const uint8_t *context,
                                  uint32_t options)
{
    unsigned i;

    for (i = 0; i < sizeof(emlx5_options) / sizeof(emlx5_options[0]); ++i) {
        if (options & emlx5_options[i].option) {
            emlx5_field_copy(qp->context, context, emlx5_options[i].field);
        }
    }
}

int emlx5_qp_modify(emlx5_qp_t *qp, uint16_t op, const uint8_t *context,
                    uint32_t options)
{
    uint32_t path = EMLX5_OFFSET(qpc, primary_address_path);
    unsigned i;

    for (i = 0; i < EMLX5_TRANSITIONS; ++i) {
        if ((emlx5_transitions[i].op == op) &&
            (emlx5_transitions[i].from & (1u << qp->state))) {
            break;
        }
    }
    if (i == EMLX5_TRANSITIONS) {
        return -1;
    }
    emlx5_qp_copy(qp->context, context, emlx5_transitions[i].fields);
    emlx5_qp_copy(qp->context + path, context + path,
                  emlx5_transitions[i].path);
    if (op == EMLX5_OP(INIT2RTR_QP)) {
        memcpy(qp->context + path + EMLX5_OFFSET(ads, rgid_rip),
               context + path + EMLX5_OFFSET(ads, rgid_rip), 16);
    }
    if (options & EMLX5_OPT_PKEY_INDEX) {
        emlx5_field_copy(qp->context + path, context + path,
                         EMLX5_FIELD(ads, pkey_index));
    }
    if (options & EMLX5_OPT_TIMEOUT) {
        emlx5_field_copy(qp->context + path, context + path,
                         EMLX5_FIELD(ads, ack_timeout));
    }
    emlx5_qp_copy_options(qp, context, options);
    emlx5_qp_read_context(qp);
    qp->state = emlx5_transitions[i].to;
    if (qp->state == EMLX5_QP_RST) {
        emlx5_qp_reset(qp);
    }
    return 0;
}
