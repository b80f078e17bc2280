/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What every benchmark program needs: errors, a clock, memory that nobody has
 * touched, and the median. */

#ifndef NPRDMA_BENCH_H_
#define NPRDMA_BENCH_H_

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Ends the program with the message that the arguments make, as for printf() */
#define CHECK(_cond, ...) \
    do { \
        if (!(_cond)) { \
            fprintf(stderr, "%s: error: ", program_invocation_short_name); \
            fprintf(stderr, __VA_ARGS__); \
            fprintf(stderr, "\n"); \
            exit(EXIT_FAILURE); \
        } \
    } while (0)

static inline double now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1e9 + ts.tv_nsec;
}

static inline double now_us(void)
{
    return now_ns() * 1e-3;
}

/*
 * What ucx_perftest takes its times with: half of the price of now_ns(), which
 * is part of what is measured. The unit is found by looking at now_ns(), too.
 */
static inline uint64_t now_ticks(void)
{
#ifdef __x86_64__
    return __builtin_ia32_rdtsc();
#else
    return (uint64_t)now_ns();
#endif
}

static inline int compare_values(const void *a, const void *b)
{
    double x = *(const double*)a, y = *(const double*)b;

    return (x > y) - (x < y);
}

static inline void sort_values(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_values);
}

/* Sorts the values, too */
static inline double median(double *values, size_t count)
{
    sort_values(values, count);
    return values[count / 2];
}

/* Memory of which no page is there yet */
static inline void *map_memory(size_t length)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    CHECK(memory != MAP_FAILED, "cannot map %zu bytes: %m", length);
    return memory;
}

/* The same without huge pages, where neither their split nor how cheap they
 * make a page is what is to be measured */
static inline void *map_small_pages(size_t length)
{
    void *memory = map_memory(length);

    madvise(memory, length, MADV_NOHUGEPAGE);
    return memory;
}

#endif
