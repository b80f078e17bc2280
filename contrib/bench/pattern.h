/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Contents of a message by which every byte shows which message it is of. */

#ifndef NPRDMA_BENCH_PATTERN_H_
#define NPRDMA_BENCH_PATTERN_H_

#include <stddef.h>
#include <stdint.h>

static inline uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

/* Writes message `number`, whose size is a multiple of 8 bytes */
static inline void write_pattern(void *buffer, size_t size, uint64_t number)
{
    uint64_t first = mix(number + 1), *words = buffer;
    size_t i;

    for (i = 0; i < size / sizeof(*words); ++i) {
        words[i] = first + i * 0x0101010101010101ull;
    }
}

/* Whether each byte is that of message `number` */
static inline int is_pattern(const void *buffer, size_t size, uint64_t number)
{
    uint64_t first = mix(number + 1), different = 0;
    const uint64_t *words = buffer;
    size_t i;

    for (i = 0; i < size / sizeof(*words); ++i) {
        different |= words[i] ^ (first + i * 0x0101010101010101ull);
    }
    return different == 0;
}

#endif
