/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hw_tests.h"

#include <string.h>
#include <time.h>

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (t.tv_sec * 1e6) + (t.tv_nsec * 1e-3);
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double*)a, y = *(const double*)b;

    return (x > y) - (x < y);
}

static double *new_times(unsigned count)
{
    double *times = calloc(count, sizeof(*times));

    CHECK((times != NULL) && (count > 0), "no memory for %u times", count);
    return times;
}

/* The times are of no use afterwards */
static double median_of(double *times, unsigned count)
{
    double result;

    qsort(times, count, sizeof(*times), compare_times);
    result = times[count / 2];
    free(times);
    return result;
}

void hw_speed_register(hw_kind_t kind, const char *device, size_t length)
{
    hw_region_t region;
    pair_t pair;
    double start;

    pair_open(&pair, device, device);
    if (kind == HW_VIEWS) {
        (void)hw_attach(&region, device);
    }
    hw_region_map(&region, kind, length);
    start = now_us();
    hw_region_register(&region, pair.b.pd);
    printf("us: %.3f\n", now_us() - start);
    hw_region_close(&region);
    pair_close(&pair);
}

/* On demand, the first accesses bring in more; they are not measured */
static void bring_in(hw_access_t *a)
{
    memset(a->region.memory, 1, a->region.length);
    hw_populate(&a->region, 0, a->region.length / HW_PAGE,
                NPRDMA_IOC_POPULATE_WRITE);
}

void hw_speed_access(hw_access_t *a, int is_put, int verified, size_t length,
                     unsigned count, unsigned depth)
{
    const unsigned warm = 20;
    double *times       = new_times(count + warm);
    double start        = 0, total = 0;
    unsigned posted, done;

    bring_in(a);
    for (posted = 0, done = 0; done < count + warm; ++done) {
        if (done == warm) {
            total = now_us();
        }
        start = now_us();
        for (; (posted < count + warm) && (posted < done + depth); ++posted) {
            hw_post(a, is_put, 0, 0, length);
            if (verified) {
                hw_post_states(a, 0, (length + HW_PAGE - 1) / HW_PAGE);
            }
        }
        hw_wait(a, verified + 1);
        times[(done < warm) ? count + done : done - warm] = now_us() - start;
    }
    total = (now_us() - total) / count;
    start = median_of(times, count);
    printf("us: %.3f\n", (depth == 1) ? start : total);
}
