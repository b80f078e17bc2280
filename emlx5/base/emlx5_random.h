/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Pseudo-random numbers; a seed repeats them. */

#ifndef EMLX5_RANDOM_H
#define EMLX5_RANDOM_H

#include <stdint.h>

typedef struct {
    uint64_t state;
} emlx5_random_t;

/** @return The next number: a Weyl sequence, mixed as in splitmix64. */
static inline uint64_t emlx5_random(emlx5_random_t *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15ull);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/** @return A number below @a limit, which is not 0. */
static inline uint32_t emlx5_random_below(emlx5_random_t *r, uint32_t limit)
{
    return (uint32_t)(((emlx5_random(r) >> 32) * limit) >> 32);
}

#endif
