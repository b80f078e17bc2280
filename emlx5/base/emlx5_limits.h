/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What the guest can have. The capabilities announce the same numbers; each
 * command checks them again, because a guest need not keep to them. */

#ifndef EMLX5_LIMITS_H
#define EMLX5_LIMITS_H

enum {
    EMLX5_MAX_FUNCTIONS   = 16,
    EMLX5_VECTORS         = 16,

    EMLX5_PAGE            = 4096,
    EMLX5_BAR_SIZE        = 8 << 20,
    EMLX5_MSIX_TABLE      = 0x4000,
    EMLX5_MSIX_PBA        = 0x5000,
    EMLX5_FIRST_UAR       = 16,
    EMLX5_MAX_UAR         = EMLX5_BAR_SIZE / EMLX5_PAGE,

    EMLX5_LOG_MAX_EQ      = 5,
    EMLX5_LOG_MAX_EQ_SIZE = 13,
    EMLX5_LOG_MAX_CQ      = 12,
    EMLX5_LOG_MAX_CQ_SIZE = 16,
    EMLX5_LOG_MAX_QP      = 12,
    EMLX5_LOG_MAX_QP_SIZE = 13,
    EMLX5_LOG_MAX_SRQ     = 10,
    EMLX5_LOG_MAX_SRQ_SIZE = 13,
    EMLX5_LOG_MAX_MKEY    = 16,
    EMLX5_LOG_MAX_PD      = 16,
    EMLX5_LOG_MAX_TD      = 10,
    EMLX5_LOG_MAX_XRCD    = 8,
    EMLX5_LOG_MAX_MSG     = 30,
    EMLX5_MAX_COUNTERS    = 255,

    EMLX5_MAX_MTU         = 4096,
    EMLX5_WQE_BB          = 64,   /* a send queue's unit */
    EMLX5_MAX_SQ_WQE      = 1008, /* 63 pieces of 16 bytes */
    EMLX5_MAX_RQ_WQE      = 2048,
    EMLX5_MAX_SGE         = 128,  /* of EMLX5_MAX_RQ_WQE */

    /* Memory of all translations of one function: 2^26 pages of 8 bytes */
    EMLX5_MAX_TRANSLATIONS = 512 << 20,

    EMLX5_MAX_CMD_IN      = 4 << 20,
    EMLX5_MAX_CMD_OUT     = 16 << 10
};

#endif
