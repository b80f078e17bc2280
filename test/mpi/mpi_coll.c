/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Collectives of random length on the world, and on communicators that are
 * split from it. Every result is computed independently.
 */

#include "mpi_test.h"

#include <stdlib.h>

#define MAX_COUNT 20000
#define MAX_RANKS 256

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
    int root = c->count % c->size;
    MPI_Request req;
    int i;

    set(c, c->count);
    MPI_Reduce(c->a, c->b, c->count, MPI_INT, MPI_SUM, root, c->comm);
    for (i = 0; (c->rank == root) && (i < c->count); ++i) {
        CHECK(c->b[i] == value_sum(c, i), "reduce [%d] = %d", i, c->b[i]);
    }

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

static void do_scan(coll_t *c)
{
    int i;

    set(c, c->count);
    MPI_Scan(c->a, c->b, c->count, MPI_INT, MPI_SUM, c->comm);
    for (i = 0; i < c->count; ++i) {
        CHECK(c->b[i] == (c->rank + 1) * (i * 31 + 5) +
                                 7919 * (c->rank * (c->rank + 1) / 2),
              "scan [%d] = %d", i, c->b[i]);
    }
}

static void do_allgather(coll_t *c)
{
    int counts[MAX_RANKS], displs[MAX_RANKS];
    int each = c->count / c->size;
    int i, r, total;

    set(c, c->count);
    MPI_Allgather(c->a, each, MPI_INT, c->b, each, MPI_INT, c->comm);
    for (i = 0; i < each * c->size; ++i) {
        CHECK(c->b[i] == value(i / each, i % each), "allgather [%d] = %d", i,
              c->b[i]);
    }

    /* Rank r has r elements more than rank 0 */
    for (r = total = 0; r < c->size; ++r) {
        counts[r] = each / 2 + r;
        displs[r] = total;
        total    += counts[r];
    }
    set(c, total + c->size);
    MPI_Allgatherv(c->a, counts[c->rank], MPI_INT, c->b, counts, displs,
                   MPI_INT, c->comm);
    for (r = 0; r < c->size; ++r) {
        for (i = 0; i < counts[r]; ++i) {
            CHECK(c->b[displs[r] + i] == value(r, i),
                  "allgatherv [%d] of rank %d = %d", i, r,
                  c->b[displs[r] + i]);
        }
    }
    c->bytes += (c->size - 1) * (each + (size_t)each / 2) * sizeof(int);
}

static void do_alltoall(coll_t *c)
{
    int counts[MAX_RANKS], sdispls[MAX_RANKS];
    int rcounts[MAX_RANKS], rdispls[MAX_RANKS];
    int each = c->count / c->size;
    int i, r, stotal, rtotal;

    set(c, c->count);
    MPI_Alltoall(c->a, each, MPI_INT, c->b, each, MPI_INT, c->comm);
    for (i = 0; i < each * c->size; ++i) {
        r = i / each;
        CHECK(c->b[i] == value(r, c->rank * each + i % each),
              "alltoall [%d] from rank %d = %d", i % each, r, c->b[i]);
    }

    /* From s to r: s + r elements, none between rank 0 and itself */
    for (r = stotal = rtotal = 0; r < c->size; ++r) {
        counts[r] = rcounts[r] = r + c->rank;
        sdispls[r] = stotal;
        rdispls[r] = rtotal;
        stotal    += counts[r];
        rtotal    += rcounts[r];
    }
    set(c, stotal);
    MPI_Alltoallv(c->a, counts, sdispls, MPI_INT, c->b, rcounts, rdispls,
                  MPI_INT, c->comm);
    for (r = 0; r < c->size; ++r) {
        for (i = 0; i < rcounts[r]; ++i) {
            /* In rank r's buffer ours follow those for ranks below us */
            CHECK(c->b[rdispls[r] + i] ==
                          value(r, c->rank * r +
                                           c->rank * (c->rank - 1) / 2 + i),
                  "alltoallv [%d] from rank %d = %d", i, r,
                  c->b[rdispls[r] + i]);
        }
    }
    c->bytes += (size_t)(c->size - 1) * each * sizeof(int);
}

static void do_scatter(coll_t *c)
{
    int root = c->count % c->size;
    int each = c->count / c->size;
    int i;

    set(c, c->count);
    MPI_Scatter(c->a, each, MPI_INT, c->b, each, MPI_INT, root, c->comm);
    for (i = 0; i < each; ++i) {
        CHECK(c->b[i] == value(root, c->rank * each + i), "scatter [%d] = %d",
              i, c->b[i]);
        c->a[i] = c->b[i];
    }
    MPI_Gather(c->a, each, MPI_INT, c->b, each, MPI_INT, root, c->comm);
    for (i = 0; (c->rank == root) && (i < each * c->size); ++i) {
        CHECK(c->b[i] == value(root, i), "gather [%d] = %d", i, c->b[i]);
    }
    MPI_Barrier(c->comm);
}

static void do_reduce_scatter(coll_t *c)
{
    int each = c->count / c->size;
    int i;

    set(c, c->count);
    MPI_Reduce_scatter_block(c->a, c->b, each, MPI_INT, MPI_SUM, c->comm);
    for (i = 0; i < each; ++i) {
        CHECK(c->b[i] == value_sum(c, c->rank * each + i),
              "reduce_scatter [%d] = %d", i, c->b[i]);
    }
}

static uint64_t all_collectives(MPI_Comm comm, int count)
{
    coll_t c = {.comm = comm, .count = count};

    MPI_Comm_rank(comm, &c.rank);
    MPI_Comm_size(comm, &c.size);
    CHECK(c.size <= MAX_RANKS, "%d ranks", c.size);
    c.a = malloc((count + MAX_RANKS * MAX_RANKS) * sizeof(int));
    c.b = malloc((count + MAX_RANKS * MAX_RANKS) * sizeof(int));

    do_bcast(&c);
    do_reduce(&c);
    do_scan(&c);
    do_allgather(&c);
    do_alltoall(&c);
    do_scatter(&c);
    do_reduce_scatter(&c);

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
