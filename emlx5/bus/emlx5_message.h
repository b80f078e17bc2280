/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Messages of vfio-user: a header of 16 bytes, then the body. */

#ifndef EMLX5_MESSAGE_H
#define EMLX5_MESSAGE_H

#include <stdint.h>

enum {
    EMLX5_MESSAGE_HEADER = 16,
    EMLX5_MESSAGE_MAX    = 128 << 10, /* of a message, with its header */
    EMLX5_MESSAGE_FDS    = 32         /* descriptors that come with one */
};

typedef enum {
    EMLX5_MSG_VERSION         = 1,
    EMLX5_MSG_DMA_MAP         = 2,
    EMLX5_MSG_DMA_UNMAP       = 3,
    EMLX5_MSG_GET_INFO        = 4,
    EMLX5_MSG_GET_REGION_INFO = 5,
    EMLX5_MSG_GET_IRQ_INFO    = 7,
    EMLX5_MSG_SET_IRQS        = 8,
    EMLX5_MSG_REGION_READ     = 9,
    EMLX5_MSG_REGION_WRITE    = 10,
    EMLX5_MSG_DMA_READ        = 11,
    EMLX5_MSG_DMA_WRITE       = 12,
    EMLX5_MSG_RESET           = 13
} emlx5_message_type_t;

/* Flags */
enum {
    EMLX5_MSG_TYPE_MASK = 0xf,
    EMLX5_MSG_COMMAND   = 0,
    EMLX5_MSG_REPLY     = 1,
    EMLX5_MSG_NO_REPLY  = 1 << 4,
    EMLX5_MSG_ERROR     = 1 << 5
};

typedef struct {
    uint16_t id, type;
    uint32_t size; /* of the message */
    uint32_t flags, error;
} emlx5_header_t;

/** Reads a header of EMLX5_MESSAGE_HEADER bytes. @return 0, or -1 if the size
 * is impossible. */
int emlx5_header_read(emlx5_header_t *header, const uint8_t *data);

/** Writes a header of EMLX5_MESSAGE_HEADER bytes. */
void emlx5_header_write(const emlx5_header_t *header, uint8_t *data);

/** @return Bytes that the body of a command of this type has at least;
 * UINT32_MAX for a type that is not known. */
uint32_t emlx5_message_min_body(uint16_t type);

#endif
