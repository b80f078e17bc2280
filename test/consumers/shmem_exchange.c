/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * OpenSHMEM: puts, gets, atomics and locks with known data
 */

#include <shmem.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    COUNT  = 1 << 20,   /* longs of a large transfer: 8 MiB */
    ROUNDS = 4,
    ADDS   = 100        /* of each PE, a multiple of their number */
};

static long counter, lock, shared_sum;

static long value(int pe, int round, size_t i)
{
    return (long)((i * 0x9e3779b9u) ^ ((uint64_t)pe << 40)) + round;
}

static void expect(const char *what, long found, long wanted)
{
    if (found != wanted) {
        fprintf(stderr, "PE %d: %s is %ld, not %ld\n", shmem_my_pe(), what,
                found, wanted);
        shmem_global_exit(1);
    }
}

static void large(long *source, long *target)
{
    const int me   = shmem_my_pe(), n = shmem_n_pes();
    const int next = (me + 1) % n, previous = (me + n - 1) % n;
    long *local = malloc(COUNT * sizeof(*local));
    size_t i;
    int round;

    for (round = 0; round < ROUNDS; ++round) {
        for (i = 0; i < COUNT; ++i) {
            source[i] = value(me, round, i);
        }
        shmem_barrier_all();
        shmem_long_put(target, source, COUNT, next);
        shmem_long_get(local, source, COUNT, next);
        shmem_barrier_all();
        for (i = 0; i < COUNT; ++i) {
            expect("a put long", target[i], value(previous, round, i));
            expect("a got long", local[i], value(next, round, i));
        }
        shmem_barrier_all();
    }
    free(local);
}

static void atomics(void)
{
    const int n = shmem_n_pes();
    long before;
    int i;

    for (i = 0; i < ADDS; ++i) {
        shmem_long_atomic_fetch_add(&counter, 3, i % n);
        shmem_set_lock(&lock);
        shmem_long_get(&before, &shared_sum, 1, 0);
        shmem_long_p(&shared_sum, before + 1, 0);
        shmem_quiet();
        shmem_clear_lock(&lock);
    }
    shmem_barrier_all();
    expect("a counter", counter, 3l * n * (ADDS / n));
    if (shmem_my_pe() == 0) {
        expect("the sum under the lock", shared_sum, (long)ADDS * n);
        puts("all as expected");
    }
}

int main(void)
{
    long *source, *target;

    shmem_init();
    source = shmem_malloc(COUNT * sizeof(*source));
    target = shmem_malloc(COUNT * sizeof(*target));
    if ((source == NULL) || (target == NULL)) {
        shmem_global_exit(2);
    }
    large(source, target);
    atomics();
    shmem_free(target);
    shmem_free(source);
    shmem_finalize();
    return 0;
}
