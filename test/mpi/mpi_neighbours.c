/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Neighbourhood collectives, blocking and nonblocking, on Cartesian grids,
 * periodic and not, and on distributed graphs. Edges of these have directions,
 * may be double, and may lead from a rank to itself.
 */

#include "mpi_test.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEGREE 16
#define MAX_COUNT  5000
#define UNTOUCHED  (-1)

typedef struct {
    int peer; /* Rank at the other end, or MPI_PROC_NULL */
    int edge; /* Its index among the edges that leave the source */
} end_t;

typedef struct {
    const char *name;
    MPI_Comm    comm;
    int         num_in;
    int         num_out;
    end_t       in[MAX_DEGREE];
    end_t       out[MAX_DEGREE];
} graph_t;

typedef struct {
    graph_t *graph;
    int      nonblocking;
    int      count;
    int      serial; /* Makes data unique per operation */
    int     *out;
    int     *in;
    int     *expected;
    uint64_t bytes;
} exchange_t;

/* The neighbourhood collectives, blocking and nonblocking */
#define NEIGHBOR(_x, _name, ...) \
    do { \
        MPI_Request _req; \
        if ((_x)->nonblocking) { \
            MPI_Ineighbor_##_name(__VA_ARGS__, (_x)->graph->comm, &_req); \
            MPI_Wait(&_req, MPI_STATUS_IGNORE); \
        } else { \
            MPI_Neighbor_##_name(__VA_ARGS__, (_x)->graph->comm); \
        } \
    } while (0)

/* Ranks and edges are below 16, elements below 8192 */
static int value(const exchange_t *x, int from, int edge, int i)
{
    return (((x->serial % 1024) * 16 + from) * 16 + edge) * 8192 + i;
}

static int source_of(int v)
{
    return v / (16 * 8192) % 16;
}

/* Number of elements on an edge, for operations with different lengths */
static int edge_count(const exchange_t *x, int from, int edge)
{
    return 1 + (x->count + from * 37 + edge * 101) % (x->count + 1);
}

/* Offset of an edge's elements: each has the same space */
static int place(const exchange_t *x, int edge)
{
    return edge * (x->count + 1);
}

static void begin(exchange_t *x)
{
    int i;

    ++x->serial;
    for (i = 0; i < MAX_DEGREE * (MAX_COUNT + 1); ++i) {
        x->out[i] = x->in[i] = x->expected[i] = UNTOUCHED;
    }
}

static void fill(const exchange_t *x, int *at, int from, int edge, int count)
{
    int i;

    for (i = 0; i < count; ++i) {
        at[i] = value(x, from, edge, i);
    }
}

static void finish(exchange_t *x, const char *what)
{
    int i;

    for (i = 0; i < MAX_DEGREE * (MAX_COUNT + 1); ++i) {
        CHECK(x->in[i] == x->expected[i],
              "%s%s of %d on %s: element %d is %d, not %d",
              x->nonblocking ? "nonblocking " : "", what, x->count,
              x->graph->name, i, x->in[i], x->expected[i]);
        if ((x->in[i] != UNTOUCHED) && (source_of(x->in[i]) != mpi_test_rank)) {
            x->bytes += sizeof(int);
        }
    }
}

static void do_allgather(exchange_t *x)
{
    const graph_t *g = x->graph;
    int counts[MAX_DEGREE], displs[MAX_DEGREE];
    int e, mine;

    begin(x);
    fill(x, x->out, mpi_test_rank, 0, x->count);
    for (e = 0; e < g->num_in; ++e) {
        if (g->in[e].peer != MPI_PROC_NULL) {
            fill(x, x->expected + e * x->count, g->in[e].peer, 0, x->count);
        }
    }
    NEIGHBOR(x, allgather, x->out, x->count, MPI_INT, x->in, x->count, MPI_INT);
    finish(x, "allgather");

    begin(x);
    mine = edge_count(x, mpi_test_rank, 0);
    fill(x, x->out, mpi_test_rank, 0, mine);
    for (e = 0; e < g->num_in; ++e) {
        displs[e] = place(x, g->num_in - 1 - e);
        counts[e] = 0;
        if (g->in[e].peer != MPI_PROC_NULL) {
            counts[e] = edge_count(x, g->in[e].peer, 0);
            fill(x, x->expected + displs[e], g->in[e].peer, 0, counts[e]);
        }
    }
    NEIGHBOR(x, allgatherv, x->out, mine, MPI_INT, x->in, counts, displs,
             MPI_INT);
    finish(x, "allgatherv");
}

static void do_alltoall(exchange_t *x)
{
    const graph_t *g = x->graph;
    int e;

    begin(x);
    for (e = 0; e < g->num_out; ++e) {
        fill(x, x->out + e * x->count, mpi_test_rank, e, x->count);
    }
    for (e = 0; e < g->num_in; ++e) {
        if (g->in[e].peer != MPI_PROC_NULL) {
            fill(x, x->expected + e * x->count, g->in[e].peer, g->in[e].edge,
                 x->count);
        }
    }
    NEIGHBOR(x, alltoall, x->out, x->count, MPI_INT, x->in, x->count, MPI_INT);
    finish(x, "alltoall");
}

typedef struct {
    int          counts[MAX_DEGREE];
    int          displs[MAX_DEGREE];
    MPI_Aint     bytes[MAX_DEGREE];
    MPI_Datatype types[MAX_DEGREE];
} parts_t;

/* Elements of each edge, from last to first in the buffer. For alltoallw, each
 * edge has one type for all its elements, and every other type has a gap
 * between them. */
static void set_parts(const exchange_t *x, const end_t *ends, int num, int out,
                      int *buffer, parts_t *parts, int with_types)
{
    int e, i, from, edge, count, stride;
    int *at;

    for (e = 0; e < num; ++e) {
        from             = out ? mpi_test_rank : ends[e].peer;
        edge             = ends[e].edge;
        parts->displs[e] = place(x, num - 1 - e);
        parts->bytes[e]  = parts->displs[e] * sizeof(int);
        at               = buffer + parts->displs[e];
        stride           = (with_types && (e & 1)) ? 2 : 1;
        count            = 0;
        if (ends[e].peer != MPI_PROC_NULL) {
            count = edge_count(x, from, edge) / (with_types ? 2 : 1);
        }
        for (i = 0; i < count; ++i) {
            at[i * stride] = value(x, from, edge, i);
        }
        parts->counts[e] = with_types ? 1 : count;
        if (with_types) {
            MPI_Type_vector(count, 1, stride, MPI_INT, &parts->types[e]);
            MPI_Type_commit(&parts->types[e]);
        }
    }
}

static void free_types(parts_t *parts, int num)
{
    int e;

    for (e = 0; e < num; ++e) {
        MPI_Type_free(&parts->types[e]);
    }
}

static void do_alltoallv(exchange_t *x, int with_types)
{
    const graph_t *g = x->graph;
    parts_t out, in;

    begin(x);
    set_parts(x, g->out, g->num_out, 1, x->out, &out, with_types);
    set_parts(x, g->in, g->num_in, 0, x->expected, &in, with_types);
    if (with_types) {
        NEIGHBOR(x, alltoallw, x->out, out.counts, out.bytes, out.types, x->in,
                 in.counts, in.bytes, in.types);
        finish(x, "alltoallw");
        free_types(&out, g->num_out);
        free_types(&in, g->num_in);
    } else {
        NEIGHBOR(x, alltoallv, x->out, out.counts, out.displs, MPI_INT, x->in,
                 in.counts, in.displs, MPI_INT);
        finish(x, "alltoallv");
    }
}

static void all_operations(exchange_t *x, int count)
{
    x->count = count;
    for (x->nonblocking = 0; x->nonblocking <= 1; ++x->nonblocking) {
        do_allgather(x);
        do_alltoall(x);
        do_alltoallv(x, 0);
        do_alltoallv(x, 1);
    }
}

static void add_edge(end_t *ends, int *num, int peer, int edge)
{
    CHECK(*num < MAX_DEGREE, "%d edges", *num);
    ends[*num].peer = peer;
    ends[*num].edge = edge;
    ++*num;
}

/* The last dimension varies fastest. Data sent downwards arrive from above, and
 * the other way round. */
static void make_grid(graph_t *g, const char *name, int rows, int columns,
                      int periodic_rows, int periodic_columns)
{
    int dims[2]     = {rows, columns};
    int periodic[2] = {periodic_rows, periodic_columns};
    int at[2]       = {mpi_test_rank / columns, mpi_test_rank % columns};
    int d, up, to[2], peer;

    memset(g, 0, sizeof(*g));
    g->name = name;
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periodic, 0, &g->comm);
    for (d = 0; d < 2; ++d) {
        for (up = 0; up <= 1; ++up) {
            to[0]  = at[0];
            to[1]  = at[1];
            to[d] += up ? 1 : -1;
            if (periodic[d]) {
                to[d] = (to[d] + dims[d]) % dims[d];
            }
            peer = ((to[d] < 0) || (to[d] >= dims[d])) ?
                           MPI_PROC_NULL :
                           to[0] * columns + to[1];
            add_edge(g->out, &g->num_out, peer, 2 * d + up);
            add_edge(g->in, &g->num_in, peer, 2 * d + !up);
        }
    }
}

/* The edges that leave a rank, in order */
static int leaving(int rank, int *to)
{
    int num = 0;

    /* To the next rank twice, to the one behind it, from odd ranks to
     * themselves. Rank 1 has no other edges. */
    if (rank != 1) {
        to[num++] = (rank + 1) % mpi_test_size;
        to[num++] = (rank + 2) % mpi_test_size;
        to[num++] = (rank + 1) % mpi_test_size;
    }
    if (rank & 1) {
        to[num++] = rank;
    }
    return num;
}

/* The edges of the graph. Each rank knows the edges that begin or end at it. */
static void make_graph(graph_t *g)
{
    int sources[MAX_DEGREE], targets[MAX_DEGREE], to[MAX_DEGREE];
    int rank, e, num;

    memset(g, 0, sizeof(*g));
    g->name = "graph";
    for (rank = 0; rank < mpi_test_size; ++rank) {
        num = leaving(rank, to);
        for (e = 0; e < num; ++e) {
            if (to[e] == mpi_test_rank) {
                sources[g->num_in] = rank;
                add_edge(g->in, &g->num_in, rank, e);
            }
        }
    }
    num = leaving(mpi_test_rank, targets);
    for (e = 0; e < num; ++e) {
        add_edge(g->out, &g->num_out, targets[e], e);
    }
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, g->num_in, sources,
                                   MPI_UNWEIGHTED, g->num_out, targets,
                                   MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &g->comm);
}

/* A star. Rank 0 gives all its edges to MPI, which chooses their order. */
static void make_star(graph_t *g)
{
    int *from = malloc(mpi_test_size * sizeof(*from));
    int *to   = malloc(mpi_test_size * sizeof(*to));
    int degrees[MAX_DEGREE], targets[MAX_DEGREE], num = 0;
    int in, out, weighted, i;

    memset(g, 0, sizeof(*g));
    g->name = "star";
    for (i = 1; (mpi_test_rank == 0) && (i < mpi_test_size); ++i) {
        from[num]      = i;
        degrees[num]   = 1;
        targets[num++] = 0;
    }
    MPI_Dist_graph_create(MPI_COMM_WORLD, num, from, degrees, targets,
                          MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &g->comm);
    MPI_Dist_graph_neighbors_count(g->comm, &in, &out, &weighted);
    CHECK((in == (mpi_test_rank == 0 ? mpi_test_size - 1 : 0)) &&
                  (out == (mpi_test_rank != 0)) && !weighted,
          "star has %d edges in, %d out, weighted %d", in, out, weighted);
    MPI_Dist_graph_neighbors(g->comm, in, from, MPI_UNWEIGHTED, out, to,
                             MPI_UNWEIGHTED);
    for (i = 0; i < in; ++i) {
        add_edge(g->in, &g->num_in, from[i], 0);
    }
    for (i = 0; i < out; ++i) {
        add_edge(g->out, &g->num_out, to[i], 0);
    }
    free(to);
    free(from);
}

static void run(exchange_t *x, graph_t *graph, int round)
{
    uint64_t seed = 99 + round;

    x->graph = graph;
    all_operations(x, 1 + mpi_test_length(&seed, (MAX_COUNT - 1) *
                                                         sizeof(int)) /
                                  sizeof(int));
    all_operations(x, MAX_COUNT - round);
    MPI_Comm_free(&graph->comm);
}

int main(int argc, char **argv)
{
    int rounds    = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 3);
    size_t length = MAX_DEGREE * (MAX_COUNT + 1) * sizeof(int);
    exchange_t x  = {.serial = 0};
    graph_t graph;
    int round;

    x.out      = malloc(length);
    x.in       = malloc(length);
    x.expected = malloc(length);
    for (round = 0; round < rounds; ++round) {
        make_grid(&graph, "line", 1, mpi_test_size, 0, 0);
        run(&x, &graph, round);
        /* A ring of two has two edges between the same ranks, and MPI does not
         * define which is which */
        if (mpi_test_size > 2) {
            make_grid(&graph, "ring", mpi_test_size, 1, 1, 0);
            run(&x, &graph, round);
        }
        if (mpi_test_size % 2 == 0) {
            make_grid(&graph, "grid", 2, mpi_test_size / 2, 0, 0);
            run(&x, &graph, round);
        }
        make_graph(&graph);
        run(&x, &graph, round);
        make_star(&graph);
        run(&x, &graph, round);
    }
    free(x.expected);
    free(x.in);
    free(x.out);
    return mpi_test_done(x.bytes);
}
