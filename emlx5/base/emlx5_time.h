/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The clock, and a generator of pseudo-random numbers that a seed repeats. */

#ifndef EMLX5_TIME_H
#define EMLX5_TIME_H

#include <stdint.h>
#include <time.h>

enum {
    EMLX5_MS      = 1000000, /* in ns */
    EMLX5_CLOCK_KHZ = 156250 /* of the device's time stamps */
};

/** @return Monotonic time in ns. */
static inline uint64_t emlx5_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((uint64_t)t.tv_sec * 1000000000) + (uint64_t)t.tv_nsec;
}

/** @return The device's clock, in ticks of EMLX5_CLOCK_KHZ. */
static inline uint64_t emlx5_ticks(void)
{
    return emlx5_now() / 1000 * EMLX5_CLOCK_KHZ / 1000;
}

#endif
