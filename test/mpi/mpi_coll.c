/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Collectives of random length: from one to all, from all to all, and with a
 * result of all. Every result is computed independently. mpi4py's tests have
 * all the others.
 */

#include "mpi_test.h"

#define MAX_COUNT 20000

static int      a[MAX_COUNT], b[MAX_COUNT];
static uint64_t num_bytes;

static int value(int rank, int i)
{
    return rank * 7919 + i * 31 + 5;
}

/* Sum of value() over all ranks */
static int value_sum(int i)
{
    return mpi_test_size * (i * 31 + 5) +
           7919 * (mpi_test_size * (mpi_test_size - 1) / 2);
}

static void set(int count)
{
    int i;

    for (i = 0; i < count; ++i) {
        a[i] = value(mpi_test_rank, i);
        b[i] = -1;
    }
}

static void do_bcast(int count)
{
    int root = count % mpi_test_size;
    int i;

    set(count);
    MPI_Bcast(a, count, MPI_INT, root, MPI_COMM_WORLD);
    for (i = 0; i < count; ++i) {
        CHECK(a[i] == value(root, i), "bcast [%d] = %d", i, a[i]);
    }
    num_bytes += (mpi_test_rank == root) ? 0 : count * sizeof(int);
}

static void do_reduce(int count)
{
    MPI_Request req;
    int i;

    set(count);
    MPI_Iallreduce(a, b, count, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &req);
    MPI_Wait(&req, MPI_STATUS_IGNORE);
    for (i = 0; i < count; ++i) {
        CHECK(b[i] == value(mpi_test_size - 1, i), "max [%d] = %d", i, b[i]);
    }

    MPI_Allreduce(a, b, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (i = 0; i < count; ++i) {
        CHECK(b[i] == value_sum(i), "allreduce [%d] = %d", i, b[i]);
    }
    num_bytes += (mpi_test_size > 1) ? count * sizeof(int) : 0;
}

static void do_alltoall(int count)
{
    int each = count / mpi_test_size;
    int i, r;

    set(count);
    MPI_Alltoall(a, each, MPI_INT, b, each, MPI_INT, MPI_COMM_WORLD);
    for (i = 0; i < each * mpi_test_size; ++i) {
        r = i / each;
        CHECK(b[i] == value(r, mpi_test_rank * each + i % each),
              "alltoall [%d] from rank %d = %d", i % each, r, b[i]);
    }
    num_bytes += (size_t)(mpi_test_size - 1) * each * sizeof(int);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rounds    = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 24);
    uint64_t seed = 17;
    int round, count;

    for (round = 0; round < rounds; ++round) {
        count = mpi_test_length(&seed, MAX_COUNT);
        if (count < mpi_test_size) {
            count = mpi_test_size;
        }
        do_bcast(count);
        do_reduce(count);
        do_alltoall(count);
    }
    return mpi_test_done(num_bytes);
}
