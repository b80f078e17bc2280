/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "mpi_test.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int mpi_test_rank;
int mpi_test_size;

int mpi_test_init(int argc, char **argv, int thread, int rounds)
{
    int provided;

    MPI_Init_thread(&argc, &argv, thread, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_test_size);
    CHECK(provided >= thread, "MPI offers thread level %d, not %d", provided,
          thread);

    if (argc > 1) {
        rounds = atoi(argv[1]);
    }
    CHECK(rounds > 0, "number of rounds '%s'", argc > 1 ? argv[1] : "");
    return rounds;
}

int mpi_test_done(uint64_t bytes)
{
    uint64_t total;

    MPI_Reduce(&bytes, &total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (mpi_test_rank == 0) {
        printf("passed: %d ranks, %" PRIu64 " bytes\n", mpi_test_size, total);
    }

    MPI_Finalize();
    return EXIT_SUCCESS;
}

void mpi_test_fail(const char *file, int line, const char *cond,
                   const char *fmt, ...)
{
    char message[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    fprintf(stderr, "FAILED on rank %d: %s:%d: %s: %s\n", mpi_test_rank, file,
            line, cond, message);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

/* splitmix64 (Steele, Lea, Flood 2014) */
uint32_t mpi_test_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ul);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ul;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebul;
    return (z ^ (z >> 31)) >> 32;
}

size_t mpi_test_length(uint64_t *state, size_t max)
{
    size_t length;

    switch (mpi_test_random(state) % 8) {
    case 0:
        length = mpi_test_random(state) % 4;
        break;
    case 1:
    case 2:
        /* Around the limit of inline sends */
        length = mpi_test_random(state) % 512;
        break;
    case 3:
    case 4:
        /* Around the size of a bounce slot */
        length = 8192 - 300 + mpi_test_random(state) % 600;
        break;
    default:
        /* Any order of magnitude up to the largest */
        length = mpi_test_random(state) %
                 ((max >> (mpi_test_random(state) % 16)) + 1);
    }

    return length <= max ? length : max;
}

static inline uint8_t mpi_test_byte(uint64_t key, size_t pos)
{
    uint64_t word = (key ^ (pos >> 3)) * 0x9e3779b97f4a7c15ul;

    return (word ^ (word >> 29)) >> ((pos & 7) * 8);
}

void mpi_test_fill(void *buffer, size_t length, uint64_t key)
{
    uint8_t *bytes = buffer;
    size_t pos;

    for (pos = 0; pos < length; ++pos) {
        bytes[pos] = mpi_test_byte(key, pos);
    }
}

void mpi_test_verify(const void *buffer, size_t length, uint64_t key,
                     const char *what)
{
    const uint8_t *bytes = buffer;
    size_t pos;

    for (pos = 0; pos < length; ++pos) {
        CHECK(bytes[pos] == mpi_test_byte(key, pos),
              "%s of %zu bytes: byte %zu is 0x%02x, not 0x%02x", what, length,
              pos, bytes[pos], mpi_test_byte(key, pos));
    }
}
