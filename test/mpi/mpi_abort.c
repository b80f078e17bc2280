/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The last rank calls MPI_Abort while all ranks have large operations
 * outstanding. The program ends in no other way.
 */

#include "mpi_test.h"

#include <stdio.h>
#include <stdlib.h>

#define LENGTH  (1024 * 1024)

int main(int argc, char **argv)
{
    int rounds = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 20);
    int next   = (mpi_test_rank + 1) % mpi_test_size;
    int num    = mpi_test_size;
    char *out  = malloc(2 * LENGTH);
    char *in   = malloc(LENGTH);
    char *base;
    MPI_Request requests[2];
    MPI_Win win;
    int round;

    mpi_test_fill(out, 2 * LENGTH, mpi_test_rank);
    MPI_Win_allocate(LENGTH, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
    MPI_Win_lock_all(0, win);
    for (round = 0;; ++round) {
        MPI_Irecv(in, LENGTH, MPI_BYTE, (mpi_test_rank + num - 1) % num, 1,
                  MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, LENGTH, MPI_BYTE, next, 1, MPI_COMM_WORLD, &requests[1]);
        MPI_Put(out + LENGTH, LENGTH, MPI_BYTE, next, 0, LENGTH, MPI_BYTE, win);
        if ((round == rounds) && (mpi_test_rank == num - 1)) {
            printf("aborts with operations under way\n");
            fflush(stdout);
            MPI_Abort(MPI_COMM_WORLD, 7);
        }
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        MPI_Win_flush(next, win);
    }
}
