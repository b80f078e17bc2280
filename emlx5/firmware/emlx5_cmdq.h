/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The command queue: entries of 64 bytes in the guest's memory, the rest of
 * input and output in chains of mailboxes. */

#ifndef EMLX5_CMDQ_H
#define EMLX5_CMDQ_H

#include "object/emlx5_hca.h"

enum {
    EMLX5_CMDQ_LOG_ENTRIES = 5, /* EMLX5_CMD_SLOTS */
    EMLX5_CMDQ_LOG_STRIDE  = 6
};

/** Sets what the slots do. */
void emlx5_cmdq_init(emlx5_hca_t *hca);

/** The driver's register write: commands in these slots, a bit for each. They
 * are executed later, by the function's queue. */
void emlx5_cmdq_ring(emlx5_hca_t *hca, uint32_t slots);

#endif
