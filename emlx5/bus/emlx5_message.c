/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "bus/emlx5_message.h"
#include "base/emlx5_bytes.h"

int emlx5_header_read(emlx5_header_t *header, const uint8_t *data)
{
    header->id    = emlx5_le16(data);
    header->type  = emlx5_le16(data + 2);
    header->size  = emlx5_le32(data + 4);
    header->flags = emlx5_le32(data + 8);
    header->error = emlx5_le32(data + 12);
    return ((header->size >= EMLX5_MESSAGE_HEADER) &&
            (header->size <= EMLX5_MESSAGE_MAX)) ? 0 : -1;
}

void emlx5_header_write(const emlx5_header_t *header, uint8_t *data)
{
    emlx5_put_le16(data, header->id);
    emlx5_put_le16(data + 2, header->type);
    emlx5_put_le32(data + 4, header->size);
    emlx5_put_le32(data + 8, header->flags);
    emlx5_put_le32(data + 12, header->error);
}

uint32_t emlx5_message_min_body(uint16_t type)
{
    switch (type) {
    case EMLX5_MSG_VERSION:
        return 4;
    case EMLX5_MSG_DMA_MAP:
        return 32;
    case EMLX5_MSG_DMA_UNMAP:
        return 24;
    case EMLX5_MSG_GET_INFO:
    case EMLX5_MSG_GET_IRQ_INFO:
    case EMLX5_MSG_REGION_READ:
    case EMLX5_MSG_REGION_WRITE:
        return 16;
    case EMLX5_MSG_GET_REGION_INFO:
        return 32;
    case EMLX5_MSG_SET_IRQS:
        return 20;
    case EMLX5_MSG_RESET:
        return 0;
    default:
        return UINT32_MAX;
    }
}
