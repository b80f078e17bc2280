/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "soak.h"

#include <string.h>

/* splitmix64, for which every seed is good */
static uint64_t soak_mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

uint64_t soak_random(soak_random_t *random)
{
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    return soak_mix(random->state);
}

uint64_t soak_below(soak_random_t *random, uint64_t limit)
{
    return soak_random(random) % limit;
}

size_t soak_length(soak_random_t *random)
{
    unsigned bits = 20, i, other;
    size_t length;

    /* The minimum of three: all sizes occur, and few of them are large */
    for (i = 0; i < 3; ++i) {
        other = soak_below(random, 21);
        bits  = (other < bits) ? other : bits;
    }
    length = ((size_t)1 << bits) + soak_below(random, (size_t)1 << bits);
    return (length < SOAK_MAX_LENGTH) ? length : SOAK_MAX_LENGTH;
}

/* The word at an offset, so that any part of a pattern can be computed alone */
static uint64_t soak_word(uint64_t seed, size_t index)
{
    return (seed + index) * UINT64_C(0x9e3779b97f4a7c15) + (seed >> 7);
}

void soak_fill(void *buffer, size_t length, uint64_t seed)
{
    size_t i;
    uint64_t word;

    seed = soak_mix(seed);
    for (i = 0; i < length / 8; ++i) {
        word = soak_word(seed, i);
        memcpy((char*)buffer + (i * 8), &word, 8);
    }
    word = soak_word(seed, i);
    memcpy((char*)buffer + (i * 8), &word, length % 8);
}

size_t soak_check(const void *buffer, size_t length, uint64_t seed)
{
    size_t i, j;
    uint64_t word;

    seed = soak_mix(seed);
    for (i = 0; i < length; i += 8) {
        word = soak_word(seed, i / 8);
        if ((length - i >= 8) &&
            (memcmp((const char*)buffer + i, &word, 8) == 0)) {
            continue;
        }
        for (j = 0; (j < 8) && (i + j < length); ++j) {
            if (((const char*)buffer)[i + j] != ((const char*)&word)[j]) {
                return i + j;
            }
        }
    }
    return length;
}

uint32_t soak_crc(const void *buffer, size_t length)
{
    static uint32_t table[256];
    const uint8_t *bytes = buffer;
    uint32_t crc         = UINT32_MAX;
    unsigned i, bit;

    for (i = 1; (table[255] == 0) && (i < 256); ++i) {
        table[i] = i;
        for (bit = 0; bit < 8; ++bit) {
            table[i] = (table[i] >> 1) ^ ((table[i] & 1) ? 0xedb88320u : 0);
        }
    }
    while (length-- > 0) {
        crc = table[(crc ^ *bytes++) & 0xff] ^ (crc >> 8);
    }
    return ~crc;
}
