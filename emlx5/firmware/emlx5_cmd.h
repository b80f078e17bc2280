/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands of the driver. */

#ifndef EMLX5_CMD_H
#define EMLX5_CMD_H

#include "base/emlx5_field.h"
#include "object/emlx5_hca.h"
#include "object/emlx5_pages.h"

/* Status of a command, for the driver */
typedef enum {
    EMLX5_CMD_OK            = 0x00,
    EMLX5_CMD_BAD_OP        = 0x02, /* not known */
    EMLX5_CMD_BAD_PARAM     = 0x03,
    EMLX5_CMD_BAD_RES       = 0x05, /* no such object */
    EMLX5_CMD_NO_RES        = 0x0f, /* no number or memory for one more */
    EMLX5_CMD_BAD_QP_STATE  = 0x10,
    EMLX5_CMD_BAD_CQ_SIZE   = 0x40, /* less than what is in the queue */
    EMLX5_CMD_BAD_IN_LENGTH = 0x50
} emlx5_cmd_status_t;

/* Buffers have at least this many bytes, zeros behind the driver's, so that all
 * fixed fields are in them */
enum { EMLX5_CMD_BUFFER = 8192 };

typedef struct {
    emlx5_hca_t   *hca;
    uint16_t      op;
    const uint8_t *in;
    uint32_t      in_size; /* bytes of the driver: where lists end */
    uint8_t       *out;    /* EMLX5_MAX_CMD_OUT bytes of zeros */
} emlx5_cmd_t;

/** Executes a command. @return The status, which is not in cmd->out. */
emlx5_cmd_status_t emlx5_cmd_execute(const emlx5_cmd_t *cmd);

/** @return The name of an opcode, "?" if it is not known. */
const char *emlx5_cmd_name(uint16_t op);

/** @return Bytes of a list that begins at this offset of the input. */
static inline uint64_t emlx5_cmd_list_size(const emlx5_cmd_t *cmd,
                                           uint32_t offset)
{
    return (cmd->in_size > offset) ? cmd->in_size - offset : 0;
}

/* The commands, by object: emlx5_cmd_hca.c ... */
emlx5_cmd_status_t emlx5_cmd_nothing(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_issi(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_set_issi(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_hca_cap(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_set_hca_cap(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_adapter(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_special_contexts(const emlx5_cmd_t *cmd);

emlx5_cmd_status_t emlx5_cmd_alloc_number(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_dealloc_number(const emlx5_cmd_t *cmd);

emlx5_cmd_status_t emlx5_cmd_create_eq(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_eq(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_destroy_eq(const emlx5_cmd_t *cmd);

emlx5_cmd_status_t emlx5_cmd_create_cq(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_modify_cq(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_cq(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_destroy_cq(const emlx5_cmd_t *cmd);

emlx5_cmd_status_t emlx5_cmd_create_mkey(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_mkey(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_destroy_mkey(const emlx5_cmd_t *cmd);

emlx5_cmd_status_t emlx5_cmd_create_rmp(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_modify_rmp(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_rmp(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_destroy_rmp(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_create_xrc_srq(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_arm_xrc_srq(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_xrc_srq(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_destroy_xrc_srq(const emlx5_cmd_t *cmd);

emlx5_cmd_status_t emlx5_cmd_create_qp(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_modify_qp(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_qp(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_destroy_qp(const emlx5_cmd_t *cmd);

emlx5_cmd_status_t emlx5_cmd_query_port(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_modify_port(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_gid(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_pkey(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_vport_state(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_query_vport_counter(const emlx5_cmd_t *cmd);
emlx5_cmd_status_t emlx5_cmd_access_register(const emlx5_cmd_t *cmd);

#endif
