/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * mpi_ended WAY: ranks exchange data, and then end in one of these ways.
 *
 *   wait   each rank waits for a signal; rank 0 says "ready"
 *   kill   each rank kills itself
 *   _exit  each rank calls _exit()
 *   idle   nothing is exchanged, and each rank ends as it should
 *   early  nothing is exchanged, and each rank kills itself
 *   abort  nothing is exchanged, and each rank aborts
 */

#include "mpi_test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char data[1 << 16], result[1 << 16];

int main(int argc, char **argv)
{
    const char *way = (argc == 2) ? argv[1] : "";
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!strcmp(way, "idle")) {
        MPI_Finalize();
        return 0;
    } else if (!strcmp(way, "early")) {
        kill(getpid(), SIGKILL);
    } else if (!strcmp(way, "abort")) {
        abort();
    }

    MPI_Allreduce(data, result, sizeof(data), MPI_BYTE, MPI_BOR,
                  MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!strcmp(way, "kill")) {
        kill(getpid(), SIGKILL);
    } else if (!strcmp(way, "_exit")) {
        _exit(0);
    }

    if (rank == 0) {
        puts("ready");
        fflush(stdout);
    }
    for (;;) {
        pause();
    }
}
