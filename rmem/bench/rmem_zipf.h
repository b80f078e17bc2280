/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Numbers at random, the same ones in each run, and by the law of Zipf */

#ifndef RMEM_ZIPF_H_
#define RMEM_ZIPF_H_

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define ZIPF_EXPONENT 0.99

static inline uint64_t random_number(void)
{
    static uint64_t state = 88172645463325252ull;

    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* From 0 to 1 */
static inline double random_share(void)
{
    return (random_number() >> 11) * 0x1p-53;
}

/* For zipf(): sums of the shares of the ranks. The caller frees them. */
static inline double *zipf_sums(size_t count)
{
    double *sums = malloc(count * sizeof(*sums));
    double sum   = 0;
    size_t i;

    for (i = 0; i < count; ++i) {
        sum    += pow(i + 1, -ZIPF_EXPONENT);
        sums[i] = sum;
    }
    return sums;
}

/* Less than the count; the ranks are spread over these numbers */
static inline size_t zipf(const double *sums, size_t count)
{
    double share = random_share() * sums[count - 1];
    size_t low   = 0, high = count - 1, middle;

    while (low < high) {
        middle = (low + high) / 2;
        if (sums[middle] < share) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low * 2654435761ul % count;
}

#endif
