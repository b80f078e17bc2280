/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Lengths from 0 to 16 MiB: powers of two, and neighbors of short ones. In a
 * ring each rank sends to the next one, writes to its window, and reads there.
 */

#include "mpi_test.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LENGTH (16 * 1024 * 1024)
#define MAX_SLOT   65536 /* Longer than any slot of the transport */

static char *memory; /* The window */
static char *buffer;

static uint64_t key_of(int rank, size_t length, int kind)
{
    return (((uint64_t)rank << 32) + length) * 4 + kind;
}

static uint64_t message(int next, int previous, size_t length)
{
    MPI_Request req;

    MPI_Irecv(memory, length, MPI_BYTE, previous, 0, MPI_COMM_WORLD, &req);
    mpi_test_fill(buffer, length, key_of(mpi_test_rank, length, 0));
    MPI_Send(buffer, length, MPI_BYTE, next, 0, MPI_COMM_WORLD);
    MPI_Wait(&req, MPI_STATUS_IGNORE);
    mpi_test_verify(memory, length, key_of(previous, length, 0), "message");
    return (next == mpi_test_rank) ? 0 : length;
}

static uint64_t one_sided(int next, int previous, size_t length, MPI_Win win)
{
    mpi_test_fill(buffer, length, key_of(mpi_test_rank, length, 1));
    MPI_Put(buffer, length, MPI_BYTE, next, 0, length, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    mpi_test_verify(memory, length, key_of(previous, length, 1), "put");

    memset(buffer, 0, length);
    MPI_Get(buffer, length, MPI_BYTE, next, 0, length, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    mpi_test_verify(buffer, length, key_of(mpi_test_rank, length, 1), "get");
    return (next == mpi_test_rank) ? 0 : 2 * length;
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 1);
    int next       = (mpi_test_rank + 1) % mpi_test_size;
    int previous   = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    uint64_t bytes = 0;
    size_t power, length;
    int round, i;
    MPI_Win win;

    memory = malloc(MAX_LENGTH);
    buffer = malloc(MAX_LENGTH);
    MPI_Win_create(memory, MAX_LENGTH, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_fence(0, win);
    for (round = 0; round < rounds; ++round) {
        for (power = 1; power <= MAX_LENGTH; power *= 2) {
            for (i = -(power <= MAX_SLOT); i <= (power <= MAX_SLOT); ++i) {
                length = power + i;
                bytes += message(next, previous, length);
                MPI_Win_fence(0, win);
                bytes += one_sided(next, previous, length, win);
            }
        }
    }
    MPI_Win_free(&win);
    free(buffer);
    free(memory);
    return mpi_test_done(bytes);
}
