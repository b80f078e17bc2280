/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What programs of remote memory share: CPU time, and numbers at random by the
 * law of Zipf. As libc's numbers without a seed they are the same ones in each
 * run. */

#ifndef RMEM_LOAD_H_
#define RMEM_LOAD_H_

#include "bench.h"

#include <math.h>
#include <stdlib.h>

#define ZIPF_EXPONENT 0.99

/* Of all threads of a process (0: this one), in microseconds */
static inline double cpu_us(pid_t pid)
{
    struct timespec ts;
    clockid_t clock;

    CHECK((clock_getcpuclockid(pid, &clock) == 0) &&
          (clock_gettime(clock, &ts) == 0), "no process %d", pid);
    return ts.tv_sec * 1e6 + ts.tv_nsec * 1e-3;
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
    double share = drand48() * sums[count - 1];
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
