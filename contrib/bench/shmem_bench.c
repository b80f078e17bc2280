/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Start of an OpenSHMEM program: shmem_bench BYTES, of a symmetric heap of
 * SHMEM_SYMMETRIC_HEAP_SIZE=BYTES. Touches one page in a hundred of half of it
 * and puts a word to the other process. The first process prints "us VALUE"
 * from shmem_init() to the end of that, and "rss_percent VALUE" of the heap.
 */

#include "bench.h"

#include <shmem.h>

#define PAGE_SIZE 4096

int main(int argc, char **argv)
{
    size_t length = (argc > 1) ? strtoull(argv[1], NULL, 0) : 0;
    long before   = resident_bytes();
    double start  = now_us();
    char *heap;
    size_t i;
    int me;

    CHECK(length >= 1ul << 30, "usage: shmem_bench BYTES, 1 GiB or more");
    shmem_init();
    me   = shmem_my_pe();
    heap = shmem_malloc(length / 2);
    CHECK(heap != NULL, "no symmetric memory");
    for (i = 0; i < length / 2; i += 100 * PAGE_SIZE) {
        heap[i] = 1;
    }
    shmem_barrier_all();
    shmem_long_p((long*)(heap + 50 * PAGE_SIZE), me + 1, me ^ 1);
    shmem_barrier_all();
    CHECK(*(long*)(heap + 50 * PAGE_SIZE) == (me ^ 1) + 1, "wrong data");

    if (me == 0) {
        printf("us %.0f rss_percent %.2f\n", now_us() - start,
               100.0 * (resident_bytes() - before) / length);
    }
    shmem_finalize();
    return EXIT_SUCCESS;
}
