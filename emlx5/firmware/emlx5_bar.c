/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "firmware/emlx5_bar.h"
#include "base/emlx5_bytes.h"
#include "base/emlx5_log.h"
#include "base/emlx5_time.h"
#include "engine/emlx5_sq.h"
#include "firmware/emlx5_cmdq.h"
#include "firmware/emlx5_monitor.h"
#include "object/emlx5_cq.h"
#include "object/emlx5_eq.h"
#include "object/emlx5_reset.h"

/* Initialization segment: words. "initializing", the health buffer and the
 * timeouts are 0. */
enum {
    EMLX5_SEG_FIRMWARE     = 0x0,
    EMLX5_SEG_INTERFACE    = 0x4,
    EMLX5_SEG_CMDQ_HIGH    = 0x10,
    EMLX5_SEG_CMDQ_LOW     = 0x14,
    EMLX5_SEG_CMD_DOORBELL = 0x18,
    EMLX5_SEG_TIMER_HIGH   = 0x1000,
    EMLX5_SEG_TIMER_LOW    = 0x1004,
    EMLX5_SEG_HEALTH       = 0x1010
};

/* Version 16.35.9000; the command interface is version 5 */
enum {
    EMLX5_FIRMWARE_MAJOR = 16, EMLX5_FIRMWARE_MINOR = 35,
    EMLX5_FIRMWARE_SUB = 9000, EMLX5_CMD_INTERFACE = 5,
    EMLX5_HEALTH_NS = 10 * EMLX5_MS,
    EMLX5_STATE_SHIFT = 8, EMLX5_STATE_MASK = 7, /* of the driver */
    EMLX5_STATE_FULL = 0
};

/* A UAR page */
enum {
    EMLX5_UAR_CQ        = 0x20, /* 8 bytes: arm word, number */
    EMLX5_UAR_EQ_ARM    = 0x40, /* 4 bytes */
    EMLX5_UAR_EQ_UPDATE = 0x48,
    EMLX5_UAR_SEND      = 0x800, /* and each 256 bytes on: 8 bytes */
    EMLX5_UAR_SEND_STEP = 0x100
};

static uint32_t emlx5_segment_read(emlx5_hca_t *hca, uint32_t offset)
{
    switch (offset) {
    case EMLX5_SEG_FIRMWARE:
        return (EMLX5_FIRMWARE_MINOR << 16) | EMLX5_FIRMWARE_MAJOR;
    case EMLX5_SEG_INTERFACE:
        return (EMLX5_CMD_INTERFACE << 16) | EMLX5_FIRMWARE_SUB;
    case EMLX5_SEG_CMDQ_HIGH:
        return hca->cmdq_high;
    case EMLX5_SEG_CMDQ_LOW:
        return (hca->cmdq_state << EMLX5_STATE_SHIFT) |
               (EMLX5_CMDQ_LOG_ENTRIES << 4) | EMLX5_CMDQ_LOG_STRIDE;
    case EMLX5_SEG_TIMER_HIGH:
        return emlx5_ticks() >> 32;
    case EMLX5_SEG_TIMER_LOW:
        return emlx5_ticks();
    case EMLX5_SEG_HEALTH:
        return emlx5_now() / EMLX5_HEALTH_NS;
    default:
        return 0;
    }
}

static void emlx5_segment_write(emlx5_hca_t *hca, uint32_t offset,
                                uint32_t value)
{
    switch (offset) {
    case EMLX5_SEG_CMDQ_HIGH:
        hca->cmdq_high = value;
        break;
    case EMLX5_SEG_CMDQ_LOW:
        hca->cmdq       = ((uint64_t)hca->cmdq_high << 32) | (value & ~0xfffu);
        hca->cmdq_state = (value >> EMLX5_STATE_SHIFT) & EMLX5_STATE_MASK;
        if (hca->cmdq_state != EMLX5_STATE_FULL) {
            /* The driver gives up on the function */
            emlx5_reset_later(hca);
        }
        break;
    case EMLX5_SEG_CMD_DOORBELL:
        emlx5_cmdq_ring(hca, value);
        break;
    default:
        break;
    }
}

/* A doorbell of 8 bytes */
static void emlx5_uar_write_long(emlx5_hca_t *hca, uint32_t uar,
                                 uint32_t offset, uint32_t first,
                                 uint32_t second)
{
    if (offset == EMLX5_UAR_CQ) {
        emlx5_cq_ring(hca, uar, first, second);
    } else if ((offset >= EMLX5_UAR_SEND) &&
               (offset % EMLX5_UAR_SEND_STEP == 0)) {
        /* The first words of the request's control segment */
        emlx5_sq_ring(hca, uar, second >> 8);
    }
}

static void emlx5_uar_write(emlx5_hca_t *hca, uint32_t uar, uint32_t offset,
                            const uint8_t *data, uint32_t length)
{
    if ((length == 8) && (offset % 8 == 0)) {
        emlx5_uar_write_long(hca, uar, offset, emlx5_be32(data),
                             emlx5_be32(data + 4));
    } else if ((length != 4) || (offset % 4 != 0)) {
        return;
    } else if ((offset == EMLX5_UAR_EQ_ARM) ||
               (offset == EMLX5_UAR_EQ_UPDATE)) {
        emlx5_eq_ring(hca, uar, emlx5_be32(data), offset == EMLX5_UAR_EQ_ARM);
    } else if (offset % 8 == 0) {
        /* A computer without writes of 8 bytes writes two times 4 */
        hca->latch[uar] = emlx5_be32(data);
    } else {
        emlx5_uar_write_long(hca, uar, offset - 4, hca->latch[uar],
                             emlx5_be32(data));
    }
}

/* Registers are words; a read may begin and end inside of one. */
static void emlx5_segment_read_bytes(emlx5_hca_t *hca, uint64_t offset,
                                     uint8_t *data, uint32_t length)
{
    uint8_t word[4];
    uint32_t i;

    emlx5_put_be32(word, emlx5_segment_read(hca, offset & ~3ull));
    for (i = 0; i < length; ++i, ++offset) {
        if ((i > 0) && (offset % 4 == 0)) {
            emlx5_put_be32(word, emlx5_segment_read(hca, offset));
        }
        data[i] = word[offset % 4];
    }
}

/* 1 if the range is inside of the view */
static int emlx5_bar_is_in(uint64_t offset, uint32_t length, uint64_t begin,
                           uint64_t size)
{
    return (offset >= begin) && (offset - begin < size) &&
           (length <= size - (offset - begin));
}

void emlx5_bar_read(emlx5_hca_t *hca, uint64_t offset, uint8_t *data,
                    uint32_t length)
{
    memset(data, 0, length);
    if (emlx5_bar_is_in(offset, length, 0, EMLX5_BAR_SEGMENT_SIZE)) {
        emlx5_segment_read_bytes(hca, offset, data, length);
    } else if (emlx5_bar_is_in(offset, length, EMLX5_BAR_MONITOR,
                               EMLX5_BAR_MONITOR_SIZE)) {
        emlx5_monitor_read(hca, offset - EMLX5_BAR_MONITOR, data, length);
    }
}

void emlx5_bar_write(emlx5_hca_t *hca, uint64_t offset, const uint8_t *data,
                     uint32_t length)
{
    if (emlx5_bar_is_in(offset, length, EMLX5_FIRST_UAR * EMLX5_PAGE,
                        EMLX5_BAR_SIZE - (EMLX5_FIRST_UAR * EMLX5_PAGE))) {
        emlx5_uar_write(hca, offset / EMLX5_PAGE, offset % EMLX5_PAGE, data,
                        length);
    } else if (emlx5_bar_is_in(offset, length, 0, EMLX5_BAR_SEGMENT_SIZE)) {
        if ((length == 4) && (offset % 4 == 0)) {
            emlx5_segment_write(hca, offset, emlx5_be32(data));
        }
    }
}
