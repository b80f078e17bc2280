/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_FUZZ_H_
#define NPRDMA_FUZZ_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A finding: libFuzzer keeps the input of the process that aborts. */
#define FUZZ_CHECK(_cond) \
    do { \
        if (!(_cond)) { \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, \
                    #_cond); \
            abort(); \
        } \
    } while (0)

/* The entry point that libFuzzer calls */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads the input piece by piece; zeros behind its end. */
typedef struct {
    const uint8_t *data;
    size_t        left;
} fuzz_reader_t;

static inline void fuzz_read(fuzz_reader_t *reader, void *dest, size_t size)
{
    size_t length = (size < reader->left) ? size : reader->left;

    memset(dest, 0, size);
    if (length > 0) {
        memcpy(dest, reader->data, length);
    }
    reader->data += length;
    reader->left -= length;
}

static inline uint8_t fuzz_read_u8(fuzz_reader_t *reader)
{
    uint8_t value;

    fuzz_read(reader, &value, sizeof(value));
    return value;
}

/**
 * @return A copy of exactly @a size bytes, so that the address sanitizer
 *         detects a parser that reads beyond its end. The caller frees it.
 */
static inline void *fuzz_copy(const uint8_t *data, size_t size)
{
    void *copy = malloc((size > 0) ? size : 1);

    FUZZ_CHECK(copy != NULL);
    if (size > 0) {
        memcpy(copy, data, size);
    }
    return copy;
}

#endif
