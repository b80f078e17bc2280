/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_PROVIDER_H
#define NPRDMA_TEST_PROVIDER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A provider of verbs that allocates and registers memory, and a pool of bounce
 * slots on it. */

typedef enum provider_alloc {
    PROVIDER_HAS_NONE, /* as libibverbs: no alloc_buf */
    PROVIDER_REFUSES,  /* alloc_buf fails */
    PROVIDER_GIVES
} provider_alloc_t;

/* Calls so far, and what exists now */
typedef struct provider_counts {
    int refused;
    int bufs;
    int mrs;
    int mrs_of_bufs; /* of memory that alloc_buf returned */
} provider_counts_t;

extern provider_counts_t provider_counts;

/* Registrations that succeed from now on */
extern int provider_mrs_left;

typedef struct pool pool_t;

/* @return NULL if the pool refuses */
pool_t *pool_open(provider_alloc_t alloc, size_t slot_size, unsigned slots,
                  unsigned min_slots);
void pool_close(pool_t *pool);

/* Adds slots. @return How many */
unsigned pool_grow(pool_t *pool);

/* Takes all slots, writes to them, reads them and returns them.
 * @return How many were good */
unsigned pool_use(pool_t *pool);

/* Budget of the process, and bytes in use */
void pool_set_budget(size_t bytes);
size_t pool_pinned(void);

#ifdef __cplusplus
}
#endif

#endif
