/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What hardware does not have: the model's counters as registers in BAR 0, so
 * that tests in the guest can read them. Drivers do not touch this page. All
 * are 8 bytes, little-endian, at multiples of 8. */

#ifndef EMLX5_MONITOR_H
#define EMLX5_MONITOR_H

#include "object/emlx5_hca.h"

enum {
    EMLX5_MONITOR_MAGIC_AT = 0x0,   /* reads EMLX5_MONITOR_MAGIC */
    EMLX5_MONITOR_STATS    = 0x100, /* emlx5_hca_stats_t, in its order */
    EMLX5_MONITOR_DMA      = 0x400  /* emlx5_dma_stats_t, in its order */
};

#define EMLX5_MONITOR_MAGIC 0x35786c6d65ull /* "emlx5" */

/** Reads registers: any offset below the page's size. */
void emlx5_monitor_read(emlx5_hca_t *hca, uint32_t offset, uint8_t *data,
                        uint32_t length);

#endif
