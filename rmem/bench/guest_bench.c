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

#include "rmem_load.h"

#include <inttypes.h>
#include <string.h>

enum { PAGE_WORDS = 512, PASSES = 2, ACCESSES = 100000 };

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
static uint64_t few_pages(uint64_t *words, size_t count)
{
    size_t pages = count / PAGE_WORDS;
    uint64_t sum = 0;
    uint64_t *word;
    size_t rank;
    int i;

    for (i = 0; i < ACCESSES; ++i) {
        rank = exp(log(pages) * drand48());
        word = words + rank * 7919 % pages * PAGE_WORDS +
               lrand48() % PAGE_WORDS;
        sum += *word;
        if (i % 10 == 0) {
            *word = sum;
        }
    }
    return sum;
}

int main(int argc, char **argv)
{
    size_t count = (argc > 2) ? strtoul(argv[2], NULL, 0) << 17 : 0;
    uint64_t *words, sum;
    double start;
    size_t i;

    CHECK(count > 0, "usage: guest_bench stream|zipf MIB [FILE]");
    words = new_memory(count * sizeof(*words), argv[3]);
    for (i = 0; i < count; ++i) {
        words[i] = i * 0x9e3779b97f4a7c15ul;
        if ((argc > 3) && (i % (1 << 17) == 0)) {
            /* A small cgroup has no room for much that is not written yet */
            msync(words, i * sizeof(*words), MS_SYNC);
        }
    }

    start = now_us();
    sum   = strcmp(argv[1], "stream") ? few_pages(words, count) :
            stream(words, count);
    printf("us %.0f sum %" PRIu64 "\n", now_us() - start, sum);
    return EXIT_SUCCESS;
}
