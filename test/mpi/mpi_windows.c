/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Each kind of window works: those of MPI_Win_allocate_shared by loads and
 * stores, the others by operations. All ranks are on one host, and the
 * transport's counters prove that it carried the operations.
 */

#include "mpi_test.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH 65536

static int next_rank(void)
{
    return (mpi_test_rank + 1) % mpi_test_size;
}

static int previous_rank(void)
{
    return (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
}

/* Writes into the next rank's part, by stores, and reads its own */
static void shared_window(int round)
{
    MPI_Aint length;
    char *base, *other;
    MPI_Comm node;
    MPI_Win win;
    int unit;

    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL,
                        &node);
    MPI_Win_allocate_shared(LENGTH, 1, MPI_INFO_NULL, node, &base, &win);
    MPI_Win_shared_query(win, next_rank(), &length, &unit, &other);
    CHECK(length == LENGTH, "the neighbour's part has %ld bytes", (long)length);

    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    memset(base, 0, LENGTH);
    MPI_Win_sync(win);
    MPI_Barrier(node);
    mpi_test_fill(other, LENGTH, mpi_test_rank + round);
    MPI_Win_sync(win);
    MPI_Barrier(node);
    MPI_Win_sync(win);
    mpi_test_verify(base, LENGTH, previous_rank() + round, "shared part");
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    MPI_Comm_free(&node);
}

/* Puts a block to the next rank, gets it back, and increments a counter
 * there */
static uint64_t operations(MPI_Win win, const char *base, int round,
                           MPI_Aint where)
{
    char *block = malloc(LENGTH);
    int64_t one = 1, num;

    mpi_test_fill(block, LENGTH, mpi_test_rank + round);
    MPI_Win_lock_all(0, win);
    MPI_Put(block, LENGTH, MPI_BYTE, next_rank(), where, LENGTH, MPI_BYTE, win);
    MPI_Win_flush(next_rank(), win);
    memset(block, 0, LENGTH);
    MPI_Get(block, LENGTH, MPI_BYTE, next_rank(), where, LENGTH, MPI_BYTE, win);
    MPI_Win_flush(next_rank(), win);
    mpi_test_verify(block, LENGTH, mpi_test_rank + round, "block got back");
    MPI_Fetch_and_op(&one, &num, MPI_INT64_T, next_rank(), where + LENGTH,
                     MPI_SUM, win);
    MPI_Win_flush(next_rank(), win);
    CHECK(num == round, "fetched %ld, not %d", (long)num, round);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(win);
    mpi_test_verify(base, LENGTH, previous_rank() + round, "put block");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_unlock_all(win);
    free(block);
    return 2 * LENGTH;
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 3);
    uint64_t bytes = 0;
    size_t length  = LENGTH + sizeof(int64_t);
    char *allocated, *created;
    MPI_Win win_allocated, win_created;
    int round;

    MPI_Win_allocate(length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &allocated,
                     &win_allocated);
    created = malloc(length);
    MPI_Win_create(created, length, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                   &win_created);
    memset(allocated, 0, length);
    memset(created, 0, length);
    MPI_Barrier(MPI_COMM_WORLD);

    for (round = 0; round < rounds; ++round) {
        shared_window(round);
        bytes += operations(win_allocated, allocated, round, 0);
        bytes += operations(win_created, created, round, 0);
    }

    MPI_Win_free(&win_created);
    MPI_Win_free(&win_allocated);
    free(created);
    return mpi_test_done(bytes);
}
