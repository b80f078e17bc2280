/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * MPI benchmark of memory that is kept while a control group has little room:
 *
 *   limit_bench mmap BYTES    each of two ranks has BYTES of buffers at once:
 *                             maps and writes them, sends them to the other
 *                             rank, and unmaps them. From round to round their
 *                             size changes, so what was kept is of no use for
 *                             the next round.
 *   limit_bench same BYTES    as mmap, with buffers of one size
 *
 * Prints "us VALUE", the median of rounds of all sizes, of the slower rank. The
 * contents are checked.
 */

#include "bench.h"

#include <mpi.h>

#include <string.h>

#define TURNS 15
#define WARM  3

static const size_t sizes[] = {1 << 20, 4 << 20, 16 << 20, 48 << 20};

#define NUM_SIZES ((int)(sizeof(sizes) / sizeof(*sizes)))
#define MAX_COUNT 1024

static int rank;

static char *allocate(size_t size)
{
    void *buffer = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(buffer != MAP_FAILED, "cannot allocate %zu bytes", size);
    return buffer;
}

/* `total` bytes of buffers of one size; half of them are received */
static void exchange(size_t size, size_t total, int turn)
{
    int i, count = total / size / 2 * 2;
    char *buffers[MAX_COUNT];

    for (i = 0; i < count; ++i) {
        buffers[i] = allocate(size);
        memset(buffers[i], (i & 1) ? 0 : turn + 1, size);
    }
    for (i = 0; i < count; i += 2) {
        MPI_Sendrecv(buffers[i], size, MPI_BYTE, !rank, 1, buffers[i + 1], size,
                     MPI_BYTE, !rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK((buffers[i + 1][0] == turn + 1) &&
              (buffers[i + 1][size - 1] == turn + 1), "wrong data");
    }
    for (i = 0; i < count; ++i) {
        munmap(buffers[i], size);
    }
}

static double round_us(int is_same, size_t total, int turn)
{
    double start;
    int i;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    for (i = 0; i < NUM_SIZES; ++i) {
        exchange(sizes[is_same ? 1 : i], total, turn);
    }
    return (MPI_Wtime() - start) * 1e6;
}

int main(int argc, char **argv)
{
    const char *kind = (argc == 3) ? argv[1] : "";
    size_t total     = (argc == 3) ? strtoull(argv[2], NULL, 0) : 0;
    double times[TURNS], us;
    int turn, num_ranks;

    CHECK(!strcmp(kind, "mmap") || !strcmp(kind, "same"),
          "say mmap or same, and BYTES");
    CHECK((total >= 2 * sizes[NUM_SIZES - 1]) &&
          (total <= MAX_COUNT * sizes[0]),
          "BYTES must be %zu to %zu", 2 * sizes[NUM_SIZES - 1],
          MAX_COUNT * sizes[0]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    CHECK(num_ranks == 2, "needs two ranks");
    for (turn = -WARM; turn < TURNS; ++turn) {
        us = round_us(!strcmp(kind, "same"), total, turn + WARM);
        if (turn >= 0) {
            MPI_Reduce(&us, &times[turn], 1, MPI_DOUBLE, MPI_MAX, 0,
                       MPI_COMM_WORLD);
        }
    }
    if (rank == 0) {
        printf("us %.1f\n", median(times, TURNS));
    }
    MPI_Finalize();
    return EXIT_SUCCESS;
}
