/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands about queue pairs. */

#include "firmware/emlx5_cmd.h"
#include "engine/emlx5_sq.h"
#include "object/emlx5_qp.h"

/* The number is at the same place in all of these commands. */
static emlx5_qp_t *emlx5_cmd_qp(const emlx5_cmd_t *cmd)
{
    return emlx5_table_get(&cmd->hca->qps,
                           EMLX5_GET(cmd->in, rst2init_qp_in, qpn));
}

static int emlx5_cmd_qp_is_possible(const uint8_t *c)
{
    switch (EMLX5_GET(c, qpc, st)) {
    case EMLX5_ST_RC:
    case EMLX5_ST_UC:
    case EMLX5_ST_UD:
    case EMLX5_ST_XRC:
    case EMLX5_ST_QP0:
    case EMLX5_ST_QP1:
    case EMLX5_ST_UMR:
        break;
    default:
        return 0;
    }
    /* A request with a signature has other segments */
    return !EMLX5_GET(c, qpc, wq_signature) &&
           (EMLX5_GET(c, qpc, log_rq_size) <= EMLX5_LOG_MAX_QP_SIZE) &&
           (EMLX5_GET(c, qpc, log_sq_size) <= EMLX5_LOG_MAX_QP_SIZE);
}

emlx5_cmd_status_t emlx5_cmd_create_qp(const emlx5_cmd_t *cmd)
{
    const uint8_t *c = cmd->in + EMLX5_OFFSET(create_qp_in, qpc);
    uint32_t list    = EMLX5_OFFSET(create_qp_in, pas);
    emlx5_pages_t ring;
    emlx5_qp_t *qp;

    if (!emlx5_cmd_qp_is_possible(c)) {
        return EMLX5_CMD_BAD_PARAM;
    }
    if (emlx5_pages_init(&ring, cmd->in + list, emlx5_cmd_list_size(cmd, list),
                         EMLX5_GET32(c, qpc, log_page_size),
                         EMLX5_GET32(c, qpc, page_offset),
                         emlx5_qp_ring_size(c)) != 0) {
        return EMLX5_CMD_BAD_IN_LENGTH;
    }
    qp = emlx5_qp_create(cmd->hca, c, &ring);
    if (qp == NULL) {
        emlx5_pages_cleanup(&ring);
        return EMLX5_CMD_NO_RES;
    }
    emlx5_sq_attach(qp);
    EMLX5_SET(cmd->out, create_qp_out, qpn, qp->number);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_modify_qp(const emlx5_cmd_t *cmd)
{
    emlx5_qp_t *qp = emlx5_cmd_qp(cmd);
    emlx5_qp_state_t before;

    if (qp == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    before = qp->state;
    if (emlx5_qp_modify(qp, cmd->op,
                        cmd->in + EMLX5_OFFSET(rst2init_qp_in, qpc),
                        EMLX5_GET32(cmd->in, rst2init_qp_in,
                                    opt_param_mask)) != 0) {
        return EMLX5_CMD_BAD_QP_STATE;
    }
    if ((qp->state == EMLX5_QP_ERR) && (before != EMLX5_QP_ERR)) {
        emlx5_qp_entered_error(qp);
    } else if (qp->state == EMLX5_QP_RTS) {
        /* The driver may have rung the doorbell before */
        emlx5_work_add(&cmd->hca->queue, &qp->sq_work);
    }
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_qp(const emlx5_cmd_t *cmd)
{
    uint8_t *c     = cmd->out + EMLX5_OFFSET(query_qp_out, qpc);
    emlx5_qp_t *qp = emlx5_cmd_qp(cmd);

    if (qp == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    memcpy(c, qp->context, sizeof(qp->context));
    EMLX5_SET(c, qpc, state, qp->state);
    EMLX5_SET(c, qpc, hw_sq_wqebb_counter, qp->sq_consumer);
    EMLX5_SET(c, qpc, sw_sq_wqebb_counter, qp->sq_producer);
    EMLX5_SET(c, qpc, hw_rq_counter, qp->rq_consumer);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_destroy_qp(const emlx5_cmd_t *cmd)
{
    emlx5_qp_t *qp = emlx5_cmd_qp(cmd);

    if (qp == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    emlx5_qp_destroy(qp);
    return EMLX5_CMD_OK;
}
