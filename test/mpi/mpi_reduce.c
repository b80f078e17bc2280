/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Each operation of MPI with each predefined type that it is defined for, in
 * collectives and in one-sided operations. The test computes the results
 * itself.
 */

#include "mpi_test.h"

#include <complex.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Length of a vector in bytes: several pages, so that the NIC moves it */
#define LENGTH 12288

/* Stands for a rank in the initial contents of a window */
#define INITIAL 40

/* Any value of any type: a complex number, or a pair of a value and an index */
typedef struct {
    long re;
    long im;
} number_t;

/* Sets of types, as MPI has them */
enum {
    INTEGER  = 1,
    FLOATING = 2,
    LOGICAL  = 4,
    COMPLEX  = 8,
    BYTES    = 16,
    PAIR     = 32
};

typedef struct {
    const char  *name;
    MPI_Datatype type;
    size_t       extent; /* In bytes */
    int          set;
    void (*store)(void *at, number_t n);
    number_t (*load)(const void *at);
} type_t;

typedef struct {
    const char *name;
    MPI_Op      op;
    int         sets; /* The sets of types that the operation is defined for */
    number_t (*combine)(number_t a, number_t b);
} op_t;

typedef struct {
    const type_t *type;
    const op_t   *op;
    int           count;
    char         *out;
    char         *in;
    char         *base; /* Memory of the window, two vectors */
    MPI_Win       win;
    uint64_t      bytes;
} reduction_t;

#define REAL_TYPE(_name, _c) \
    static void store_##_name(void *at, number_t n) \
    { \
        *(_c*)at = (_c)n.re; \
    } \
    static number_t load_##_name(const void *at) \
    { \
        return (number_t){(long)*(const _c*)at, 0}; \
    }

#define COMPLEX_TYPE(_name, _c) \
    static void store_##_name(void *at, number_t n) \
    { \
        *(_c*)at = n.re + n.im * I; \
    } \
    static number_t load_##_name(const void *at) \
    { \
        return (number_t){(long)creall(*(const _c*)at), \
                          (long)cimagl(*(const _c*)at)}; \
    }

#define PAIR_TYPE(_name, _c) \
    typedef struct { \
        _c  value; \
        int index; \
    } _name##_t; \
    static void store_##_name(void *at, number_t n) \
    { \
        ((_name##_t*)at)->value = (_c)n.re; \
        ((_name##_t*)at)->index = (int)n.im; \
    } \
    static number_t load_##_name(const void *at) \
    { \
        return (number_t){(long)((const _name##_t*)at)->value, \
                          ((const _name##_t*)at)->index}; \
    }

REAL_TYPE(signed_char, signed char)
REAL_TYPE(unsigned_char, unsigned char)
REAL_TYPE(bool, bool)
REAL_TYPE(short, short)
REAL_TYPE(unsigned_short, unsigned short)
REAL_TYPE(int, int)
REAL_TYPE(unsigned, unsigned)
REAL_TYPE(long, long)
REAL_TYPE(unsigned_long, unsigned long)
REAL_TYPE(float, float)
REAL_TYPE(double, double)
REAL_TYPE(long_double, long double)
COMPLEX_TYPE(float_complex, float complex)
COMPLEX_TYPE(double_complex, double complex)
COMPLEX_TYPE(long_double_complex, long double complex)
PAIR_TYPE(two_int, int)
PAIR_TYPE(short_int, short)
PAIR_TYPE(long_int, long)
PAIR_TYPE(float_int, float)
PAIR_TYPE(double_int, double)
PAIR_TYPE(long_double_int, long double)

#define TYPE(_mpi, _set, _name, _c) \
    {#_mpi, _mpi, sizeof(_c), _set, store_##_name, load_##_name}

static const type_t types[] = {
        TYPE(MPI_SIGNED_CHAR, INTEGER, signed_char, signed char),
        TYPE(MPI_UNSIGNED_CHAR, INTEGER, unsigned_char, unsigned char),
        TYPE(MPI_SHORT, INTEGER, short, short),
        TYPE(MPI_UNSIGNED_SHORT, INTEGER, unsigned_short, unsigned short),
        TYPE(MPI_INT, INTEGER, int, int),
        TYPE(MPI_UNSIGNED, INTEGER, unsigned, unsigned),
        TYPE(MPI_LONG, INTEGER, long, long),
        TYPE(MPI_UNSIGNED_LONG, INTEGER, unsigned_long, unsigned long),
        TYPE(MPI_LONG_LONG, INTEGER, long, long long),
        TYPE(MPI_UNSIGNED_LONG_LONG, INTEGER, unsigned_long, unsigned long),
        TYPE(MPI_INT8_T, INTEGER, signed_char, int8_t),
        TYPE(MPI_INT16_T, INTEGER, short, int16_t),
        TYPE(MPI_INT32_T, INTEGER, int, int32_t),
        TYPE(MPI_INT64_T, INTEGER, long, int64_t),
        TYPE(MPI_UINT8_T, INTEGER, unsigned_char, uint8_t),
        TYPE(MPI_UINT16_T, INTEGER, unsigned_short, uint16_t),
        TYPE(MPI_UINT32_T, INTEGER, unsigned, uint32_t),
        TYPE(MPI_UINT64_T, INTEGER, unsigned_long, uint64_t),
        TYPE(MPI_AINT, INTEGER, long, MPI_Aint),
        TYPE(MPI_OFFSET, INTEGER, long, MPI_Offset),
        TYPE(MPI_COUNT, INTEGER, long, MPI_Count),
        TYPE(MPI_FLOAT, FLOATING, float, float),
        TYPE(MPI_DOUBLE, FLOATING, double, double),
        TYPE(MPI_LONG_DOUBLE, FLOATING, long_double, long double),
        TYPE(MPI_C_BOOL, LOGICAL, bool, bool),
        TYPE(MPI_C_FLOAT_COMPLEX, COMPLEX, float_complex, float complex),
        TYPE(MPI_C_DOUBLE_COMPLEX, COMPLEX, double_complex, double complex),
        TYPE(MPI_C_LONG_DOUBLE_COMPLEX, COMPLEX, long_double_complex,
             long double complex),
        TYPE(MPI_BYTE, BYTES, unsigned_char, char),
        TYPE(MPI_2INT, PAIR, two_int, two_int_t),
        TYPE(MPI_SHORT_INT, PAIR, short_int, short_int_t),
        TYPE(MPI_LONG_INT, PAIR, long_int, long_int_t),
        TYPE(MPI_FLOAT_INT, PAIR, float_int, float_int_t),
        TYPE(MPI_DOUBLE_INT, PAIR, double_int, double_int_t),
        TYPE(MPI_LONG_DOUBLE_INT, PAIR, long_double_int, long_double_int_t),
};

/* OPERATION(name, real part, imaginary part or index) */
#define OPERATION(_name, _re, _im) \
    static number_t combine_##_name(number_t a, number_t b) \
    { \
        return (number_t){_re, _im}; \
    }

/* Of pairs with the same value, the lower index */
#define PAIR_INDEX(_before) \
    ((a.re == b.re) ? ((a.im < b.im) ? a.im : b.im) : \
                      ((a.re _before b.re) ? a.im : b.im))

OPERATION(max, a.re > b.re ? a.re : b.re, 0)
OPERATION(min, a.re < b.re ? a.re : b.re, 0)
OPERATION(sum, a.re + b.re, a.im + b.im)
OPERATION(prod, a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)
OPERATION(land, a.re && b.re, 0)
OPERATION(lor, a.re || b.re, 0)
OPERATION(lxor, !a.re != !b.re, 0)
OPERATION(band, a.re & b.re, 0)
OPERATION(bor, a.re | b.re, 0)
OPERATION(bxor, a.re ^ b.re, 0)
OPERATION(maxloc, a.re > b.re ? a.re : b.re, PAIR_INDEX(>))
OPERATION(minloc, a.re < b.re ? a.re : b.re, PAIR_INDEX(<))

#define OP(_mpi, _sets, _name) {#_mpi, _mpi, _sets, combine_##_name}

static const op_t ops[] = {
        OP(MPI_MAX, INTEGER | FLOATING, max),
        OP(MPI_MIN, INTEGER | FLOATING, min),
        OP(MPI_SUM, INTEGER | FLOATING | COMPLEX, sum),
        OP(MPI_PROD, INTEGER | FLOATING | COMPLEX, prod),
        OP(MPI_LAND, INTEGER | LOGICAL, land),
        OP(MPI_LOR, INTEGER | LOGICAL, lor),
        OP(MPI_LXOR, INTEGER | LOGICAL, lxor),
        OP(MPI_BAND, INTEGER | BYTES, band),
        OP(MPI_BOR, INTEGER | BYTES, bor),
        OP(MPI_BXOR, INTEGER | BYTES, bxor),
        OP(MPI_MAXLOC, PAIR, maxloc),
        OP(MPI_MINLOC, PAIR, minloc),
};

#define NUM(_array) ((int)(sizeof(_array) / sizeof((_array)[0])))

static int right_rank(void)
{
    return (mpi_test_rank + 1) % mpi_test_size;
}

static int left_rank(void)
{
    return (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
}

/* The value after a conversion to the type */
static number_t as_type(const type_t *type, number_t n)
{
    union {
        char        bytes[64];
        long double alignment;
    } at;

    memset(&at, 0, sizeof(at));
    type->store(&at, n);
    return type->load(&at);
}

/* Small values, so that each type can hold the product of a few of them. Zeros
 * occur, and equal values of different ranks. */
static number_t value(const reduction_t *x, int rank, int i)
{
    number_t n = {(rank * 5 + i * 7 + (i >> 3)) % 4, 0};

    if (x->type->set & (PAIR | COMPLEX)) {
        n.im = (rank * 3 + i) % 5;
    }
    return as_type(x->type, n);
}

/* Combines the values of ranks from..to-1 one after the other */
static number_t folded(const reduction_t *x, int from, int to, int i)
{
    number_t n = value(x, from, i);
    int rank;

    for (rank = from + 1; rank < to; ++rank) {
        n = as_type(x->type, x->op->combine(n, value(x, rank, i)));
    }
    return n;
}

static void store(const reduction_t *x, char *buffer, int count, int rank)
{
    int i;

    for (i = 0; i < count; ++i) {
        x->type->store(buffer + i * x->type->extent, value(x, rank, i));
    }
}

static void expect(const reduction_t *x, const char *buffer, int i,
                   number_t want, const char *what)
{
    number_t got = x->type->load(buffer + i * x->type->extent);

    CHECK((got.re == want.re) && (got.im == want.im),
          "%s of %s with %s: element %d of %d is (%ld, %ld), not (%ld, %ld)",
          what, x->type->name, x->op->name, i, x->count, got.re, got.im,
          want.re, want.im);
}

static void clear(const reduction_t *x)
{
    memset(x->in, 0x5a, mpi_test_size * x->count * x->type->extent);
}

/* Size of an element without gaps, in bytes */
static size_t type_size(const type_t *type)
{
    int size;

    MPI_Type_size(type->type, &size);
    return size;
}

static void sent(reduction_t *x, int vectors)
{
    x->bytes += (uint64_t)vectors * x->count * type_size(x->type);
}

static void do_allreduce(reduction_t *x)
{
    int i;

    clear(x);
    MPI_Allreduce(x->out, x->in, x->count, x->type->type, x->op->op,
                  MPI_COMM_WORLD);
    for (i = 0; i < x->count; ++i) {
        expect(x, x->in, i, folded(x, 0, mpi_test_size, i), "allreduce");
    }
    sent(x, 1);
}

static void do_scan(reduction_t *x)
{
    MPI_Request req;
    int i;

    clear(x);
    MPI_Iscan(x->out, x->in, x->count, x->type->type, x->op->op,
              MPI_COMM_WORLD, &req);
    MPI_Wait(&req, MPI_STATUS_IGNORE);
    for (i = 0; i < x->count; ++i) {
        expect(x, x->in, i, folded(x, 0, mpi_test_rank + 1, i), "iscan");
    }

    clear(x);
    MPI_Exscan(x->out, x->in, x->count, x->type->type, x->op->op,
               MPI_COMM_WORLD);
    for (i = 0; (mpi_test_rank > 0) && (i < x->count); ++i) {
        expect(x, x->in, i, folded(x, 0, mpi_test_rank, i), "exscan");
    }
    sent(x, mpi_test_rank > 0);
}

static void do_reduce_scatter(reduction_t *x)
{
    int first = mpi_test_rank * x->count;
    int i;

    clear(x);
    MPI_Reduce_scatter_block(x->out, x->in, x->count, x->type->type,
                             x->op->op, MPI_COMM_WORLD);
    for (i = 0; i < x->count; ++i) {
        expect(x, x->in, i, folded(x, 0, mpi_test_size, first + i),
               "reduce_scatter_block");
    }
    sent(x, mpi_test_size - 1);
}

/* All ranks accumulate into one rank's window at the same time */
static void do_accumulate(reduction_t *x)
{
    int root = x->count % mpi_test_size;
    number_t initial;
    int i;

    store(x, x->base, x->count, INITIAL);
    MPI_Win_fence(0, x->win);
    MPI_Accumulate(x->out, x->count, x->type->type, root, 0, x->count,
                   x->type->type, x->op->op, x->win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, x->win);
    for (i = 0; i < x->count; ++i) {
        initial = value(x, INITIAL, i);
        if (mpi_test_rank == root) {
            initial = as_type(x->type,
                              x->op->combine(initial,
                                             folded(x, 0, mpi_test_size, i)));
        }
        expect(x, x->base, i, initial, "accumulate");
    }
    sent(x, mpi_test_rank != root);
}

/* Each rank into the second vector in the window of its right neighbour */
static void do_get_accumulate(reduction_t *x)
{
    char *second = x->base + x->count * x->type->extent;
    number_t initial;
    int i;

    clear(x);
    store(x, second, x->count, INITIAL);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, right_rank(), 0, x->win);
    MPI_Get_accumulate(x->out, x->count, x->type->type, x->in, x->count,
                       x->type->type, right_rank(), second - x->base, x->count,
                       x->type->type, x->op->op, x->win);
    MPI_Win_unlock(right_rank(), x->win);
    MPI_Barrier(MPI_COMM_WORLD);

    MPI_Win_lock(MPI_LOCK_SHARED, mpi_test_rank, 0, x->win);
    for (i = 0; i < x->count; ++i) {
        initial = value(x, INITIAL, i);
        expect(x, x->in, i, initial, "get_accumulate's old value");
        initial = x->op->combine(initial, value(x, left_rank(), i));
        expect(x, second, i, as_type(x->type, initial), "get_accumulate");
    }
    MPI_Win_unlock(mpi_test_rank, x->win);
    MPI_Barrier(MPI_COMM_WORLD);
    sent(x, 1);
}

/* A single element of the right rank's window: a sum that returns the old
 * value, a compare and swap that succeeds, and one that fails. Open MPI 4.1 has
 * these for integers of 4 and 8 bytes only. */
static void do_atomics(reduction_t *x)
{
    const type_t *type = x->type;
    int right          = right_rank();
    number_t initial   = value(x, INITIAL, 1);
    number_t mine      = value(x, mpi_test_rank, 1);
    number_t left      = value(x, left_rank(), 1);
    number_t sum       = x->op->combine(initial, mine);
    number_t other     = {sum.re + 1, 0};
    long old[3], now, swapped;

    type->store(x->base, initial);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, right, 0, x->win);
    type->store(&now, mine);
    MPI_Fetch_and_op(&now, &old[0], type->type, right, 0, x->op->op, x->win);
    MPI_Win_flush(right, x->win);
    type->store(&swapped, mine);
    type->store(&now, other);
    MPI_Compare_and_swap(&swapped, &now, &old[1], type->type, right, 0, x->win);
    MPI_Win_flush(right, x->win);
    type->store(&now, sum);
    MPI_Compare_and_swap(&swapped, &now, &old[2], type->type, right, 0, x->win);
    MPI_Win_unlock(right, x->win);
    expect(x, (char*)&old[0], 0, initial, "fetch_and_op");
    expect(x, (char*)&old[1], 0, sum, "compare_and_swap of another value");
    expect(x, (char*)&old[2], 0, sum, "compare_and_swap");

    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, mpi_test_rank, 0, x->win);
    expect(x, x->base, 0, left, "swapped value");
    MPI_Win_unlock(mpi_test_rank, x->win);
    MPI_Barrier(MPI_COMM_WORLD);
    sent(x, 3);
}

static void all_operations(reduction_t *x, int count)
{
    x->count = count;
    store(x, x->out, mpi_test_size * count, mpi_test_rank);
    do_allreduce(x);
    do_scan(x);
    do_reduce_scatter(x);
    /* Over any transport, Open MPI 4.1 combines pairs that have gaps in a
     * buffer without gaps, and writes behind it */
    if (x->type->extent == type_size(x->type)) {
        do_accumulate(x);
        do_get_accumulate(x);
    }
    if ((count == 1) && (x->type->set == INTEGER) && (x->op->op == MPI_SUM) &&
        (x->type->extent >= 4)) {
        do_atomics(x);
    }
}

int main(int argc, char **argv)
{
    int rounds    = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 1);
    reduction_t x = {.bytes = 0};
    size_t length = mpi_test_size * LENGTH;
    int round, t, o;

    x.out = malloc(length);
    x.in  = malloc(length);
    MPI_Win_allocate(2 * LENGTH, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &x.base,
                     &x.win);
    /* Gaps between the members of pairs are sent as well */
    memset(x.out, 0, length);
    memset(x.base, 0, 2 * LENGTH);

    for (round = 0; round < rounds; ++round) {
        for (t = 0; t < NUM(types); ++t) {
            for (o = 0; o < NUM(ops); ++o) {
                if (ops[o].sets & types[t].set) {
                    x.type = &types[t];
                    x.op   = &ops[o];
                    all_operations(&x, 1);
                    all_operations(&x, LENGTH / types[t].extent);
                }
            }
        }
    }

    MPI_Win_free(&x.win);
    free(x.in);
    free(x.out);
    return mpi_test_done(x.bytes);
}
