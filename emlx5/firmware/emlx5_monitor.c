/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "firmware/emlx5_monitor.h"
#include "base/emlx5_bytes.h"

static uint64_t emlx5_monitor_counter(const void *stats, size_t size,
                                      uint32_t offset)
{
    uint64_t value = 0;

    if (offset + sizeof(value) <= size) {
        memcpy(&value, (const uint8_t*)stats + offset, sizeof(value));
    }
    return value;
}

static uint64_t emlx5_monitor_register(const emlx5_hca_t *hca, uint32_t offset)
{
    if (offset >= EMLX5_MONITOR_DMA) {
        return emlx5_monitor_counter(&hca->dma.stats, sizeof(hca->dma.stats),
                                     offset - EMLX5_MONITOR_DMA);
    }
    if (offset >= EMLX5_MONITOR_STATS) {
        return emlx5_monitor_counter(&hca->stats, sizeof(hca->stats),
                                     offset - EMLX5_MONITOR_STATS);
    }
    return (offset == EMLX5_MONITOR_MAGIC_AT) ? EMLX5_MONITOR_MAGIC : 0;
}

void emlx5_monitor_read(emlx5_hca_t *hca, uint32_t offset, uint8_t *data,
                        uint32_t length)
{
    uint8_t bytes[8];
    uint32_t i;

    for (i = 0; i < length; ++i) {
        if ((i == 0) || ((offset + i) % 8 == 0)) {
            emlx5_put_le64(bytes,
                           emlx5_monitor_register(hca, (offset + i) & ~7u));
        }
        data[i] = bytes[(offset + i) % 8];
    }
}
