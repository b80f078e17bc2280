/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "base/emlx5_table.h"

#include <stdlib.h>

int emlx5_table_init(emlx5_table_t *table, uint32_t first, uint32_t end)
{
    table->object = calloc(end, sizeof(*table->object));
    table->first  = first;
    table->end    = end;
    table->next   = first;
    table->count  = 0;
    return (table->object == NULL) ? -1 : 0;
}

void emlx5_table_cleanup(emlx5_table_t *table)
{
    free(table->object);
    table->object = NULL;
    table->end    = 0;
}

int emlx5_table_add(emlx5_table_t *table, void *object, uint32_t *number)
{
    uint32_t i, at = table->next;

    for (i = table->first; i < table->end; ++i) {
        if (at >= table->end) {
            at = table->first;
        }
        if (table->object[at] == NULL) {
            table->object[at] = object;
            table->next       = at + 1;
            *number           = at;
            ++table->count;
            return 0;
        }
        ++at;
    }
    return -1;
}

void *emlx5_table_get(const emlx5_table_t *table, uint64_t number)
{
    return (number < table->end) ? table->object[number] : NULL;
}

void *emlx5_table_remove(emlx5_table_t *table, uint64_t number)
{
    void *object = emlx5_table_get(table, number);

    if (object != NULL) {
        table->object[number] = NULL;
        --table->count;
    }
    return object;
}

void *emlx5_table_next(const emlx5_table_t *table, uint32_t *number)
{
    /* Most tables are empty when all of them are searched */
    if (table->count == 0) {
        return NULL;
    }
    for (; *number < table->end; ++*number) {
        if (table->object[*number] != NULL) {
            return table->object[*number];
        }
    }
    return NULL;
}
