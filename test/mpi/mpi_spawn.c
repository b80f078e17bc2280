/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * MPI_Comm_spawn starts processes repeatedly. They exchange large messages and
 * one-sided operations with the earlier ones.
 */

#include "mpi_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH    (512 * 1024)
#define CHILDREN  2

/* Open MPI 5 keeps a window's connection to a rank when the process behind that
 * rank has ended, and puts to the dead one, over any transport */
#define LATER_WINDOWS  (OMPI_MAJOR_VERSION < 5)

/* Each rank with its neighbours: by message, and by put and by get */
static uint64_t exchange(MPI_Comm all, int round, int has_window)
{
    char *out = malloc(LENGTH), *in = malloc(LENGTH);
    int rank, size, next, previous;
    MPI_Win win;

    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &size);
    next     = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    mpi_test_fill(out, LENGTH, rank + round);
    MPI_Sendrecv(out, LENGTH, MPI_BYTE, next, 1, in, LENGTH, MPI_BYTE, previous,
                 1, all, MPI_STATUS_IGNORE);
    mpi_test_verify(in, LENGTH, previous + round, "message");

    if (has_window) {
        memset(in, 0, LENGTH);
        MPI_Win_create(in, LENGTH, 1, MPI_INFO_NULL, all, &win);
        MPI_Win_fence(0, win);
        MPI_Put(out, LENGTH, MPI_BYTE, next, 0, LENGTH, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        mpi_test_verify(in, LENGTH, previous + round, "put block");
        memset(out, 0, LENGTH);
        MPI_Get(out, LENGTH, MPI_BYTE, next, 0, LENGTH, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        mpi_test_verify(out, LENGTH, rank + round, "block got back");
        MPI_Win_free(&win);
    }
    free(in);
    free(out);
    return has_window ? 3 * LENGTH : LENGTH;
}

int main(int argc, char **argv)
{
    int is_child = (argc > 2) && !strcmp(argv[1], "child");
    int rounds   = is_child ? 1 : mpi_test_init(argc, argv, MPI_THREAD_SINGLE,
                                                2);
    char *child_argv[] = {"child", NULL, NULL};
    uint64_t bytes     = 0;
    MPI_Comm other, all;
    int round, has_window, i;

    if (is_child) {
        mpi_test_init(1, argv, MPI_THREAD_SINGLE, 1);
    }
    for (round = 0; round < rounds; ++round) {
        if (is_child) {
            has_window = !strcmp(argv[2], "window");
            MPI_Comm_get_parent(&other);
        } else {
            has_window    = (round == 0) || LATER_WINDOWS;
            child_argv[1] = has_window ? "window" : "messages";
            if (!has_window && (mpi_test_rank == 0)) {
                printf("left out: windows with processes of round %d\n", round);
            }
            MPI_Comm_spawn(argv[0], child_argv, CHILDREN, MPI_INFO_NULL, 0,
                           MPI_COMM_WORLD, &other, MPI_ERRCODES_IGNORE);
        }
        CHECK(other != MPI_COMM_NULL, "no process was started");
        MPI_Intercomm_merge(other, is_child, &all);
        for (i = 0; i < 2; ++i) {
            bytes += exchange(all, i, has_window);
        }
        MPI_Comm_free(&all);
        MPI_Comm_disconnect(&other);
    }

    if (is_child) {
        MPI_Finalize();
        return EXIT_SUCCESS;
    }
    return mpi_test_done(bytes);
}
