/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What hardware does not have: the model's counters and its link as registers
 * in BAR 0, so that tests in the guest can read and change them. Drivers do not
 * touch this page. All are 8 bytes, little-endian, at multiples of 8. */

#ifndef EMLX5_MONITOR_H
#define EMLX5_MONITOR_H

#include "object/emlx5_hca.h"

enum {
    EMLX5_MONITOR_MAGIC_AT = 0x0,   /* reads EMLX5_MONITOR_MAGIC */
    EMLX5_MONITOR_LINK     = 0x8,   /* 1 up, 0 down; can be written */
    EMLX5_MONITOR_STATS    = 0x100, /* emlx5_hca_stats_t, in its order */
    EMLX5_MONITOR_DMA      = 0x400, /* emlx5_dma_stats_t, in its order */
    EMLX5_MONITOR_NOTES    = 0x800  /* EMLX5_NOTES words that all functions of
                                     * the switch share; can be written */
};

#define EMLX5_MONITOR_MAGIC 0x35786c6d65ull /* "emlx5" */

/** Reads registers: any offset below the page's size. */
void emlx5_monitor_read(emlx5_hca_t *hca, uint32_t offset, uint8_t *data,
                        uint32_t length);

/** Writes a register, in 4 or 8 bytes; those that cannot be written ignore it.
 * The link's change is an event for the driver. */
void emlx5_monitor_write(emlx5_hca_t *hca, uint32_t offset, const uint8_t *data,
                         uint32_t length);

/** Sets what a change of the link does. */
void emlx5_monitor_init(emlx5_hca_t *hca);

#endif
