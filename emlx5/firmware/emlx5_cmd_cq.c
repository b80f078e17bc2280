/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands about completion queues. */

#include "firmware/emlx5_cmd.h"
#include "object/emlx5_cq.h"

/* What MODIFY_CQ changes (modify_field_select), and its op_mod */
enum {
    EMLX5_CQ_PERIOD = 1 << 0,
    EMLX5_CQ_COUNT  = 1 << 1,
    EMLX5_CQ_OI     = 1 << 2,
    EMLX5_CQ_RESIZE = 1
};

static emlx5_cq_t *emlx5_cmd_cq(const emlx5_cmd_t *cmd)
{
    return emlx5_table_get(&cmd->hca->cqs,
                           EMLX5_GET(cmd->in, query_cq_in, cqn));
}

/* The ring that a context and a list describe */
static emlx5_cmd_status_t emlx5_cmd_cq_ring(const emlx5_cmd_t *cmd,
                                            const uint8_t *c, uint32_t list,
                                            emlx5_pages_t *ring)
{
    uint32_t size   = EMLX5_GET32(c, cqc, log_cq_size);
    uint32_t stride = EMLX5_GET32(c, cqc, cqe_sz) ? 7 : 6;

    if ((size > EMLX5_LOG_MAX_CQ_SIZE) || (EMLX5_GET(c, cqc, cqe_sz) > 1)) {
        return EMLX5_CMD_BAD_PARAM;
    }
    return (emlx5_pages_init(ring, cmd->in + list,
                             emlx5_cmd_list_size(cmd, list),
                             EMLX5_GET32(c, cqc, log_page_size),
                             EMLX5_GET32(c, cqc, page_offset),
                             1ull << (size + stride)) == 0) ?
           EMLX5_CMD_OK : EMLX5_CMD_BAD_IN_LENGTH;
}

emlx5_cmd_status_t emlx5_cmd_create_cq(const emlx5_cmd_t *cmd)
{
    const uint8_t *c = cmd->in + EMLX5_OFFSET(create_cq_in, cq_context);
    emlx5_cmd_status_t status;
    emlx5_pages_t ring;
    emlx5_cq_t *cq;

    if (emlx5_table_get(&cmd->hca->eqs,
                        EMLX5_GET(c, cqc, c_eqn_or_apu_element)) == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    status = emlx5_cmd_cq_ring(cmd, c, EMLX5_OFFSET(create_cq_in, pas), &ring);
    if (status != EMLX5_CMD_OK) {
        return status;
    }
    cq = emlx5_cq_create(cmd->hca, c, &ring);
    if (cq == NULL) {
        emlx5_pages_cleanup(&ring);
        return EMLX5_CMD_NO_RES;
    }
    EMLX5_SET(cmd->out, create_cq_out, cqn, cq->number);
    return EMLX5_CMD_OK;
}

static emlx5_cmd_status_t emlx5_cmd_resize_cq(const emlx5_cmd_t *cmd,
                                              emlx5_cq_t *cq, const uint8_t *c)
{
    emlx5_cmd_status_t status;
    emlx5_pages_t ring;

    status = emlx5_cmd_cq_ring(cmd, c, EMLX5_OFFSET(modify_cq_in, pas), &ring);
    if (status != EMLX5_CMD_OK) {
        return status;
    }
    if (emlx5_cq_resize(cq, &ring, EMLX5_GET32(c, cqc, log_cq_size),
                        EMLX5_GET32(c, cqc, cqe_sz) ? 7 : 6) != 0) {
        emlx5_pages_cleanup(&ring);
        return EMLX5_CMD_BAD_CQ_SIZE;
    }
    emlx5_field_copy(cq->context, c, EMLX5_FIELD(cqc, log_cq_size));
    emlx5_field_copy(cq->context, c, EMLX5_FIELD(cqc, cqe_sz));
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_modify_cq(const emlx5_cmd_t *cmd)
{
    const uint8_t *c = cmd->in + EMLX5_OFFSET(modify_cq_in, cq_context);
    uint32_t select  = emlx5_be32(cmd->in +
                                  EMLX5_OFFSET(modify_cq_in,
                                     modify_field_select_resize_field_select));
    emlx5_cq_t *cq   = emlx5_cmd_cq(cmd);
    uint32_t period, count;

    if (cq == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    if (EMLX5_GET(cmd->in, modify_cq_in, op_mod) == EMLX5_CQ_RESIZE) {
        return emlx5_cmd_resize_cq(cmd, cq, c);
    }
    period = (select & EMLX5_CQ_PERIOD) ? EMLX5_GET32(c, cqc, cq_period) :
                                          cq->period_us;
    count  = (select & EMLX5_CQ_COUNT) ? EMLX5_GET32(c, cqc, cq_max_count) :
                                         cq->max_count;
    emlx5_cq_moderate(cq, period, count);
    if (select & EMLX5_CQ_OI) {
        cq->ignore_overrun = EMLX5_GET32(c, cqc, oi);
    }
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_cq(const emlx5_cmd_t *cmd)
{
    uint8_t *c     = cmd->out + EMLX5_OFFSET(query_cq_out, cq_context);
    emlx5_cq_t *cq = emlx5_cmd_cq(cmd);

    if (cq == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    memcpy(c, cq->context, EMLX5_CQC_SIZE);
    EMLX5_SET(c, cqc, cq_period, cq->period_us);
    EMLX5_SET(c, cqc, cq_max_count, cq->max_count);
    EMLX5_SET(c, cqc, producer_counter, cq->producer);
    EMLX5_SET(c, cqc, consumer_counter, cq->consumer);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_destroy_cq(const emlx5_cmd_t *cmd)
{
    emlx5_cq_t *cq = emlx5_cmd_cq(cmd);

    if (cq == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    emlx5_cq_destroy(cq);
    return EMLX5_CMD_OK;
}
