/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands about event queues. */

#include "firmware/emlx5_cmd.h"
#include "object/emlx5_eq.h"

static emlx5_eq_t *emlx5_cmd_eq(const emlx5_cmd_t *cmd)
{
    return emlx5_table_get(&cmd->hca->eqs,
                           EMLX5_GET(cmd->in, destroy_eq_in, eq_number));
}

emlx5_cmd_status_t emlx5_cmd_create_eq(const emlx5_cmd_t *cmd)
{
    uint32_t list    = EMLX5_OFFSET(create_eq_in, pas);
    const uint8_t *c = cmd->in + EMLX5_OFFSET(create_eq_in, eq_context_entry);
    uint32_t size    = EMLX5_GET32(c, eqc, log_eq_size);
    emlx5_pages_t ring;
    emlx5_eq_t *eq;
    int i;

    if ((size > EMLX5_LOG_MAX_EQ_SIZE) ||
        (EMLX5_GET(c, eqc, intr) >= EMLX5_VECTORS)) {
        return EMLX5_CMD_BAD_PARAM;
    }
    if (emlx5_pages_init(&ring, cmd->in + list, emlx5_cmd_list_size(cmd, list),
                         EMLX5_GET32(c, eqc, log_page_size),
                         EMLX5_GET32(c, eqc, page_offset),
                         64ull << size) != 0) {
        return EMLX5_CMD_BAD_IN_LENGTH;
    }
    eq = emlx5_eq_create(cmd->hca, &ring);
    if (eq == NULL) {
        emlx5_pages_cleanup(&ring);
        return EMLX5_CMD_NO_RES;
    }
    eq->log_size = size;
    eq->vector   = EMLX5_GET32(c, eqc, intr);
    eq->uar      = EMLX5_GET32(c, eqc, uar_page);
    for (i = 0; i < EMLX5_EQ_EVENTS; ++i) {
        eq->events[i] = emlx5_be64(cmd->in + EMLX5_OFFSET(create_eq_in,
                                                          event_bitmask) +
                                   (8 * i));
    }
    if ((eq->events[0] >> EMLX5_EVENT_COMMAND) & 1) {
        cmd->hca->cmd_eqn = eq->number;
    }
    EMLX5_SET(cmd->out, create_eq_out, eq_number, eq->number);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_eq(const emlx5_cmd_t *cmd)
{
    emlx5_eq_t *eq = emlx5_cmd_eq(cmd);
    uint8_t *c     = cmd->out + EMLX5_OFFSET(query_eq_out, eq_context_entry);

    if (eq == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    EMLX5_SET(c, eqc, log_eq_size, eq->log_size);
    EMLX5_SET(c, eqc, uar_page, eq->uar);
    EMLX5_SET(c, eqc, intr, eq->vector);
    EMLX5_SET(c, eqc, consumer_counter, eq->consumer);
    EMLX5_SET(c, eqc, producer_counter, eq->producer);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_destroy_eq(const emlx5_cmd_t *cmd)
{
    emlx5_eq_t *eq = emlx5_cmd_eq(cmd);

    if (eq == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    if (cmd->hca->cmd_eqn == eq->number) {
        cmd->hca->cmd_eqn = 0;
    }
    emlx5_eq_destroy(eq);
    return EMLX5_CMD_OK;
}
