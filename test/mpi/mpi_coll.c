/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Collectives of random length on the world, and on communicators that are
 * split from it: from one to all, from all to all, and with a result of all.
 * Every result is computed independently. mpi4py's tests have all the others.
 */

#include "mpi_test.h"

#include <stdlib.h>

#define MAX_COUNT 20000

typedef struct {
    MPI_Comm comm;
    int      rank;
    int      size;
    int      count;
    int     *a;
    int     *b;
    uint64_t bytes;
} coll_t;

static int value(int rank, int i)
{
    return rank * 7919 + i * 31 + 5;
}

/* Sum of value() over all ranks */
static int value_sum(const coll_t *c, int i)
{
    return c->size * (i * 31 + 5) + 7919 * (c->size * (c->size - 1) / 2);
}

static void set(coll_t *c, int count)
{
    int i;

    for (i = 0; i < count; ++i) {
        c->a[i] = value(c->rank, i);
        c->b[i] = -1;
    }
}

static void do_bcast(coll_t *c)
{
    int root = c->count % c->size;
    int i;

    set(c, c->count);
    MPI_Bcast(c->a, c->count, MPI_INT, root, c->comm);
    for (i = 0; i < c->count; ++i) {
        CHECK(c->a[i] == value(root, i), "bcast [%d] = %d", i, c->a[i]);
    }
    c->bytes += (c->rank == root) ? 0 : c->count * sizeof(int);
}

static void do_reduce(coll_t *c)
{
    MPI_Request req;
    int i;

    set(c, c->count);
    MPI_Iallreduce(c->a, c->b, c->count, MPI_INT, MPI_MAX, c->comm, &req);
    MPI_Wait(&req, MPI_STATUS_IGNORE);
    for (i = 0; i < c->count; ++i) {
        CHECK(c->b[i] == value(c->size - 1, i), "max [%d] = %d", i, c->b[i]);
    }

    MPI_Allreduce(c->a, c->b, c->count, MPI_INT, MPI_SUM, c->comm);
    for (i = 0; i < c->count; ++i) {
        CHECK(c->b[i] == value_sum(c, i), "allreduce [%d] = %d", i, c->b[i]);
    }
    c->bytes += (c->size > 1) ? c->count * sizeof(int) : 0;
}

static void do_alltoall(coll_t *c)
{
    int each = c->count / c->size;
    int i, r;

    set(c, c->count);
    MPI_Alltoall(c->a, each, MPI_INT, c->b, each, MPI_INT, c->comm);
    for (i = 0; i < each * c->size; ++i) {
        r = i / each;
        CHECK(c->b[i] == value(r, c->rank * each + i % each),
              "alltoall [%d] from rank %d = %d", i % each, r, c->b[i]);
    }
    c->bytes += (size_t)(c->size - 1) * each * sizeof(int);
    MPI_Barrier(c->comm);
}

static uint64_t all_collectives(MPI_Comm comm, int count)
{
    coll_t c = {.comm = comm, .count = count};

    MPI_Comm_rank(comm, &c.rank);
    MPI_Comm_size(comm, &c.size);
    c.a = malloc(count * sizeof(int));
    c.b = malloc(count * sizeof(int));

    do_bcast(&c);
    do_reduce(&c);
    do_alltoall(&c);

    free(c.b);
    free(c.a);
    return c.bytes;
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 12);
    uint64_t seed  = 17;
    uint64_t bytes = 0;
    int round, count;
    MPI_Comm comm;

    for (round = 0; round < rounds; ++round) {
        count = mpi_test_length(&seed, MAX_COUNT);
        if (count < mpi_test_size) {
            count = mpi_test_size;
        }
        bytes += all_collectives(MPI_COMM_WORLD, count);

        /* Odd and even ranks, last rank first */
        MPI_Comm_split(MPI_COMM_WORLD, (mpi_test_rank + round) % 2,
                       -mpi_test_rank, &comm);
        bytes += all_collectives(comm, count);
        MPI_Comm_free(&comm);
    }
    return mpi_test_done(bytes);
}
