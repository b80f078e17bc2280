/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_REG_H_
#define NPRDMA_REG_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
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


/**
 * Create a table.
 *
 * @param [in]  extra    Bytes of user's data in each registration, see
 *                       @ref nprdma_reg_extra.
 * @param [in]  sums     Where the table keeps its sums, zeros; must live as
 *                       long as the table. Others may read it at any time.
 * @param [out] table_p  Table, to be given to @ref nprdma_reg_table_destroy.
 *
 * @return UCS_OK or UCS_ERR_NO_MEMORY.
 */
ucs_status_t
nprdma_reg_table_create(size_t extra, nprdma_reg_sums_t *sums,
                        nprdma_reg_table_t **table_p);


/**
 * Destroy a table with the registrations left in it.
 *
 * @param [in] table  Table that no thread uses.
 */
void nprdma_reg_table_destroy(nprdma_reg_table_t *table);


/** @return Number of live registrations. */
unsigned nprdma_reg_table_count(const nprdma_reg_table_t *table);


/**
 * @param [in]  table  Table.
 * @param [out] sums   Its sums.
 */
void nprdma_reg_table_query(nprdma_reg_table_t *table, nprdma_reg_sums_t *sums);


/**
 * @param [in] table  Table that no other thread changes meanwhile.
 *
 * @return A live registration, or NULL if there is none.
 */
nprdma_reg_t *nprdma_reg_table_first(nprdma_reg_table_t *table);


/**
 * Prepare a registration. Does not access the memory. Its key is not valid
 * before @ref nprdma_reg_publish. So the caller can set the user's data before
 * a peer that guesses keys can find the registration.
 *
 * @param [in]  table    Table.
 * @param [in]  address  First byte.
 * @param [in]  length   Bytes; zero gives a key that allows nothing.
 * @param [in]  access   NPRDMA_REG_ACCESS_xx.
 * @param [out] reg_p    The registration, owned by the table, to be given to
 *                       @ref nprdma_reg_free.
 *
 * @return UCS_OK; UCS_ERR_INVALID_PARAM if the range wraps around;
 *         UCS_ERR_NO_MEMORY; UCS_ERR_EXCEEDS_LIMIT if the table is full.
 */
ucs_status_t
nprdma_reg_alloc(nprdma_reg_table_t *table, uintptr_t address, size_t length,
                 uint32_t access, nprdma_reg_t **reg_p);


/** Make the key of a prepared registration valid. */
void nprdma_reg_publish(nprdma_reg_t *reg);


/**
 * End a live registration. Waits until all users have released it
 * (@ref nprdma_reg_put); its key is not valid any more. Neither allocates nor
 * logs, so it may be called from memory hooks.
 */
void nprdma_reg_retire(nprdma_reg_t *reg);


/**
 * Return a registration that is not live to its table. The user's data stays in
 * it. Neither allocates nor logs.
 */
void nprdma_reg_free(nprdma_reg_table_t *table, nprdma_reg_t *reg);


/**
 * @ref nprdma_reg_alloc and @ref nprdma_reg_publish at once.
 */
ucs_status_t
nprdma_reg_add(nprdma_reg_table_t *table, uintptr_t address, size_t length,
               uint32_t access, nprdma_reg_t **reg_p);


/**
 * @ref nprdma_reg_retire and @ref nprdma_reg_free at once.
 */
void nprdma_reg_remove(nprdma_reg_table_t *table, nprdma_reg_t *reg);


/**
 * @return User's data of a registration, aligned to 16 bytes. It is zeroed at
 *         first, and keeps its contents when the index is used again. The
 *         memory is valid until the table is destroyed.
 */
void *nprdma_reg_extra(nprdma_reg_t *reg);


/** @return First byte of a registration. */
uintptr_t nprdma_reg_address(const nprdma_reg_t *reg);

/** @return Bytes of a registration that is not free. */
size_t nprdma_reg_length(const nprdma_reg_t *reg);

/** @return Accesses that peers are allowed, NPRDMA_REG_ACCESS_xx. */
uint32_t nprdma_reg_access(const nprdma_reg_t *reg);


/** @return The key of a live registration, never 0 and never all ones. */
uint64_t nprdma_reg_key(const nprdma_reg_t *reg);


/** @return Nonzero if a value has the format of a key. */
int nprdma_reg_key_is_valid(uint64_t key);


/**
 * Find a registration by its key, and prevent its removal.
 *
 * @param [in]  table    Table.
 * @param [in]  key      Key as received from a peer; any value is safe.
 * @param [in]  address  First byte of the access.
 * @param [in]  length   Bytes.
 * @param [in]  access   Kind of the access, NPRDMA_REG_ACCESS_xx.
 * @param [out] reg_p    The registration, to be passed to nprdma_reg_put().
 *
 * @return UCS_OK; UCS_ERR_NO_ELEM for a key that is not valid;
 *         UCS_ERR_OUT_OF_RANGE for bytes outside of the registration;
 *         UCS_ERR_REJECTED for an access that it does not allow.
 */
ucs_status_t
nprdma_reg_get(nprdma_reg_table_t *table, uint64_t key, uintptr_t address,
               size_t length, uint32_t access, nprdma_reg_t **reg_p);


/** Release a registration obtained by @ref nprdma_reg_get. */
void nprdma_reg_put(nprdma_reg_t *reg);

END_C_DECLS

#endif
