/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Every predefined type of C, every pair type and each type constructor, point
 * to point, in collectives and in one-sided operations. Data must arrive where
 * the layout of the type has it, and bytes between must not change.
 */

#include "mpi_layout.h"
#include "mpi_test.h"

#include <stdlib.h>
#include <string.h>

/* Initial contents of receivers and targets */
#define UNTOUCHED 0xa5

/* Maximum length of a rank's part of a buffer */
#define MAX_PART (32 * 1024)

/* One-sided operations of UCX send each span separately */
#define MAX_RMA_SPANS 400

/* Receiver of data that go to all ranks */
#define ALL_RANKS 63

typedef struct {
    const mpi_layout_t *layout;
    int                 count; /* Elements in each part */
    size_t              part;  /* From one rank's part to the next, in bytes */
    size_t              total; /* All parts, in bytes */
    uint64_t            serial; /* Makes data unique per operation */
    char               *out;
    char               *in;
    char               *expected;
    char               *base; /* Memory of the window */
    MPI_Win             win;
    uint64_t            bytes;
} exchange_t;

static int right_rank(void)
{
    return (mpi_test_rank + 1) % mpi_test_size;
}

static int left_rank(void)
{
    return (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
}

static uint64_t data_key(const exchange_t *x, int from, int to)
{
    return (x->serial * 64 + from) * 64 + to;
}

/* Part of a buffer: the data from one rank to another, or to all */
static void store(const exchange_t *x, char *buffer, int part, int from, int to)
{
    mpi_layout_store(buffer + part * x->part, x->layout, x->count,
                     data_key(x, from, to));
}

static void begin(exchange_t *x)
{
    ++x->serial;
    memset(x->out, 0x11, x->total);
    memset(x->in, UNTOUCHED, x->total);
    memset(x->expected, UNTOUCHED, x->total);
}

/* Compare with the expected data. ranks: number of other ranks that sent
 * parts. */
static void finish(exchange_t *x, const char *got, const char *what, int ranks)
{
    size_t pos;

    if (memcmp(got, x->expected, x->total)) {
        for (pos = 0; got[pos] == x->expected[pos]; ++pos) {
        }
        CHECK(0, "%s of %d %s: byte %zu of %zu is 0x%02x, not 0x%02x", what,
              x->count, x->layout->name, pos, x->total, (unsigned char)got[pos],
              (unsigned char)x->expected[pos]);
    }
    x->bytes += (uint64_t)ranks * x->count * x->layout->size;
}

static void do_sendrecv(exchange_t *x)
{
    MPI_Status status;
    int count;

    begin(x);
    store(x, x->out, 0, mpi_test_rank, right_rank());
    store(x, x->expected, 0, left_rank(), mpi_test_rank);
    MPI_Sendrecv(x->out, x->count, x->layout->type, right_rank(), 1, x->in,
                 x->count, x->layout->type, left_rank(), 1, MPI_COMM_WORLD,
                 &status);
    MPI_Get_count(&status, x->layout->type, &count);
    CHECK(count == x->count, "received %d %s, not %d", count, x->layout->name,
          x->count);
    finish(x, x->in, "sendrecv", 1);
}

/* Sent with the type and received packed, then the other way round */
static void do_packed(exchange_t *x)
{
    const mpi_layout_t *layout = x->layout;
    int length, pos, size;
    MPI_Request req;
    char *packed;

    MPI_Pack_size(x->count, layout->type, MPI_COMM_WORLD, &size);
    packed = malloc(size);
    begin(x);
    store(x, x->out, 0, mpi_test_rank, right_rank());
    store(x, x->expected, 0, left_rank(), mpi_test_rank);
    length = x->count * layout->size;

    MPI_Isend(x->out, x->count, layout->type, right_rank(), 2, MPI_COMM_WORLD,
              &req);
    MPI_Recv(packed, length, MPI_PACKED, left_rank(), 2, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    pos = 0;
    MPI_Unpack(packed, length, &pos, x->in, x->count, layout->type,
               MPI_COMM_WORLD);
    MPI_Wait(&req, MPI_STATUS_IGNORE);
    finish(x, x->in, "receive as packed", 1);

    memset(x->in, UNTOUCHED, x->total);
    pos = 0;
    MPI_Pack(x->out, x->count, layout->type, packed, size, &pos,
             MPI_COMM_WORLD);
    CHECK(pos == length, "%d packed bytes, not %d", pos, length);
    MPI_Isend(packed, pos, MPI_PACKED, right_rank(), 3, MPI_COMM_WORLD, &req);
    MPI_Recv(x->in, x->count, layout->type, left_rank(), 3, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    MPI_Wait(&req, MPI_STATUS_IGNORE);
    finish(x, x->in, "send as packed", 1);
    free(packed);
}

static void do_bcast(exchange_t *x)
{
    int root = x->serial % mpi_test_size;

    begin(x);
    store(x, x->expected, 0, root, ALL_RANKS);
    if (mpi_test_rank == root) {
        store(x, x->in, 0, root, ALL_RANKS);
    }
    MPI_Bcast(x->in, x->count, x->layout->type, root, MPI_COMM_WORLD);
    finish(x, x->in, "bcast", mpi_test_rank != root);
}

static void do_gather_scatter(exchange_t *x)
{
    const mpi_layout_t *layout = x->layout;
    int root                   = x->serial % mpi_test_size;
    int r;

    begin(x);
    store(x, x->out, 0, mpi_test_rank, root);
    for (r = 0; (mpi_test_rank == root) && (r < mpi_test_size); ++r) {
        store(x, x->expected, r, r, root);
    }
    MPI_Gather(x->out, x->count, layout->type, x->in, x->count, layout->type,
               root, MPI_COMM_WORLD);
    finish(x, x->in, "gather", mpi_test_rank == root ? mpi_test_size - 1 : 0);

    begin(x);
    store(x, x->expected, 0, root, mpi_test_rank);
    for (r = 0; (mpi_test_rank == root) && (r < mpi_test_size); ++r) {
        store(x, x->out, r, root, r);
    }
    MPI_Scatter(x->out, x->count, layout->type, x->in, x->count, layout->type,
                root, MPI_COMM_WORLD);
    finish(x, x->in, "scatter", mpi_test_rank != root);
}

static void do_allgather(exchange_t *x)
{
    int r;

    begin(x);
    store(x, x->out, 0, mpi_test_rank, ALL_RANKS);
    for (r = 0; r < mpi_test_size; ++r) {
        store(x, x->expected, r, r, ALL_RANKS);
    }
    MPI_Allgather(x->out, x->count, x->layout->type, x->in, x->count,
                  x->layout->type, MPI_COMM_WORLD);
    finish(x, x->in, "allgather", mpi_test_size - 1);
}

static void prepare_alltoall(exchange_t *x)
{
    int r;

    begin(x);
    for (r = 0; r < mpi_test_size; ++r) {
        store(x, x->out, r, mpi_test_rank, r);
        store(x, x->expected, r, r, mpi_test_rank);
    }
}

static void do_alltoall(exchange_t *x)
{
    int counts[64], displs[64], r;
    MPI_Datatype types[64];

    prepare_alltoall(x);
    MPI_Alltoall(x->out, x->count, x->layout->type, x->in, x->count,
                 x->layout->type, MPI_COMM_WORLD);
    finish(x, x->in, "alltoall", mpi_test_size - 1);

    for (r = 0; r < mpi_test_size; ++r) {
        counts[r] = x->count;
        displs[r] = r * x->part;
        types[r]  = x->layout->type;
    }
    prepare_alltoall(x);
    MPI_Alltoallw(x->out, counts, displs, types, x->in, counts, displs, types,
                  MPI_COMM_WORLD);
    finish(x, x->in, "alltoallw", mpi_test_size - 1);
}

/* From a buffer of this type into a window, and back */
static void do_put_get(exchange_t *x)
{
    const mpi_layout_t *layout = x->layout;

    begin(x);
    memset(x->base, UNTOUCHED, x->total);
    store(x, x->out, 0, mpi_test_rank, right_rank());
    store(x, x->expected, 0, left_rank(), mpi_test_rank);
    MPI_Win_fence(0, x->win);
    MPI_Put(x->out, x->count, layout->type, right_rank(), 0, x->count,
            layout->type, x->win);
    MPI_Win_fence(0, x->win);
    finish(x, x->base, "put", 1);

    memset(x->expected, UNTOUCHED, x->total);
    store(x, x->expected, 0, mpi_test_rank, right_rank());
    MPI_Get(x->in, x->count, layout->type, right_rank(), 0, x->count,
            layout->type, x->win);
    MPI_Win_fence(0, x->win);
    finish(x, x->in, "get", 1);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, x->win);
}

/* Accumulate into the right rank's window, then fetch it with MPI_REPLACE */
static void do_accumulate(exchange_t *x)
{
    const mpi_layout_t *layout = x->layout;
    char *old                  = x->in;

    begin(x);
    memset(x->base, UNTOUCHED, x->total);
    MPI_Win_fence(0, x->win);
    store(x, x->out, 0, mpi_test_rank, right_rank());
    MPI_Accumulate(x->out, x->count, layout->type, right_rank(), 0, x->count,
                   layout->type, MPI_REPLACE, x->win);
    MPI_Win_fence(0, x->win);
    store(x, x->expected, 0, left_rank(), mpi_test_rank);
    finish(x, x->base, "accumulate", 1);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, x->win);

    /* The old data in the layout of the type, and the new data at the target */
    memset(x->expected, UNTOUCHED, x->total);
    store(x, x->expected, 0, mpi_test_rank, right_rank());
    ++x->serial;
    store(x, x->out, 0, mpi_test_rank, right_rank());
    MPI_Win_lock(MPI_LOCK_SHARED, right_rank(), 0, x->win);
    MPI_Get_accumulate(x->out, x->count, layout->type, old, x->count,
                       layout->type, right_rank(), 0, x->count, layout->type,
                       MPI_REPLACE, x->win);
    MPI_Win_unlock(right_rank(), x->win);
    finish(x, old, "get_accumulate", 1);

    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, mpi_test_rank, 0, x->win);
    memset(x->expected, UNTOUCHED, x->total);
    store(x, x->expected, 0, left_rank(), mpi_test_rank);
    finish(x, x->base, "replaced", 0);
    MPI_Win_unlock(mpi_test_rank, x->win);
}

/* count elements of the layout in each part, or fewer if these would overlap or
 * not fit */
static void set_case(exchange_t *x, const mpi_layout_t *layout, int count)
{
    size_t fit = MAX_PART / layout->extent;

    x->layout = layout;
    x->count  = count;
    if ((size_t)x->count > fit) {
        x->count = fit;
    }
    if (x->count > layout->max_count / mpi_test_size) {
        x->count = layout->max_count / mpi_test_size;
    }
    CHECK(x->count > 0, "%s: %d ranks", layout->name, mpi_test_size);
    x->part  = x->count * layout->extent;
    x->total = (mpi_test_size - 1) * x->part + mpi_layout_span(layout,
                                                               x->count);
}

static void all_operations(exchange_t *x, const mpi_layout_t *layout, int count)
{
    set_case(x, layout, count);
    do_sendrecv(x);
    do_packed(x);
    do_bcast(x);
    do_gather_scatter(x);
    do_allgather(x);
    do_alltoall(x);

    if ((layout->num > 1) && (x->count > MAX_RMA_SPANS / layout->num)) {
        set_case(x, layout, 1 + MAX_RMA_SPANS / layout->num);
    }
    do_put_get(x);
    if (layout->basic != MPI_DATATYPE_NULL) {
        do_accumulate(x);
    }
}

/* Two buffers by their addresses, as one message from MPI_BOTTOM */
static uint64_t absolute_addresses(int round)
{
    enum { FIRST = 30000, SECOND = 100 };
    static const int lengths[2] = {FIRST, SECOND};
    char *out[2] = {malloc(FIRST), malloc(SECOND)};
    char *in[2]  = {malloc(FIRST), malloc(SECOND)};
    MPI_Aint out_at[2], in_at[2];
    MPI_Datatype out_type, in_type;
    int i;

    for (i = 0; i < 2; ++i) {
        mpi_test_fill(out[i], lengths[i], 10 * mpi_test_rank + i + round);
        MPI_Get_address(out[i], &out_at[i]);
        MPI_Get_address(in[i], &in_at[i]);
    }
    MPI_Type_create_hindexed(2, lengths, out_at, MPI_CHAR, &out_type);
    MPI_Type_create_hindexed(2, lengths, in_at, MPI_CHAR, &in_type);
    MPI_Type_commit(&out_type);
    MPI_Type_commit(&in_type);
    MPI_Sendrecv(MPI_BOTTOM, 1, out_type, right_rank(), 4, MPI_BOTTOM, 1,
                 in_type, left_rank(), 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Type_free(&in_type);
    MPI_Type_free(&out_type);
    for (i = 0; i < 2; ++i) {
        mpi_test_verify(in[i], lengths[i], 10 * left_rank() + i + round,
                        "absolute buffer");
        free(in[i]);
        free(out[i]);
    }
    return FIRST + SECOND;
}

int main(int argc, char **argv)
{
    int rounds   = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 1);
    exchange_t x = {.serial = 0};
    mpi_layout_t *layouts;
    size_t length, end = 0;
    int i, round, num;

    num = mpi_layouts_create(&layouts);
    for (i = 0; i < num; ++i) {
        end = layouts[i].end > end ? layouts[i].end : end;
    }
    length     = mpi_test_size * MAX_PART + end;
    x.out      = malloc(length);
    x.in       = malloc(length);
    x.expected = malloc(length);
    MPI_Win_allocate(length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &x.base, &x.win);

    for (round = 0; round < rounds; ++round) {
        for (i = 0; i < num; ++i) {
            all_operations(&x, &layouts[i], 1);
            all_operations(&x, &layouts[i], 3);
            all_operations(&x, &layouts[i], MAX_PART);
        }
        x.bytes += absolute_addresses(round);
    }

    MPI_Win_free(&x.win);
    free(x.expected);
    free(x.in);
    free(x.out);
    mpi_layouts_destroy(layouts, num);
    return mpi_test_done(x.bytes);
}
