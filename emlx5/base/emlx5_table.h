/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* A table of objects by number. The guest names objects by numbers, which may
 * be any. */

#ifndef EMLX5_TABLE_H
#define EMLX5_TABLE_H

#include <stdint.h>

typedef struct {
    void     **object;
    uint32_t first; /* lowest number given */
    uint32_t end;   /* above the highest */
    uint32_t next;  /* where the search for a free number begins */
    uint32_t count; /* objects in it */
} emlx5_table_t;

/** Makes a table of the numbers from first on that are below end. @return 0, or
 * -1 if there is no memory. */
int emlx5_table_init(emlx5_table_t *table, uint32_t first, uint32_t end);

/** Frees the table; its objects are the caller's. */
void emlx5_table_cleanup(emlx5_table_t *table);

/** Gives a number to an object, which is not NULL. Numbers are not used again
 * at once, so that a late user of an old number finds nothing. @return 0, or -1
 * if all numbers are in use. */
int emlx5_table_add(emlx5_table_t *table, void *object, uint32_t *number);

/** @return The object with this number, NULL if there is none; any number. */
void *emlx5_table_get(const emlx5_table_t *table, uint64_t number);

/** Takes a number back. @return Its object, NULL if there is none. */
void *emlx5_table_remove(emlx5_table_t *table, uint64_t number);

/** @return An object that is left, with its number, or NULL. From *number on;
 * begin with 0. */
void *emlx5_table_next(const emlx5_table_t *table, uint32_t *number);

#endif
