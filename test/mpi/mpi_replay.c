/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The same sequence in each run: large messages in both directions, one at a
 * time, between buffers at the same addresses. So the NIC's accesses depend
 * only on the faults.
 */

#include "mpi_test.h"

#include <sys/mman.h>

#define LENGTH (2ul << 20)
#define PLACE  ((void*)0x600000000000ul)

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 6);
    uint64_t bytes = 0;
    int i;
    char *out, *in;

    CHECK(mpi_test_size == 2, "%d ranks", mpi_test_size);
    out = mmap(PLACE, 2 * LENGTH, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(out == PLACE, "memory is at %p", (void*)out);
    in = out + LENGTH;

    for (i = 0; i < 2 * rounds; ++i) {
        if (mpi_test_rank == (i & 1)) {
            mpi_test_fill(out, LENGTH, i);
            MPI_Send(out, LENGTH, MPI_BYTE, !mpi_test_rank, i, MPI_COMM_WORLD);
            bytes += LENGTH;
        } else {
            mpi_test_fill(in, LENGTH, ~i);
            MPI_Recv(in, LENGTH, MPI_BYTE, !mpi_test_rank, i, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
            mpi_test_verify(in, LENGTH, i, "message");
        }
    }

    MPI_Barrier(MPI_COMM_WORLD);
    return mpi_test_done(bytes);
}
