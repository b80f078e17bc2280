/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The registers in BAR 0: initialization segment, counters of this program, and
 * pages with doorbells (UARs). Handlers of messages call these; they do no
 * DMA. */

#ifndef EMLX5_BAR_H
#define EMLX5_BAR_H

#include "object/emlx5_hca.h"

enum {
    EMLX5_BAR_SEGMENT_SIZE = 0x3000,
    EMLX5_BAR_MONITOR      = 0x6000, /* see emlx5_monitor.h */
    EMLX5_BAR_MONITOR_SIZE = 0x1000
};

/** Reads registers. Any offset and length; what is no register is 0. */
void emlx5_bar_read(emlx5_hca_t *hca, uint64_t offset, uint8_t *data,
                    uint32_t length);

/** Writes registers. Any offset and length; what is no register is ignored. */
void emlx5_bar_write(emlx5_hca_t *hca, uint64_t offset, const uint8_t *data,
                     uint32_t length);

#endif
