/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Fields of the device's structures. A structure is a string of big-endian
 * 32-bit words; emlx5_layout.h has the place of each field that the sources
 * name, made by the script "layout" from the description in the driver. */

#ifndef EMLX5_FIELD_H
#define EMLX5_FIELD_H

#include "base/emlx5_bytes.h"
#include "base/emlx5_layout.h"

/* Place of a field: its first bit << 8 | its number of bits */
#define EMLX5_FIELD(_struct, _field) EMLX5_AT_##_struct##__##_field

/* Value of a field of the structure at _p */
#define EMLX5_GET(_p, _struct, _field) \
    emlx5_field_get(_p, EMLX5_FIELD(_struct, _field))
#define EMLX5_GET32(_p, _struct, _field) \
    ((uint32_t)EMLX5_GET(_p, _struct, _field))

/* Sets it; bits of the value that do not fit are dropped */
#define EMLX5_SET(_p, _struct, _field, _value) \
    emlx5_field_set(_p, EMLX5_FIELD(_struct, _field), _value)

/* Byte where a member begins, and the bytes of a structure */
#define EMLX5_OFFSET(_struct, _field) EMLX5_OFFSET_##_struct##__##_field
#define EMLX5_SIZE(_struct) EMLX5_SIZE_##_struct

/* The opcode of a command */
#define EMLX5_OP(_name) EMLX5_OP_##_name

static inline uint32_t emlx5_field_mask(uint32_t bits)
{
    return (bits == 32) ? UINT32_MAX : ((1u << bits) - 1);
}

static inline uint64_t emlx5_field_get(const void *p, uint32_t place)
{
    uint32_t bit = place >> 8, bits = place & 0xff;
    const uint8_t *word = (const uint8_t*)p + (bit / 32 * 4);

    if (bits > 32) {
        return emlx5_be64(word);
    }
    return (emlx5_be32(word) >> (32 - bits - (bit % 32))) &
           emlx5_field_mask(bits);
}

static inline void emlx5_field_set(void *p, uint32_t place, uint64_t value)
{
    uint32_t bit = place >> 8, bits = place & 0xff;
    uint8_t *word = (uint8_t*)p + (bit / 32 * 4);
    uint32_t shift, mask;

    if (bits > 32) {
        emlx5_put_be64(word, value);
        return;
    }
    shift = 32 - bits - (bit % 32);
    mask  = emlx5_field_mask(bits) << shift;
    emlx5_put_be32(word, (emlx5_be32(word) & ~mask) |
                         (((uint32_t)value << shift) & mask));
}

/* Copies a field between two structures of one kind. */
static inline void emlx5_field_copy(void *to, const void *from, uint32_t place)
{
    emlx5_field_set(to, place, emlx5_field_get(from, place));
}

#endif
