/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * guest_bench stream|zipf MIB [FILE]: a program that knows nothing of remote
 * memory, with arrays of MIB MiB that are allocated at once, or are a mapping
 * of FILE. Prints the time after they were filled, and a sum of what they have.
 *   stream  three arrays, two passes: each element of the first one becomes a
 *           sum of those of the others
 *   zipf    accesses of 8 bytes to pages, few of which get most; one in ten
 *           writes
 */

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_WORDS = 512, PASSES = 2, ACCESSES = 100000 };

static uint64_t *allocate(size_t bytes, const char *path)
{
    void *memory = MAP_FAILED;
    int fd;

    if (path == NULL) {
        return malloc(bytes);
    }
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if ((fd >= 0) && (ftruncate(fd, bytes) == 0)) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    return (memory == MAP_FAILED) ? NULL : memory;
}

static uint64_t stream(uint64_t *words, size_t count)
{
    size_t n = count / 3, i;
    uint64_t sum = 0;
    int pass;

    for (pass = 0; pass < PASSES; ++pass) {
        for (i = 0; i < n; ++i) {
            words[i] = words[n + i] + 3 * words[2 * n + i];
        }
        sum += words[n - 1];
    }
    return sum;
}

/* The page of rank r gets a share of about 1 / r of the accesses. Ranks are in
 * no order in the memory. */
static uint64_t zipf(uint64_t *words, size_t count)
{
    size_t pages   = count / PAGE_WORDS;
    uint64_t state = 1, sum = 0;
    uint64_t *word;
    size_t rank;
    int i;

    for (i = 0; i < ACCESSES; ++i) {
        state = state * 6364136223846793005ul + 1442695040888963407ul;
        rank  = exp(log(pages) * (state >> 11) / (double)(UINT64_C(1) << 53));
        word  = words + rank * 7919 % pages * PAGE_WORDS +
               (state >> 7) % PAGE_WORDS;
        sum  += *word;
        if (i % 10 == 0) {
            *word = sum;
        }
    }
    return sum;
}

int main(int argc, char **argv)
{
    size_t count = (argc > 2) ? strtoul(argv[2], NULL, 0) << 17 : 0;
    uint64_t *words = (count > 0) ?
                      allocate(count * sizeof(*words), argv[3]) : NULL;
    struct timespec begun, ended;
    uint64_t sum;
    size_t i;

    if (words == NULL) {
        fprintf(stderr, "guest_bench: no memory, or no such file\n");
        return 1;
    }
    for (i = 0; i < count; ++i) {
        words[i] = i * 0x9e3779b97f4a7c15ul;
        if ((argc > 3) && (i % (1 << 17) == 0)) {
            /* A small cgroup has no room for much that is not written yet */
            msync(words, i * sizeof(*words), MS_SYNC);
        }
    }

    clock_gettime(CLOCK_MONOTONIC, &begun);
    sum = strcmp(argv[1], "stream") ? zipf(words, count) : stream(words, count);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("us %ld sum %" PRIu64 "\n",
           (ended.tv_sec - begun.tv_sec) * 1000000 +
           (ended.tv_nsec - begun.tv_nsec) / 1000, sum);
    return 0;
}
