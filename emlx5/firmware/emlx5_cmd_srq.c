/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands about shared receive queues. */

#include "firmware/emlx5_cmd.h"
#include "object/emlx5_srq.h"

enum { EMLX5_RMP_READY = 1 };

_Static_assert((EMLX5_SIZE(xrc_srqc) <= EMLX5_SRQ_CONTEXT) &&
               (EMLX5_OFFSET(rmpc, wq) + EMLX5_OFFSET(wq, pas) <=
                EMLX5_SRQ_CONTEXT), "an SRQ keeps its context");

/* The number is at the same place in all of these commands. */
static emlx5_srq_t *emlx5_cmd_srq(const emlx5_cmd_t *cmd)
{
    return emlx5_table_get(&cmd->hca->srqs,
                           EMLX5_GET(cmd->in, query_rmp_in, rmpn));
}

/* What both kinds have in common */
typedef struct {
    uint32_t list, log_page, page_offset, log_size, log_stride;
    uint32_t context, context_size; /* in the input */
} emlx5_srq_params_t;

static emlx5_cmd_status_t
emlx5_cmd_create_srq(const emlx5_cmd_t *cmd, const emlx5_srq_params_t *params,
                     emlx5_srq_t **srq_p)
{
    uint32_t log_bytes = params->log_size + params->log_stride;
    emlx5_pages_t ring;
    emlx5_srq_t *srq;

    /* At least the link to the next receive and one element */
    if ((params->log_size > EMLX5_LOG_MAX_SRQ_SIZE) ||
        (params->log_stride < 5) ||
        ((1ull << params->log_stride) > EMLX5_MAX_RQ_WQE)) {
        return EMLX5_CMD_BAD_PARAM;
    }
    if (emlx5_pages_init(&ring, cmd->in + params->list,
                         emlx5_cmd_list_size(cmd, params->list),
                         params->log_page, params->page_offset,
                         1ull << log_bytes) != 0) {
        return EMLX5_CMD_BAD_IN_LENGTH;
    }
    srq = emlx5_srq_create(cmd->hca, &ring);
    if (srq == NULL) {
        emlx5_pages_cleanup(&ring);
        return EMLX5_CMD_NO_RES;
    }
    srq->log_size     = params->log_size;
    srq->stride       = 1u << params->log_stride;
    srq->context_size = params->context_size;
    memcpy(srq->context, cmd->in + params->context, params->context_size);
    *srq_p = srq;
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_create_rmp(const emlx5_cmd_t *cmd)
{
    uint32_t context = EMLX5_OFFSET(create_rmp_in, ctx);
    uint32_t queue   = context + EMLX5_OFFSET(rmpc, wq);
    const uint8_t *w = cmd->in + queue;
    emlx5_srq_params_t params = {
        .list         = queue + EMLX5_OFFSET(wq, pas),
        .log_page     = EMLX5_GET32(w, wq, log_wq_pg_sz),
        .page_offset  = EMLX5_GET32(w, wq, page_offset),
        .log_size     = EMLX5_GET32(w, wq, log_wq_sz),
        .log_stride   = EMLX5_GET32(w, wq, log_wq_stride),
        .context      = context,
        .context_size = EMLX5_OFFSET(rmpc, wq) + EMLX5_OFFSET(wq, pas),
    };
    emlx5_cmd_status_t status;
    emlx5_srq_t *srq;

    /* Other types are no linked lists; only Ethernet has them */
    if (EMLX5_GET(w, wq, wq_type) != 0) {
        return EMLX5_CMD_BAD_PARAM;
    }
    status = emlx5_cmd_create_srq(cmd, &params, &srq);
    if (status != EMLX5_CMD_OK) {
        return status;
    }
    srq->pd    = EMLX5_GET32(w, wq, pd);
    srq->dbr   = EMLX5_GET(w, wq, dbr_addr);
    srq->limit = EMLX5_GET32(w, wq, lwm);
    EMLX5_SET(cmd->out, create_rmp_out, rmpn, srq->number);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_modify_rmp(const emlx5_cmd_t *cmd)
{
    const uint8_t *w = cmd->in + EMLX5_OFFSET(modify_rmp_in, ctx) +
                       EMLX5_OFFSET(rmpc, wq);
    emlx5_srq_t *srq = emlx5_cmd_srq(cmd);

    if (srq == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    srq->limit = EMLX5_GET32(w, wq, lwm);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_rmp(const emlx5_cmd_t *cmd)
{
    uint8_t *c       = cmd->out + EMLX5_OFFSET(query_rmp_out, rmp_context);
    emlx5_srq_t *srq = emlx5_cmd_srq(cmd);

    if ((srq == NULL) || (srq->cqn != 0)) {
        return EMLX5_CMD_BAD_RES;
    }
    memcpy(c, srq->context, srq->context_size);
    EMLX5_SET(c, rmpc, state, EMLX5_RMP_READY);
    EMLX5_SET(c + EMLX5_OFFSET(rmpc, wq), wq, lwm, srq->limit);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_destroy_rmp(const emlx5_cmd_t *cmd)
{
    emlx5_srq_t *srq = emlx5_cmd_srq(cmd);

    if (srq == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    emlx5_srq_destroy(srq);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_create_xrc_srq(const emlx5_cmd_t *cmd)
{
    uint32_t context = EMLX5_OFFSET(create_xrc_srq_in, xrc_srq_context_entry);
    const uint8_t *c = cmd->in + context;
    emlx5_srq_params_t params = {
        .list         = EMLX5_OFFSET(create_xrc_srq_in, pas),
        .log_page     = EMLX5_GET32(c, xrc_srqc, log_page_size),
        .page_offset  = EMLX5_GET32(c, xrc_srqc, page_offset),
        .log_size     = EMLX5_GET32(c, xrc_srqc, log_xrc_srq_size),
        .log_stride   = EMLX5_GET32(c, xrc_srqc, log_rq_stride) + 4,
        .context      = context,
        .context_size = EMLX5_SIZE(xrc_srqc),
    };
    emlx5_cmd_status_t status;
    emlx5_srq_t *srq;

    if (EMLX5_GET(c, xrc_srqc, cqn) == 0) {
        return EMLX5_CMD_BAD_PARAM;
    }
    status = emlx5_cmd_create_srq(cmd, &params, &srq);
    if (status != EMLX5_CMD_OK) {
        return status;
    }
    srq->cqn   = EMLX5_GET32(c, xrc_srqc, cqn);
    srq->xrcd  = EMLX5_GET32(c, xrc_srqc, xrcd);
    srq->pd    = EMLX5_GET32(c, xrc_srqc, pd);
    srq->limit = EMLX5_GET32(c, xrc_srqc, lwm);
    srq->dbr   = (EMLX5_GET(c, xrc_srqc, db_record_addr_h) << 32) |
                 (EMLX5_GET(c, xrc_srqc, db_record_addr_l) << 2);
    EMLX5_SET(cmd->out, create_xrc_srq_out, xrc_srqn, srq->number);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_arm_xrc_srq(const emlx5_cmd_t *cmd)
{
    emlx5_srq_t *srq = emlx5_cmd_srq(cmd);

    if ((srq == NULL) || (srq->cqn == 0)) {
        return EMLX5_CMD_BAD_RES;
    }
    srq->limit = EMLX5_GET32(cmd->in, arm_xrc_srq_in, lwm);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_xrc_srq(const emlx5_cmd_t *cmd)
{
    uint8_t *c = cmd->out + EMLX5_OFFSET(query_xrc_srq_out,
                                         xrc_srq_context_entry);
    emlx5_srq_t *srq = emlx5_cmd_srq(cmd);

    if ((srq == NULL) || (srq->cqn == 0)) {
        return EMLX5_CMD_BAD_RES;
    }
    memcpy(c, srq->context, srq->context_size);
    EMLX5_SET(c, xrc_srqc, lwm, srq->limit);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_destroy_xrc_srq(const emlx5_cmd_t *cmd)
{
    return emlx5_cmd_destroy_rmp(cmd);
}
