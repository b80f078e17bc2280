/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "firmware/emlx5_monitor.h"
#include "base/emlx5_bytes.h"
#include "base/emlx5_log.h"
#include "object/emlx5_eq.h"
#include "object/emlx5_fabric.h"

/* Subtypes of the port's event, and the port in its data */
enum {
    EMLX5_PORT_EVENT_DOWN = 1,
    EMLX5_PORT_EVENT_UP   = 4,
    EMLX5_PORT_AT         = 8,
    EMLX5_PORT_ONE        = 1 << 4
};

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
    if (offset >= EMLX5_MONITOR_NOTES) {
        return emlx5_monitor_counter(hca->fabric->notes,
                                     sizeof(hca->fabric->notes),
                                     offset - EMLX5_MONITOR_NOTES);
    }
    if (offset >= EMLX5_MONITOR_DMA) {
        return emlx5_monitor_counter(&hca->dma.stats, sizeof(hca->dma.stats),
                                     offset - EMLX5_MONITOR_DMA);
    }
    if (offset >= EMLX5_MONITOR_STATS) {
        return emlx5_monitor_counter(&hca->stats, sizeof(hca->stats),
                                     offset - EMLX5_MONITOR_STATS);
    }
    switch (offset) {
    case EMLX5_MONITOR_MAGIC_AT:
        return EMLX5_MONITOR_MAGIC;
    case EMLX5_MONITOR_LINK:
        return hca->link_up;
    default:
        return 0;
    }
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

static void emlx5_monitor_link_work(emlx5_work_t *work)
{
    emlx5_hca_t *hca = emlx5_container_of(work, emlx5_hca_t, link_work);
    uint8_t data[EMLX5_EQE_DATA] = {0};

    data[EMLX5_PORT_AT] = EMLX5_PORT_ONE;
    emlx5_eq_post_async(hca, EMLX5_EVENT_PORT, hca->link_up ?
                        EMLX5_PORT_EVENT_UP : EMLX5_PORT_EVENT_DOWN, data);
}

static void emlx5_monitor_set_link(emlx5_hca_t *hca, int link_up)
{
    if (hca->link_up != link_up) {
        emlx5_event("port %u: link %s", hca->lid, link_up ? "up" : "down");
        hca->link_up = link_up;
        emlx5_work_add(&hca->queue, &hca->link_work);
    }
}

void emlx5_monitor_write(emlx5_hca_t *hca, uint32_t offset, const uint8_t *data,
                         uint32_t length)
{
    uint32_t note = offset - EMLX5_MONITOR_NOTES;

    if (((length != 4) && (length != 8)) || (offset % length != 0)) {
        return;
    }
    if (offset == EMLX5_MONITOR_LINK) {
        emlx5_monitor_set_link(hca, emlx5_le32(data) != 0);
    } else if ((offset >= EMLX5_MONITOR_NOTES) &&
               (note < sizeof(hca->fabric->notes))) {
        memcpy((uint8_t*)hca->fabric->notes + note, data, length);
    }
}

void emlx5_monitor_init(emlx5_hca_t *hca)
{
    emlx5_work_init(&hca->link_work, emlx5_monitor_link_work);
}
