/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands about what is only a number: protection domains, transport domains,
 * XRC domains, register pages, sets of counters. */

#include "firmware/emlx5_cmd.h"

/* All of them have this object in their tables */
static char emlx5_number;

/* The table of a command, and the field of its input or output */
static emlx5_table_t *emlx5_number_table(emlx5_hca_t *hca, uint16_t op,
                                         uint32_t *field)
{
    switch (op) {
    case EMLX5_OP(ALLOC_PD):
    case EMLX5_OP(DEALLOC_PD):
        *field = EMLX5_FIELD(alloc_pd_out, pd);
        return &hca->pds;
    case EMLX5_OP(ALLOC_TRANSPORT_DOMAIN):
    case EMLX5_OP(DEALLOC_TRANSPORT_DOMAIN):
        *field = EMLX5_FIELD(alloc_transport_domain_out, transport_domain);
        return &hca->tds;
    case EMLX5_OP(ALLOC_XRCD):
    case EMLX5_OP(DEALLOC_XRCD):
        *field = EMLX5_FIELD(alloc_xrcd_out, xrcd);
        return &hca->xrcds;
    case EMLX5_OP(ALLOC_UAR):
    case EMLX5_OP(DEALLOC_UAR):
        *field = EMLX5_FIELD(alloc_uar_out, uar);
        return &hca->uars;
    default:
        *field = EMLX5_FIELD(alloc_q_counter_out, counter_set_id);
        return &hca->counters;
    }
}

emlx5_cmd_status_t emlx5_cmd_alloc_number(const emlx5_cmd_t *cmd)
{
    uint32_t field, number;
    emlx5_table_t *table = emlx5_number_table(cmd->hca, cmd->op, &field);

    if (emlx5_table_add(table, &emlx5_number, &number) != 0) {
        return EMLX5_CMD_NO_RES;
    }
    emlx5_field_set(cmd->out, field, number);
    return EMLX5_CMD_OK;
}

/* The number is at the same place of the input as of the output before. */
emlx5_cmd_status_t emlx5_cmd_dealloc_number(const emlx5_cmd_t *cmd)
{
    uint32_t field;
    emlx5_table_t *table = emlx5_number_table(cmd->hca, cmd->op, &field);
    uint64_t number      = emlx5_field_get(cmd->in, field);

    return (emlx5_table_remove(table, number) != NULL) ? EMLX5_CMD_OK :
                                                         EMLX5_CMD_BAD_RES;
}
