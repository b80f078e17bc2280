/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What programs of remote memory share: CPU time, memory that may be a file,
 * and numbers at random by the law of Zipf. As libc's numbers without a seed
 * they are the same ones in each run. */

#ifndef RMEM_LOAD_H_
#define RMEM_LOAD_H_

#include "bench.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

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

/* Allocated at once, or a mapping of the file `path` if that is not NULL */
static inline void *new_memory(size_t bytes, const char *path)
{
    void *memory;
    int fd;

    if (path == NULL) {
        memory = malloc(bytes);
        CHECK(memory != NULL, "no memory");
        return memory;
    }
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK((fd >= 0) && (ftruncate(fd, bytes) == 0), "%s: %m", path);
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED, "%s: %m", path);
    return memory;
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
