/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Persistent collectives, which are part of MPI 4, and an extension in Open MPI
 * 4.1. They are created once and started many times with new data, one by one
 * and all at the same time.
 */

#include "mpi_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#if (MPI_VERSION >= 4) || (OMPI_MAJOR_VERSION >= 5)
#define PERSISTENT(_name) MPI_##_name##_init
#elif defined(OMPI_HAVE_MPI_EXT_PCOLLREQ)
#define PERSISTENT(_name) MPIX_##_name##_init
#endif

#ifdef PERSISTENT

#define MAX_COUNT 6000
#define ROOT      1

typedef struct operation operation_t;

struct operation {
    const char *name;
    void (*init)(operation_t *op);
    /* Number of result elements, and the value of element i in this round */
    int (*results)(const operation_t *op);
    int (*want)(const operation_t *op, int i, int round);
    int         in_place; /* The result replaces the sent buffer */
    int         count;    /* Elements for each rank */
    int        *out;
    int        *in;
    MPI_Request req;
};

/* A ring: each rank has two neighbours, in this order. It sends to the second
 * one first, so that its parts match the neighbours' counts. */
static MPI_Comm ring;

static int value(int rank, int i, int round)
{
    return rank * 7919 + i * 31 + round * 1000003;
}

static int sum(int ranks, int i, int round)
{
    return ranks * value(0, i, round) + 7919 * (ranks * (ranks - 1) / 2);
}

/* Number of results */
static int no_results(const operation_t *op)
{
    (void)op;
    return 0;
}

static int one_part(const operation_t *op)
{
    return op->count;
}

static int all_parts(const operation_t *op)
{
    return mpi_test_size * op->count;
}

static int at_root_one(const operation_t *op)
{
    return mpi_test_rank == ROOT ? op->count : 0;
}

static int at_root_all(const operation_t *op)
{
    return mpi_test_rank == ROOT ? all_parts(op) : 0;
}

static int of_neighbours(const operation_t *op)
{
    return 2 * op->count;
}

/* Results */
static int from_root(const operation_t *op, int i, int round)
{
    (void)op;
    return value(ROOT, i, round);
}

static int my_part_from_root(const operation_t *op, int i, int round)
{
    return value(ROOT, mpi_test_rank * op->count + i, round);
}

static int sum_of_all(const operation_t *op, int i, int round)
{
    (void)op;
    return sum(mpi_test_size, i, round);
}

static int my_part_of_sum(const operation_t *op, int i, int round)
{
    return sum(mpi_test_size, mpi_test_rank * op->count + i, round);
}

static int sum_up_to_me(const operation_t *op, int i, int round)
{
    (void)op;
    return sum(mpi_test_rank + 1, i, round);
}

static int from_each(const operation_t *op, int i, int round)
{
    return value(i / op->count, i % op->count, round);
}

static int my_part_from_each(const operation_t *op, int i, int round)
{
    return value(i / op->count, mpi_test_rank * op->count + i % op->count,
                 round);
}

static int neighbour(int which)
{
    return (mpi_test_rank + (which ? 1 : mpi_test_size - 1)) % mpi_test_size;
}

static int from_neighbours(const operation_t *op, int i, int round)
{
    return value(neighbour(i / op->count), i % op->count, round);
}

static int part_from_neighbours(const operation_t *op, int i, int round)
{
    return value(neighbour(i / op->count), i, round);
}

static void init_barrier(operation_t *op)
{
    PERSISTENT(Barrier)(MPI_COMM_WORLD, MPI_INFO_NULL, &op->req);
}

static void init_bcast(operation_t *op)
{
    PERSISTENT(Bcast)(op->out, op->count, MPI_INT, ROOT, MPI_COMM_WORLD,
                      MPI_INFO_NULL, &op->req);
}

static void init_allreduce(operation_t *op)
{
    PERSISTENT(Allreduce)(op->out, op->in, op->count, MPI_INT, MPI_SUM,
                          MPI_COMM_WORLD, MPI_INFO_NULL, &op->req);
}

static void init_reduce(operation_t *op)
{
    PERSISTENT(Reduce)(op->out, op->in, op->count, MPI_INT, MPI_SUM, ROOT,
                       MPI_COMM_WORLD, MPI_INFO_NULL, &op->req);
}

static void init_scan(operation_t *op)
{
    PERSISTENT(Scan)(op->out, op->in, op->count, MPI_INT, MPI_SUM,
                     MPI_COMM_WORLD, MPI_INFO_NULL, &op->req);
}

static void init_reduce_scatter(operation_t *op)
{
    PERSISTENT(Reduce_scatter_block)(op->out, op->in, op->count, MPI_INT,
                                     MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL,
                                     &op->req);
}

static void init_gather(operation_t *op)
{
    PERSISTENT(Gather)(op->out, op->count, MPI_INT, op->in, op->count, MPI_INT,
                       ROOT, MPI_COMM_WORLD, MPI_INFO_NULL, &op->req);
}

static void init_scatter(operation_t *op)
{
    PERSISTENT(Scatter)(op->out, op->count, MPI_INT, op->in, op->count,
                        MPI_INT, ROOT, MPI_COMM_WORLD, MPI_INFO_NULL,
                        &op->req);
}

static void init_allgather(operation_t *op)
{
    PERSISTENT(Allgather)(op->out, op->count, MPI_INT, op->in, op->count,
                          MPI_INT, MPI_COMM_WORLD, MPI_INFO_NULL, &op->req);
}

static void init_alltoall(operation_t *op)
{
    PERSISTENT(Alltoall)(op->out, op->count, MPI_INT, op->in, op->count,
                         MPI_INT, MPI_COMM_WORLD, MPI_INFO_NULL, &op->req);
}

static void init_neighbor_allgather(operation_t *op)
{
    PERSISTENT(Neighbor_allgather)(op->out, op->count, MPI_INT, op->in,
                                   op->count, MPI_INT, ring, MPI_INFO_NULL,
                                   &op->req);
}

static void init_neighbor_alltoall(operation_t *op)
{
    PERSISTENT(Neighbor_alltoall)(op->out, op->count, MPI_INT, op->in,
                                  op->count, MPI_INT, ring, MPI_INFO_NULL,
                                  &op->req);
}

#define OPERATION(_name, _results, _want, ...) \
    { \
        .name = #_name, .init = init_##_name, .results = _results, \
        .want = _want, ##__VA_ARGS__ \
    }

static operation_t operations[] = {
        OPERATION(barrier, no_results, NULL),
        OPERATION(bcast, one_part, from_root, .in_place = 1),
        OPERATION(allreduce, one_part, sum_of_all),
        OPERATION(reduce, at_root_one, sum_of_all),
        OPERATION(scan, one_part, sum_up_to_me),
        OPERATION(reduce_scatter, one_part, my_part_of_sum),
        OPERATION(gather, at_root_all, from_each),
        OPERATION(scatter, one_part, my_part_from_root),
        OPERATION(allgather, all_parts, from_each),
        OPERATION(alltoall, all_parts, my_part_from_each),
        OPERATION(neighbor_allgather, of_neighbours, from_neighbours),
        OPERATION(neighbor_alltoall, of_neighbours, part_from_neighbours),
};

#define OPERATIONS ((int)(sizeof(operations) / sizeof(operations[0])))

static void create(void)
{
    int sources[2] = {neighbour(0), neighbour(1)};
    int targets[2] = {neighbour(1), neighbour(0)};
    uint64_t seed  = 4711;
    operation_t *op;
    int i;

    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, sources, MPI_UNWEIGHTED,
                                   2, targets, MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                   &ring);
    for (i = 0; i < OPERATIONS; ++i) {
        op        = &operations[i];
        op->count = 1 + mpi_test_length(&seed, MAX_COUNT * sizeof(int)) /
                                sizeof(int);
        op->out   = malloc(mpi_test_size * op->count * sizeof(int));
        op->in    = malloc(mpi_test_size * op->count * sizeof(int));
        op->init(op);
    }
}

static void destroy(void)
{
    int i;

    for (i = 0; i < OPERATIONS; ++i) {
        MPI_Request_free(&operations[i].req);
        free(operations[i].in);
        free(operations[i].out);
    }
    MPI_Comm_free(&ring);
}

static void prepare(const operation_t *op, int round)
{
    int i;

    for (i = 0; i < mpi_test_size * op->count; ++i) {
        op->out[i] = value(mpi_test_rank, i, round);
        op->in[i]  = -1;
    }
}

static void verify(const operation_t *op, int round)
{
    const int *got = op->in_place ? op->out : op->in;
    int i;

    for (i = 0; i < op->results(op); ++i) {
        CHECK(got[i] == op->want(op, i, round),
              "%s of %d, round %d: element %d is %d, not %d", op->name,
              op->count, round, i, got[i], op->want(op, i, round));
    }
}

/* All at once with a rotating first operation, or one after the other */
static void run(int round)
{
    MPI_Request req[OPERATIONS];
    int i;

    if (round & 1) {
        for (i = 0; i < OPERATIONS; ++i) {
            prepare(&operations[i], round);
            MPI_Start(&operations[i].req);
            MPI_Wait(&operations[i].req, MPI_STATUS_IGNORE);
            verify(&operations[i], round);
        }
        return;
    }

    for (i = 0; i < OPERATIONS; ++i) {
        prepare(&operations[i], round);
        req[i] = operations[(i + round / 2) % OPERATIONS].req;
    }
    MPI_Startall(OPERATIONS, req);
    MPI_Waitall(OPERATIONS, req, MPI_STATUSES_IGNORE);
    for (i = 0; i < OPERATIONS; ++i) {
        operations[(i + round / 2) % OPERATIONS].req = req[i];
        verify(&operations[i], round);
    }
}

/* The least number of bytes that must travel to this rank in a round. Its own
 * part does not travel, and one rank of a reduction or a scan may receive
 * nothing. */
static uint64_t bytes_of_round(void)
{
    uint64_t bytes = 0;
    const operation_t *op;
    int i, results;

    for (i = 0; i < OPERATIONS; ++i) {
        op      = &operations[i];
        results = op->results(op);
        if (results > op->count) {
            results -= (results == mpi_test_size * op->count) ? op->count : 0;
        } else if (mpi_test_rank == ROOT) {
            results = 0;
        }
        bytes += results * sizeof(int);
    }
    return bytes;
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 40);
    uint64_t bytes = 0;
    int round;

    CHECK(mpi_test_size >= 2, "%d ranks", mpi_test_size);
    create();
    for (round = 0; round < rounds; ++round) {
        run(round);
        bytes += bytes_of_round();
    }
    destroy();
    return mpi_test_done(bytes);
}

#else

int main(int argc, char **argv)
{
    mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 1);
    if (mpi_test_rank == 0) {
        printf("SKIPPED: this MPI has no persistent collectives\n");
    }
    return mpi_test_done(0);
}

#endif
