/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_REG_H_
#define NPRDMA_REG_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/*
 * Table of registrations: the ranges of this process that peers may access.
 *
 * The key of a registration is its index in the table and a generation. It
 * finds the registration in constant time, without a lock. After the
 * registration was removed its key is never valid again, even if the index is
 * used again.
 */


typedef struct nprdma_reg_table nprdma_reg_table_t;


/* What a peer may do */
enum {
    NPRDMA_REG_ACCESS_PUT    = 1 << 0,
    NPRDMA_REG_ACCESS_GET    = 1 << 1,
    NPRDMA_REG_ACCESS_ATOMIC = 1 << 2,
    NPRDMA_REG_ACCESS_ALL    = NPRDMA_REG_ACCESS_PUT | NPRDMA_REG_ACCESS_GET |
                               NPRDMA_REG_ACCESS_ATOMIC
};


/* A registration */
typedef struct nprdma_reg nprdma_reg_t;


/* Sums over the lengths of live registrations, in bytes. Bytes that several of
 * them cover count several times. */
typedef struct nprdma_reg_sums {
    uint64_t bytes; /* At present */
    uint64_t peak;  /* Largest sum so far */
} nprdma_reg_sums_t;


/* Create a table. Each registration has `extra` bytes of user's data. The table
 * keeps its sums, at first zeros, where others may read them at any time. */
ucs_status_t
nprdma_reg_table_create(size_t extra, nprdma_reg_sums_t *sums,
                        nprdma_reg_table_t **table_p);


/* Destroy a table, which no thread uses, with the registrations left in it */
void nprdma_reg_table_destroy(nprdma_reg_table_t *table);


/* Live registrations */
unsigned nprdma_reg_table_count(const nprdma_reg_table_t *table);


void nprdma_reg_table_query(nprdma_reg_table_t *table, nprdma_reg_sums_t *sums);


/* A live registration, or NULL. No other thread changes the table meanwhile. */
nprdma_reg_t *nprdma_reg_table_first(nprdma_reg_table_t *table);


/* Prepare a registration with access NPRDMA_REG_ACCESS_xx, without access to
 * the memory. Its key is not valid before nprdma_reg_publish(), so that the
 * caller can set the user's data before a peer that guesses keys can find the
 * registration. Zero bytes give a key that allows nothing.
 * UCS_ERR_INVALID_PARAM: the range wraps around; UCS_ERR_EXCEEDS_LIMIT: the
 * table is full. */
ucs_status_t
nprdma_reg_alloc(nprdma_reg_table_t *table, uintptr_t address, size_t length,
                 uint32_t access, nprdma_reg_t **reg_p);


void nprdma_reg_publish(nprdma_reg_t *reg);


/* End a live registration. Waits until all users have released it
 * (nprdma_reg_put()); its key is not valid any more. Neither allocates nor
 * logs, so it may be called from memory hooks. */
void nprdma_reg_retire(nprdma_reg_t *reg);


/* Return a registration that is not live to its table. The user's data stays in
 * it. Neither allocates nor logs. */
void nprdma_reg_free(nprdma_reg_table_t *table, nprdma_reg_t *reg);


/* User's data of a registration, aligned to 16 bytes. It is zeroed at first,
 * and keeps its contents when the index is used again. The memory is valid
 * until the table is destroyed. */
void *nprdma_reg_extra(nprdma_reg_t *reg);


uintptr_t nprdma_reg_address(const nprdma_reg_t *reg);

size_t nprdma_reg_length(const nprdma_reg_t *reg);

uint32_t nprdma_reg_access(const nprdma_reg_t *reg);


/* Of a live registration, never 0 and never all ones */
uint64_t nprdma_reg_key(const nprdma_reg_t *reg);


/* A value has the format of a key */
int nprdma_reg_key_is_valid(uint64_t key);


/* Find a registration by its key, of any value, and prevent its removal until
 * nprdma_reg_put(). UCS_ERR_NO_ELEM: a key that is not valid;
 * UCS_ERR_OUT_OF_RANGE: bytes outside of the registration; UCS_ERR_REJECTED: an
 * access that it does not allow. */
ucs_status_t
nprdma_reg_get(nprdma_reg_table_t *table, uint64_t key, uintptr_t address,
               size_t length, uint32_t access, nprdma_reg_t **reg_p);


void nprdma_reg_put(nprdma_reg_t *reg);

END_C_DECLS

#endif
