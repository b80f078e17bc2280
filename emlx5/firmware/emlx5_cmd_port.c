/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands about the port. */

#include "firmware/emlx5_cmd.h"

enum {
    EMLX5_REG_PMTU      = 0x5003,
    EMLX5_REG_PTYS      = 0x5004,
    EMLX5_REG_PVLC      = 0x500f,
    EMLX5_REG_NODE_DESC = 0x6001
};

enum {
    EMLX5_PORT_ACTIVE  = 4, /* logical */
    EMLX5_PHYS_LINK_UP = 5, /* physical */
    EMLX5_VPORT_UP     = 1,
    EMLX5_WIDTH_4X = 4, EMLX5_SPEED_EDR = 32,
    EMLX5_TIMEOUT = 18,                              /* of the subnet */
    EMLX5_DEFAULT_PKEY = 0xffff,
    EMLX5_ALL = 0xffff,                              /* elements of a table */
    EMLX5_GIDS = 1,
    EMLX5_QUERY_HEAD = 16
};

emlx5_cmd_status_t emlx5_cmd_query_port(const emlx5_cmd_t *cmd)
{
    const emlx5_hca_t *hca = cmd->hca;
    uint8_t *c             = cmd->out +
                             EMLX5_OFFSET(query_hca_vport_context_out,
                                          hca_vport_context);

    EMLX5_SET(c, hca_vport_context, port_physical_state, EMLX5_PHYS_LINK_UP);
    EMLX5_SET(c, hca_vport_context, port_state, EMLX5_PORT_ACTIVE);
    EMLX5_SET(c, hca_vport_context, vport_state, EMLX5_PORT_ACTIVE);
    EMLX5_SET(c, hca_vport_context, port_guid, hca->guid);
    EMLX5_SET(c, hca_vport_context, node_guid, hca->guid);
    EMLX5_SET(c, hca_vport_context, system_image_guid, hca->guid);
    EMLX5_SET(c, hca_vport_context, lid, hca->lid);
    EMLX5_SET(c, hca_vport_context, sm_lid, 1);
    EMLX5_SET(c, hca_vport_context, subnet_timeout, EMLX5_TIMEOUT);
    EMLX5_SET(c, hca_vport_context, cap_mask1, hca->cap_mask);
    EMLX5_SET(c, hca_vport_context, cap_mask1_field_select, hca->cap_mask);
    return EMLX5_CMD_OK;
}

/* Only the capability mask can be changed. */
emlx5_cmd_status_t emlx5_cmd_modify_port(const emlx5_cmd_t *cmd)
{
    const uint8_t *c = cmd->in + EMLX5_OFFSET(modify_hca_vport_context_in,
                                              hca_vport_context);
    uint32_t select  = EMLX5_GET32(c, hca_vport_context,
                                   cap_mask1_field_select);
    uint32_t mask    = EMLX5_GET32(c, hca_vport_context, cap_mask1);

    cmd->hca->cap_mask = (cmd->hca->cap_mask & ~select) | (mask & select);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_gid(const emlx5_cmd_t *cmd)
{
    uint32_t index = EMLX5_GET32(cmd->in, query_hca_vport_gid_in, gid_index);
    uint8_t *gid   = cmd->out + EMLX5_QUERY_HEAD;

    EMLX5_SET(cmd->out, query_hca_vport_gid_out, gids_num, EMLX5_GIDS);
    if ((index == 0) || (index == EMLX5_ALL)) {
        emlx5_put_be64(gid, 0xfe80000000000000ull);
        emlx5_put_be64(gid + 8, cmd->hca->guid);
    }
    return EMLX5_CMD_OK;
}

/* The keys are in the lower halves of words. */
emlx5_cmd_status_t emlx5_cmd_query_pkey(const emlx5_cmd_t *cmd)
{
    uint32_t index = EMLX5_GET32(cmd->in, query_hca_vport_pkey_in, pkey_index);

    if ((index == 0) || (index == EMLX5_ALL)) {
        emlx5_put_be32(cmd->out + EMLX5_QUERY_HEAD, EMLX5_DEFAULT_PKEY);
    }
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_vport_state(const emlx5_cmd_t *cmd)
{
    EMLX5_SET(cmd->out, query_vport_state_out, admin_state, EMLX5_VPORT_UP);
    EMLX5_SET(cmd->out, query_vport_state_out, state, EMLX5_VPORT_UP);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_vport_counter(const emlx5_cmd_t *cmd)
{
    const emlx5_hca_stats_t *stats = &cmd->hca->stats;
    uint8_t *received = cmd->out + EMLX5_OFFSET(query_vport_counter_out,
                                                received_ib_unicast);
    uint8_t *sent     = cmd->out + EMLX5_OFFSET(query_vport_counter_out,
                                                transmitted_ib_unicast);

    EMLX5_SET(received, traffic_counter, packets, stats->received_packets);
    EMLX5_SET(received, traffic_counter, octets, stats->received_bytes);
    EMLX5_SET(sent, traffic_counter, packets, stats->sent_packets);
    EMLX5_SET(sent, traffic_counter, octets, stats->sent_bytes);
    return EMLX5_CMD_OK;
}

static void emlx5_reg_mtu(uint8_t *reg)
{
    EMLX5_SET(reg, pmtu_reg, local_port, 1);
    EMLX5_SET(reg, pmtu_reg, max_mtu, EMLX5_MAX_MTU);
    EMLX5_SET(reg, pmtu_reg, admin_mtu, EMLX5_MAX_MTU);
    EMLX5_SET(reg, pmtu_reg, oper_mtu, EMLX5_MAX_MTU);
}

static void emlx5_reg_speed(uint8_t *reg)
{
    EMLX5_SET(reg, ptys_reg, local_port, 1);
    EMLX5_SET(reg, ptys_reg, proto_mask, 1);
    EMLX5_SET(reg, ptys_reg, ib_link_width_capability, EMLX5_WIDTH_4X);
    EMLX5_SET(reg, ptys_reg, ib_link_width_oper, EMLX5_WIDTH_4X);
    EMLX5_SET(reg, ptys_reg, ib_proto_capability, EMLX5_SPEED_EDR);
    EMLX5_SET(reg, ptys_reg, ib_proto_oper, EMLX5_SPEED_EDR);
}

static void emlx5_reg_lanes(uint8_t *reg)
{
    EMLX5_SET(reg, pvlc_reg, local_port, 1);
    EMLX5_SET(reg, pvlc_reg, vl_hw_cap, 1);
    EMLX5_SET(reg, pvlc_reg, vl_admin, 1);
    EMLX5_SET(reg, pvlc_reg, vl_operational, 1);
}

/* Registers of the port. Only the node's description can be written. */
emlx5_cmd_status_t emlx5_cmd_access_register(const emlx5_cmd_t *cmd)
{
    int write = !EMLX5_GET(cmd->in, access_register_in, op_mod);
    const uint8_t *from = cmd->in + EMLX5_OFFSET(access_register_in,
                                                 register_data);
    uint8_t *reg        = cmd->out + EMLX5_OFFSET(access_register_out,
                                                  register_data);

    switch (EMLX5_GET(cmd->in, access_register_in, register_id)) {
    case EMLX5_REG_PMTU:
        emlx5_reg_mtu(reg);
        return EMLX5_CMD_OK;
    case EMLX5_REG_PTYS:
        emlx5_reg_speed(reg);
        return EMLX5_CMD_OK;
    case EMLX5_REG_PVLC:
        emlx5_reg_lanes(reg);
        return EMLX5_CMD_OK;
    case EMLX5_REG_NODE_DESC:
        if (write) {
            memcpy(cmd->hca->description, from, EMLX5_DESC_SIZE);
        } else {
            memcpy(reg, cmd->hca->description, EMLX5_DESC_SIZE);
        }
        return EMLX5_CMD_OK;
    default:
        return EMLX5_CMD_BAD_PARAM;
    }
}
