/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef MPI_LAYOUT_H_
#define MPI_LAYOUT_H_

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t offset; /* From the address of the element, in bytes */
    size_t length; /* In bytes */
} mpi_span_t;


/*
 * A datatype, and where its bytes are, by arithmetic of our own: a test that
 * asked MPI for them would not see what MPI gets wrong.
 */
typedef struct {
    const char  *name;
    MPI_Datatype type;      /* Committed */
    MPI_Datatype basic;     /* The only basic type in it, if it has one */
    size_t       extent;    /* From one element to the next, in bytes */
    size_t       size;      /* Data of an element, in bytes */
    size_t       end;       /* Behind the last data byte of an element */
    int          max_count; /* More elements than these would overlap */
    int          predefined;
    int          num;       /* Of spans */
    mpi_span_t  *spans;     /* In the order of the type map */
} mpi_layout_t;


/**
 * Make all of MPI's predefined types of C, its pair types, and at least one
 * type of each constructor. Fails the test where MPI's size or extent differs.
 *
 * @param [out] layouts  Owned by the caller, for mpi_layouts_destroy().
 *
 * @return Number of layouts.
 */
int mpi_layouts_create(mpi_layout_t **layouts);


/**
 * Free the types and the layouts.
 */
void mpi_layouts_destroy(mpi_layout_t *layouts, int num);


/**
 * @return Bytes from the address of the first of count elements to the end of
 *         the last one. At least 1 element.
 */
size_t mpi_layout_span(const mpi_layout_t *layout, int count);


/**
 * Write the data of count elements, which follows from a key, and no byte
 * between.
 */
void mpi_layout_store(void *buffer, const mpi_layout_t *layout, int count,
                      uint64_t key);

#endif
