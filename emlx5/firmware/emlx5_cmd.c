/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "firmware/emlx5_cmd.h"

#define EMLX5_COMMAND(_op, _execute) \
    {EMLX5_OP(_op), #_op, emlx5_cmd_##_execute}

static const struct {
    uint16_t           op;
    const char         *name;
    emlx5_cmd_status_t (*execute)(const emlx5_cmd_t *cmd);
} emlx5_commands[] = {
    EMLX5_COMMAND(ENABLE_HCA, nothing),
    EMLX5_COMMAND(DISABLE_HCA, nothing),
    EMLX5_COMMAND(INIT_HCA, nothing),
    EMLX5_COMMAND(TEARDOWN_HCA, nothing),
    EMLX5_COMMAND(SET_DRIVER_VERSION, nothing),
    /* This firmware needs none of the guest's memory */
    EMLX5_COMMAND(QUERY_PAGES, nothing),
    EMLX5_COMMAND(MANAGE_PAGES, nothing),
    EMLX5_COMMAND(QUERY_ISSI, query_issi),
    EMLX5_COMMAND(SET_ISSI, set_issi),
    EMLX5_COMMAND(QUERY_HCA_CAP, query_hca_cap),
    EMLX5_COMMAND(SET_HCA_CAP, set_hca_cap),
    EMLX5_COMMAND(QUERY_ADAPTER, query_adapter),
    EMLX5_COMMAND(QUERY_SPECIAL_CONTEXTS, query_special_contexts),

    EMLX5_COMMAND(ALLOC_PD, alloc_number),
    EMLX5_COMMAND(DEALLOC_PD, dealloc_number),
    EMLX5_COMMAND(ALLOC_TRANSPORT_DOMAIN, alloc_number),
    EMLX5_COMMAND(DEALLOC_TRANSPORT_DOMAIN, dealloc_number),
    EMLX5_COMMAND(ALLOC_XRCD, alloc_number),
    EMLX5_COMMAND(DEALLOC_XRCD, dealloc_number),
    EMLX5_COMMAND(ALLOC_UAR, alloc_number),
    EMLX5_COMMAND(DEALLOC_UAR, dealloc_number),
    EMLX5_COMMAND(ALLOC_Q_COUNTER, alloc_number),
    EMLX5_COMMAND(DEALLOC_Q_COUNTER, dealloc_number),
    /* Nothing is lost or repeated here, so these count nothing */
    EMLX5_COMMAND(QUERY_Q_COUNTER, nothing),

    EMLX5_COMMAND(CREATE_EQ, create_eq),
    EMLX5_COMMAND(QUERY_EQ, query_eq),
    EMLX5_COMMAND(DESTROY_EQ, destroy_eq),
    EMLX5_COMMAND(CREATE_CQ, create_cq),
    EMLX5_COMMAND(MODIFY_CQ, modify_cq),
    EMLX5_COMMAND(QUERY_CQ, query_cq),
    EMLX5_COMMAND(DESTROY_CQ, destroy_cq),
    EMLX5_COMMAND(CREATE_MKEY, create_mkey),
    EMLX5_COMMAND(QUERY_MKEY, query_mkey),
    EMLX5_COMMAND(DESTROY_MKEY, destroy_mkey),
    EMLX5_COMMAND(CREATE_RMP, create_rmp),
    EMLX5_COMMAND(MODIFY_RMP, modify_rmp),
    EMLX5_COMMAND(QUERY_RMP, query_rmp),
    EMLX5_COMMAND(DESTROY_RMP, destroy_rmp),
    EMLX5_COMMAND(CREATE_XRC_SRQ, create_xrc_srq),
    EMLX5_COMMAND(ARM_XRC_SRQ, arm_xrc_srq),
    EMLX5_COMMAND(QUERY_XRC_SRQ, query_xrc_srq),
    EMLX5_COMMAND(DESTROY_XRC_SRQ, destroy_xrc_srq),

    EMLX5_COMMAND(CREATE_QP, create_qp),
    EMLX5_COMMAND(RST2INIT_QP, modify_qp),
    EMLX5_COMMAND(INIT2INIT_QP, modify_qp),
    EMLX5_COMMAND(INIT2RTR_QP, modify_qp),
    EMLX5_COMMAND(RTR2RTS_QP, modify_qp),
    EMLX5_COMMAND(RTS2RTS_QP, modify_qp),
    EMLX5_COMMAND(SQERR2RTS_QP, modify_qp),
    EMLX5_COMMAND(SQD_RTS_QP, modify_qp),
    EMLX5_COMMAND(2ERR_QP, modify_qp),
    EMLX5_COMMAND(2RST_QP, modify_qp),
    EMLX5_COMMAND(QUERY_QP, query_qp),
    EMLX5_COMMAND(DESTROY_QP, destroy_qp),

    EMLX5_COMMAND(QUERY_HCA_VPORT_CONTEXT, query_port),
    EMLX5_COMMAND(MODIFY_HCA_VPORT_CONTEXT, modify_port),
    EMLX5_COMMAND(QUERY_HCA_VPORT_GID, query_gid),
    EMLX5_COMMAND(QUERY_HCA_VPORT_PKEY, query_pkey),
    EMLX5_COMMAND(QUERY_VPORT_STATE, query_vport_state),
    EMLX5_COMMAND(QUERY_VPORT_COUNTER, query_vport_counter),
    EMLX5_COMMAND(ACCESS_REG, access_register),
};

enum { EMLX5_COMMANDS = sizeof(emlx5_commands) / sizeof(emlx5_commands[0]) };

emlx5_cmd_status_t emlx5_cmd_execute(const emlx5_cmd_t *cmd)
{
    unsigned i;

    for (i = 0; i < EMLX5_COMMANDS; ++i) {
        if (emlx5_commands[i].op == cmd->op) {
            return emlx5_commands[i].execute(cmd);
        }
    }
    return EMLX5_CMD_BAD_OP;
}

const char *emlx5_cmd_name(uint16_t op)
{
    unsigned i;

    for (i = 0; i < EMLX5_COMMANDS; ++i) {
        if (emlx5_commands[i].op == op) {
            return emlx5_commands[i].name;
        }
    }
    return "?";
}

emlx5_cmd_status_t emlx5_cmd_nothing(const emlx5_cmd_t *cmd)
{
    (void)cmd;
    return EMLX5_CMD_OK;
}
