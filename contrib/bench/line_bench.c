/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * How long a cache line takes from one CPU to the other and back: the CPUs that
 * the other benchmarks bind their processes to. Hosts move the CPUs of virtual
 * machines, to where they share a cache or to where they do not, and all times
 * between two processes change with that. Prints the median in nanoseconds.
 */

#include "bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define COUNT 20000

static _Alignas(128) atomic_int there;
static _Alignas(128) atomic_int back;

static void bind_to(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu % sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void *answer(void *arg)
{
    int i;

    bind_to(1);
    for (i = 1; i <= COUNT; ++i) {
        while (atomic_load(&there) != i) {
        }
        atomic_store(&back, i);
    }
    return arg;
}

int main(void)
{
    static double ticks[COUNT];
    pthread_t thread;
    uint64_t first, start;
    double began, ns_per_tick;
    int i;

    bind_to(0);
    CHECK(pthread_create(&thread, NULL, answer, NULL) == 0, "pthread_create");
    began = now_ns();
    first = now_ticks();
    for (i = 1; i <= COUNT; ++i) {
        start = now_ticks();
        atomic_store(&there, i);
        while (atomic_load(&back) != i) {
        }
        ticks[i - 1] = now_ticks() - start;
    }
    ns_per_tick = (now_ns() - began) / (now_ticks() - first);
    pthread_join(thread, NULL);
    printf("line_ns %.0f\n", ns_per_tick * median(ticks, COUNT));
    return 0;
}
