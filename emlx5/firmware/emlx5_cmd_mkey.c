/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands about memory keys. */

#include "firmware/emlx5_cmd.h"
#include "object/emlx5_mkey.h"

static emlx5_mkey_t *emlx5_cmd_mkey(const emlx5_cmd_t *cmd)
{
    return emlx5_table_get(&cmd->hca->mkeys,
                           EMLX5_GET(cmd->in, query_mkey_in, mkey_index));
}

emlx5_cmd_status_t emlx5_cmd_create_mkey(const emlx5_cmd_t *cmd)
{
    const uint8_t *c = cmd->in + EMLX5_OFFSET(create_mkey_in,
                                              memory_key_mkey_entry);
    uint32_t list    = EMLX5_OFFSET(create_mkey_in, klm_pas_mtt);
    uint32_t given   = EMLX5_GET32(cmd->in, create_mkey_in,
                                   translations_octword_actual_size);
    uint32_t room    = EMLX5_GET32(c, mkc, translations_octword_size);
    emlx5_mkey_t *mkey;

    if ((uint64_t)given * EMLX5_OCTOWORD > emlx5_cmd_list_size(cmd, list)) {
        return EMLX5_CMD_BAD_IN_LENGTH;
    }
    room = (room > given) ? room : given;
    mkey = emlx5_mkey_create(cmd->hca, c, room, cmd->in + list,
                             given * EMLX5_OCTOWORD);
    if (mkey == NULL) {
        return EMLX5_CMD_NO_RES;
    }
    EMLX5_SET(cmd->out, create_mkey_out, mkey_index, mkey->index);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_query_mkey(const emlx5_cmd_t *cmd)
{
    emlx5_mkey_t *mkey = emlx5_cmd_mkey(cmd);

    if (mkey == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    memcpy(cmd->out + EMLX5_OFFSET(query_mkey_out, memory_key_mkey_entry),
           mkey->context, EMLX5_MKC_SIZE);
    return EMLX5_CMD_OK;
}

emlx5_cmd_status_t emlx5_cmd_destroy_mkey(const emlx5_cmd_t *cmd)
{
    emlx5_mkey_t *mkey = emlx5_cmd_mkey(cmd);

    if (mkey == NULL) {
        return EMLX5_CMD_BAD_RES;
    }
    emlx5_mkey_destroy(mkey);
    return EMLX5_CMD_OK;
}
