/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef MEMD_STORE_H_
#define MEMD_STORE_H_

/* The memory that nprdma-memd lends: a pool, anonymous or a file, and the
 * extents in it. All free memory of the pool reads as zeros. */

#include "rmem_wire.h"

#include <stdbool.h>
#include <ucs/datastruct/list.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    ucs_list_link_t list;
    uint64_t        offset;
    uint64_t        bytes;
} memd_extent_t;

/* LINES, whose records were checked */
typedef struct {
    rmem_lines_t  lines;
    rmem_record_t records[RMEM_MAX_RECORDS];
    const uint8_t *data;  /* What follows the records */
    size_t        length; /* Of the data */
} memd_message_t;

typedef struct {
    uint8_t         *base;   /* Where the server stores */
    uint8_t         *lent;   /* The same memory, read-only, for clients */
    uint64_t        size;
    int             fd;      /* -1: anonymous memory */
    uint64_t        held;    /* Bytes of all extents */
    ucs_list_link_t extents; /* By their offsets */
} memd_store_t;

/* file: NULL for anonymous memory. Prints why it fails, and returns nonzero. */
int memd_store_open(memd_store_t *store, const char *file, uint64_t size);
void memd_store_close(memd_store_t *store);

/* The first gap that is large enough, in whole pages. RMEM_OK, RMEM_ERR_FULL */
int memd_store_alloc(memd_store_t *store, uint64_t bytes,
                     memd_extent_t *extent);

/* What is freed has been cleared. */
void memd_store_free(memd_store_t *store, memd_extent_t *extent);

/* Lets a range read as zeros, and gives its memory back to the system. */
int memd_store_clear(memd_store_t *store, uint64_t offset, uint64_t bytes);

/* Whether the pages of a message are in memory. Those that are not are read
 * from the disk from now on, side by side. */
bool memd_store_is_here(memd_store_t *store, uint64_t offset,
                        const memd_message_t *message);

/* Stores a message of an extent at this offset. RMEM_OK, or RMEM_ERR_RANGE if
 * the file was cut, or cannot be read or written; then a part may be stored. */
int memd_store_lines(memd_store_t *store, uint64_t offset,
                     const memd_message_t *message);

#ifdef __cplusplus
}
#endif

#endif
