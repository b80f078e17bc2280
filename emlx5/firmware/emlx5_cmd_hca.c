/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands about the function as a whole. */

#include "firmware/emlx5_caps.h"
#include "firmware/emlx5_cmd.h"

/* op_mod of the capability commands: type << 1 | 1 if those in use, else what
 * is possible */
enum { EMLX5_CAP_GENERAL = 0, EMLX5_CAP_ATOMIC = 3 };

enum {
    EMLX5_IEEE_VENDOR = 0x2c9,
    EMLX5_RESERVED_KEY = 0xf00, /* "reserved lkey": nothing is behind it */
    EMLX5_LIST_END_KEY = 0x100, /* ends lists of memory */
    EMLX5_MAX_ISSI     = 1,     /* version of the interface */
    EMLX5_ISSI_MASK    = 3      /* a bit for each */
};

emlx5_cmd_status_t emlx5_cmd_query_issi(const emlx5_cmd_t *cmd)
{
    EMLX5_SET(cmd->out, query_issi_out, current_issi, cmd->hca->issi);
    EMLX5_SET(cmd->out, query_issi_out, supported_issi_dw0, EMLX5_ISSI_MASK);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_set_issi(const emlx5_cmd_t *cmd)
{
    uint32_t issi = EMLX5_GET32(cmd->in, set_issi_in, current_issi);

    if (issi > EMLX5_MAX_ISSI) {
        return EMLX5_CMD_BAD_PARAM;
    }
    cmd->hca->issi = issi;
    return EMLX5_CMD_OK;
}

/* Other types than those below have no capabilities: all is 0. */
emlx5_cmd_status_t emlx5_cmd_query_hca_cap(const emlx5_cmd_t *cmd)
{
    uint32_t op_mod = EMLX5_GET32(cmd->in, query_hca_cap_in, op_mod);
    uint8_t *caps = cmd->out + EMLX5_OFFSET(query_hca_cap_out, capability);

    switch (op_mod >> 1) {
    case EMLX5_CAP_GENERAL:
        if ((op_mod & 1) && cmd->hca->caps_are_set) {
            memcpy(caps, cmd->hca->caps, EMLX5_CAPS_SIZE);
        } else {
            emlx5_caps_general(caps);
        }
        break;
    case EMLX5_CAP_ATOMIC:
        emlx5_caps_atomic(caps);
        break;
    default:
        break;
    }
    return EMLX5_CMD_OK;
}

/* The driver reads back what it has set; the model does not depend on it. */
emlx5_cmd_status_t emlx5_cmd_set_hca_cap(const emlx5_cmd_t *cmd)
{
    uint32_t op_mod = EMLX5_GET32(cmd->in, set_hca_cap_in, op_mod);

    if ((op_mod >> 1) == EMLX5_CAP_GENERAL) {
        memcpy(cmd->hca->caps,
               cmd->in + EMLX5_OFFSET(set_hca_cap_in, capability),
               EMLX5_CAPS_SIZE);
        cmd->hca->caps_are_set = 1;
    }
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_adapter(const emlx5_cmd_t *cmd)
{
    static const char psid[] = "NPR0000000001";
    uint8_t *block = cmd->out +
                     EMLX5_OFFSET(query_adapter_out, query_adapter_struct);

    EMLX5_SET(block, query_adapter_param_block, ieee_vendor_id,
              EMLX5_IEEE_VENDOR);
    memcpy(block + EMLX5_OFFSET(query_adapter_param_block, vsd_contd_psid),
           psid, sizeof(psid) - 1);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_special_contexts(const emlx5_cmd_t *cmd)
{
    EMLX5_SET(cmd->out, query_special_contexts_out, resd_lkey,
              EMLX5_RESERVED_KEY);
    EMLX5_SET(cmd->out, query_special_contexts_out,
              terminate_scatter_list_mkey, EMLX5_LIST_END_KEY);
    return EMLX5_CMD_OK;
}
