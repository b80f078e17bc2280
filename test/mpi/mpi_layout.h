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
 * A datatype and the positions of its bytes, computed by the test. If the test
 * asked MPI for them, it would not find MPI's errors.
 */
typedef struct {
    const char  *name;
    MPI_Datatype type;      /* Committed */
    MPI_Datatype basic;     /* Its only basic type, if it has one */
    size_t       extent;    /* From one element to the next, in bytes */
    size_t       size;      /* Size of an element without gaps, in bytes */
    size_t       end;       /* End of the last data byte of an element */
    int          max_count; /* More elements than this would overlap */
    int          predefined;
    int          num;       /* Number of spans */
    mpi_span_t  *spans;     /* In the order of the type map */
} mpi_layout_t;


/**
 * Create all of MPI's predefined types of C, its pair types, and at least one
 * type of each constructor. Fails the test if MPI's size or extent differs.
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
 *         the last one. count is at least 1.
 */
size_t mpi_layout_span(const mpi_layout_t *layout, int count);


/**
 * Write the data of count elements, which follows from a key. The bytes between
 * stay unchanged.
 */
void mpi_layout_store(void *buffer, const mpi_layout_t *layout, int count,
                      uint64_t key);

#endif
