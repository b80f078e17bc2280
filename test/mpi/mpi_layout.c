/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "mpi_layout.h"
#include "mpi_test.h"

#include <complex.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

/* Elements of most types do not overlap, so their number is not limited */
#define UNLIMITED (1 << 30)

#define MAX_LAYOUTS 80

typedef struct {
    mpi_layout_t *layouts;
    int           num;
} layouts_t;

/* Two members in the layout of C */
typedef struct {
    const char  *name;
    MPI_Datatype type;
    size_t       first;  /* Length of the first member, in bytes */
    size_t       second; /* Offset of the second one, an int */
    size_t       extent;
} pair_t;

typedef struct {
    char    tag[3];
    int32_t range[2];
    double  value;
    short   last;
} record_t;

#define BASIC(_type, _c) {#_type, _type, sizeof(_c)}

static const struct {
    const char  *name;
    MPI_Datatype type;
    size_t       size;
} basics[] = {
        BASIC(MPI_CHAR, char),
        BASIC(MPI_SIGNED_CHAR, signed char),
        BASIC(MPI_UNSIGNED_CHAR, unsigned char),
        BASIC(MPI_BYTE, char),
        BASIC(MPI_WCHAR, wchar_t),
        BASIC(MPI_C_BOOL, bool),
        BASIC(MPI_SHORT, short),
        BASIC(MPI_UNSIGNED_SHORT, unsigned short),
        BASIC(MPI_INT, int),
        BASIC(MPI_UNSIGNED, unsigned),
        BASIC(MPI_LONG, long),
        BASIC(MPI_UNSIGNED_LONG, unsigned long),
        BASIC(MPI_LONG_LONG, long long),
        BASIC(MPI_UNSIGNED_LONG_LONG, unsigned long long),
        BASIC(MPI_INT8_T, int8_t),
        BASIC(MPI_INT16_T, int16_t),
        BASIC(MPI_INT32_T, int32_t),
        BASIC(MPI_INT64_T, int64_t),
        BASIC(MPI_UINT8_T, uint8_t),
        BASIC(MPI_UINT16_T, uint16_t),
        BASIC(MPI_UINT32_T, uint32_t),
        BASIC(MPI_UINT64_T, uint64_t),
        BASIC(MPI_AINT, MPI_Aint),
        BASIC(MPI_OFFSET, MPI_Offset),
        BASIC(MPI_COUNT, MPI_Count),
        BASIC(MPI_FLOAT, float),
        BASIC(MPI_DOUBLE, double),
        BASIC(MPI_LONG_DOUBLE, long double),
        BASIC(MPI_C_FLOAT_COMPLEX, float complex),
        BASIC(MPI_C_DOUBLE_COMPLEX, double complex),
        BASIC(MPI_C_LONG_DOUBLE_COMPLEX, long double complex),
};

#define PAIR(_type, _c) \
    { \
        #_type, _type, sizeof(_c), \
                offsetof(struct { _c a; int b; }, b), \
                sizeof(struct { _c a; int b; }) \
    }

static const pair_t pairs[] = {
        PAIR(MPI_2INT, int),
        PAIR(MPI_SHORT_INT, short),
        PAIR(MPI_LONG_INT, long),
        PAIR(MPI_FLOAT_INT, float),
        PAIR(MPI_DOUBLE_INT, double),
        PAIR(MPI_LONG_DOUBLE_INT, long double),
};

#define NUM(_array) ((int)(sizeof(_array) / sizeof((_array)[0])))

static mpi_layout_t *layout_new(layouts_t *all, const char *name,
                                MPI_Datatype basic)
{
    mpi_layout_t *layout = &all->layouts[all->num++];

    CHECK(all->num <= MAX_LAYOUTS, "more than %d layouts", MAX_LAYOUTS);
    layout->name      = name;
    layout->basic     = basic;
    layout->max_count = UNLIMITED;
    return layout;
}

static void add_span(mpi_layout_t *layout, size_t offset, size_t length)
{
    layout->spans = realloc(layout->spans,
                            (layout->num + 1) * sizeof(*layout->spans));
    layout->spans[layout->num].offset = offset;
    layout->spans[layout->num].length = length;
    ++layout->num;
    layout->size += length;
    if (offset + length > layout->end) {
        layout->end = offset + length;
    }
}

static void add_spans(mpi_layout_t *layout, int num, size_t first,
                      size_t stride, size_t length)
{
    int i;

    for (i = 0; i < num; ++i) {
        add_span(layout, first + i * stride, length);
    }
}

/* Copies the spans of another layout, from an offset on */
static void add_layout(mpi_layout_t *layout, const mpi_layout_t *other,
                       size_t offset)
{
    int i;

    for (i = 0; i < other->num; ++i) {
        add_span(layout, offset + other->spans[i].offset,
                 other->spans[i].length);
    }
}

/* Finishes a layout with known spans, and compares MPI's size and extent with
 * it */
static void layout_finish(mpi_layout_t *layout, MPI_Datatype type,
                          size_t extent)
{
    MPI_Aint lower, mpi_extent;
    int mpi_size;

    layout->type   = type;
    layout->extent = extent;
    MPI_Type_size(type, &mpi_size);
    MPI_Type_get_extent(type, &lower, &mpi_extent);
    CHECK((size_t)mpi_size == layout->size, "%s: MPI says %d bytes, not %zu",
          layout->name, mpi_size, layout->size);
    CHECK((size_t)mpi_extent == extent, "%s: MPI says extent %ld, not %zu",
          layout->name, (long)mpi_extent, extent);
    if (!layout->predefined) {
        MPI_Type_commit(&layout->type);
    }
}

static void add_predefined(layouts_t *all)
{
    mpi_layout_t *layout;
    int i;

    for (i = 0; i < NUM(basics); ++i) {
        layout             = layout_new(all, basics[i].name, basics[i].type);
        layout->predefined = 1;
        add_span(layout, 0, basics[i].size);
        layout_finish(layout, basics[i].type, basics[i].size);
    }
    for (i = 0; i < NUM(pairs); ++i) {
        layout             = layout_new(all, pairs[i].name, pairs[i].type);
        layout->predefined = 1;
        add_span(layout, 0, pairs[i].first);
        add_span(layout, pairs[i].second, sizeof(int));
        layout_finish(layout, pairs[i].type, pairs[i].extent);
    }
}

static void add_vectors(layouts_t *all)
{
    mpi_layout_t *layout;
    MPI_Datatype type, dup;

    layout = layout_new(all, "contiguous", MPI_INT);
    add_span(layout, 0, 5 * sizeof(int));
    MPI_Type_contiguous(5, MPI_INT, &type);
    layout_finish(layout, type, 5 * sizeof(int));

    layout = layout_new(all, "vector", MPI_SHORT);
    add_spans(layout, 4, 0, 5 * sizeof(short), 3 * sizeof(short));
    MPI_Type_vector(4, 3, 5, MPI_SHORT, &type);
    layout_finish(layout, type, 18 * sizeof(short));

    layout = layout_new(all, "duplicate", MPI_SHORT);
    add_layout(layout, layout - 1, 0);
    MPI_Type_dup(type, &dup);
    layout_finish(layout, dup, 18 * sizeof(short));

    layout = layout_new(all, "hvector", MPI_DOUBLE);
    add_spans(layout, 3, 0, 40, 2 * sizeof(double));
    MPI_Type_create_hvector(3, 2, 40, MPI_DOUBLE, &type);
    layout_finish(layout, type, 2 * 40 + 2 * sizeof(double));
}

static void add_indexed(layouts_t *all)
{
    static const int lengths[3]       = {2, 1, 3};
    static const int displs[3]        = {0, 5, 8};
    static const int byte_lengths[3]  = {3, 5, 7};
    static const MPI_Aint bytes[3]    = {1, 11, 20};
    static const int backwards[3]     = {6, 0, 3};
    static const MPI_Aint byte_blocks[3] = {0, 24, 40};
    mpi_layout_t *layout;
    MPI_Datatype type;
    int i;

    layout = layout_new(all, "indexed", MPI_FLOAT);
    for (i = 0; i < 3; ++i) {
        add_span(layout, displs[i] * sizeof(float), lengths[i] * sizeof(float));
    }
    MPI_Type_indexed(3, lengths, displs, MPI_FLOAT, &type);
    layout_finish(layout, type, 11 * sizeof(float));

    /* Its lower bound is 1 */
    layout = layout_new(all, "hindexed", MPI_CHAR);
    for (i = 0; i < 3; ++i) {
        add_span(layout, bytes[i], byte_lengths[i]);
    }
    MPI_Type_create_hindexed(3, byte_lengths, bytes, MPI_CHAR, &type);
    layout_finish(layout, type, 27 - 1);

    /* The order of the data differs from the order of the addresses */
    layout = layout_new(all, "indexed_block", MPI_LONG);
    for (i = 0; i < 3; ++i) {
        add_span(layout, backwards[i] * sizeof(long), 2 * sizeof(long));
    }
    MPI_Type_create_indexed_block(3, 2, backwards, MPI_LONG, &type);
    layout_finish(layout, type, 8 * sizeof(long));

    layout = layout_new(all, "hindexed_block", MPI_INT);
    for (i = 0; i < 3; ++i) {
        add_span(layout, byte_blocks[i], 2 * sizeof(int));
    }
    MPI_Type_create_hindexed_block(3, 2, byte_blocks, MPI_INT, &type);
    layout_finish(layout, type, 48);
}

static void add_structs(layouts_t *all)
{
    static const int lengths[4]          = {3, 2, 1, 1};
    static const MPI_Aint displs[4]      = {offsetof(record_t, tag),
                                            offsetof(record_t, range),
                                            offsetof(record_t, value),
                                            offsetof(record_t, last)};
    static const int ones[2]             = {1, 1};
    static const MPI_Aint pair_displs[2] = {0, 16};
    const MPI_Datatype types[4]          = {MPI_CHAR, MPI_INT32_T, MPI_DOUBLE,
                                            MPI_SHORT};
    const MPI_Datatype pair_types[2]     = {MPI_DOUBLE_INT, MPI_CHAR};
    const mpi_layout_t *record;
    mpi_layout_t *layout;
    MPI_Datatype type, nested;

    layout = layout_new(all, "struct", MPI_DATATYPE_NULL);
    record = layout;
    add_span(layout, displs[0], 3);
    add_span(layout, displs[1], 2 * sizeof(int32_t));
    add_span(layout, displs[2], sizeof(double));
    add_span(layout, displs[3], sizeof(short));
    MPI_Type_create_struct(4, lengths, displs, types, &nested);
    MPI_Type_create_resized(nested, 0, sizeof(record_t), &type);
    MPI_Type_free(&nested);
    layout_finish(layout, type, sizeof(record_t));

    layout = layout_new(all, "vector of structs", MPI_DATATYPE_NULL);
    add_layout(layout, record, 0);
    add_layout(layout, record, 2 * sizeof(record_t));
    MPI_Type_vector(2, 1, 2, record->type, &type);
    layout_finish(layout, type, 3 * sizeof(record_t));

    layout = layout_new(all, "struct of a pair", MPI_DATATYPE_NULL);
    add_span(layout, 0, sizeof(double) + sizeof(int));
    add_span(layout, 16, 1);
    MPI_Type_create_struct(2, ones, pair_displs, pair_types, &nested);
    MPI_Type_create_resized(nested, 0, 24, &type);
    MPI_Type_free(&nested);
    layout_finish(layout, type, 24);
}

static void add_arrays(layouts_t *all)
{
    static const int sizes[2] = {6, 8}, parts[2] = {3, 4}, starts[2] = {2, 1};
    static const int sizes3[3] = {4, 3, 5}, parts3[3] = {2, 2, 3};
    static const int starts3[3] = {1, 1, 2};
    static const int global = 20, cyclic = MPI_DISTRIBUTE_CYCLIC, block = 2;
    static const int processes = 3;
    mpi_layout_t *layout;
    MPI_Datatype type;
    int j, k;

    layout = layout_new(all, "subarray", MPI_INT);
    add_spans(layout, 3, (2 * 8 + 1) * sizeof(int), 8 * sizeof(int),
              4 * sizeof(int));
    MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_INT,
                             &type);
    layout_finish(layout, type, 6 * 8 * sizeof(int));

    /* The first index varies fastest */
    layout = layout_new(all, "subarray of Fortran", MPI_SHORT);
    for (k = 2; k < 5; ++k) {
        for (j = 1; j < 3; ++j) {
            add_span(layout, ((k * 3 + j) * 4 + 1) * sizeof(short),
                     2 * sizeof(short));
        }
    }
    MPI_Type_create_subarray(3, sizes3, parts3, starts3, MPI_ORDER_FORTRAN,
                             MPI_SHORT, &type);
    layout_finish(layout, type, 4 * 3 * 5 * sizeof(short));

    /* Blocks 1, 4 and 7 of two elements belong to the second of 3 processes */
    layout = layout_new(all, "darray", MPI_INT);
    add_spans(layout, 3, 2 * sizeof(int), 6 * sizeof(int), 2 * sizeof(int));
    MPI_Type_create_darray(processes, 1, 1, &global, &cyclic, &block,
                           &processes, MPI_ORDER_C, MPI_INT, &type);
    layout_finish(layout, type, global * sizeof(int));
}

static void add_resized(layouts_t *all)
{
    enum { ROWS = 256, COLUMNS = 8 };
    mpi_layout_t *layout;
    MPI_Datatype type, nested;

    layout = layout_new(all, "resized, larger", MPI_INT);
    add_span(layout, 0, sizeof(int));
    MPI_Type_create_resized(MPI_INT, 0, 3 * sizeof(int), &type);
    layout_finish(layout, type, 3 * sizeof(int));

    /* Columns of a matrix: the next element begins within this one */
    layout            = layout_new(all, "resized, interleaved", MPI_INT);
    layout->max_count = COLUMNS;
    add_spans(layout, ROWS, 0, COLUMNS * sizeof(int), sizeof(int));
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_INT, &nested);
    MPI_Type_create_resized(nested, 0, sizeof(int), &type);
    MPI_Type_free(&nested);
    layout_finish(layout, type, sizeof(int));
}

int mpi_layouts_create(mpi_layout_t **layouts)
{
    layouts_t all = {.layouts = calloc(MAX_LAYOUTS, sizeof(mpi_layout_t))};

    add_predefined(&all);
    add_vectors(&all);
    add_indexed(&all);
    add_structs(&all);
    add_arrays(&all);
    add_resized(&all);
    *layouts = all.layouts;
    return all.num;
}

void mpi_layouts_destroy(mpi_layout_t *layouts, int num)
{
    int i;

    for (i = 0; i < num; ++i) {
        if (!layouts[i].predefined) {
            MPI_Type_free(&layouts[i].type);
        }
        free(layouts[i].spans);
    }
    free(layouts);
}

size_t mpi_layout_span(const mpi_layout_t *layout, int count)
{
    return (count - 1) * layout->extent + layout->end;
}

void mpi_layout_store(void *buffer, const mpi_layout_t *layout, int count,
                      uint64_t key)
{
    char *data = malloc(count * layout->size), *next = data;
    int i, s;

    mpi_test_fill(data, count * layout->size, key);
    for (i = 0; i < count; ++i) {
        for (s = 0; s < layout->num; ++s) {
            memcpy((char*)buffer + i * layout->extent +
                           layout->spans[s].offset,
                   next, layout->spans[s].length);
            next += layout->spans[s].length;
        }
    }
    free(data);
}
