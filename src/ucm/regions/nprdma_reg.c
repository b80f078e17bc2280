/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_reg.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>


/* Records are allocated in blocks that never move: lookups take no lock */
#define NPRDMA_REG_BLOCK_SHIFT 9
#define NPRDMA_REG_BLOCK_SIZE  (1u << NPRDMA_REG_BLOCK_SHIFT)
#define NPRDMA_REG_MAX_BLOCKS  8192
#define NPRDMA_REG_NONE        UINT32_MAX

/* state: number of users in the low half, generation in the high half */
#define NPRDMA_REG_USERS(_state)      ((uint32_t)(_state))
#define NPRDMA_REG_GENERATION(_state) ((uint32_t)((_state) >> 32))
#define NPRDMA_REG_STATE(_generation) ((uint64_t)(_generation) << 32)
#define NPRDMA_REG_IS_LIVE(_state)    (NPRDMA_REG_GENERATION(_state) & 1)

/* Polls of the number of users before the waiter sleeps */
#define NPRDMA_REG_SPIN 100


struct nprdma_reg {
    _Atomic uint64_t state;   /* Generation (odd: live) and number of users */
    uintptr_t        address;
    size_t           length;  /* Bytes; in a free record, the next free one */
    uint32_t         access;  /* NPRDMA_REG_ACCESS_xx */
    uint32_t         index;   /* Place in the table */
    char             extra[] __attribute__((aligned(16))); /* User's data */
};

struct nprdma_reg_table {
    pthread_mutex_t        lock;       /* Adding and removing */
    size_t                 size;       /* Of a record, with extra */
    uint32_t               generation; /* Of records never used; even */
    uint32_t               free_head;  /* Queue, linked through length */
    uint32_t               free_tail;
    uint32_t               num_blocks;
    nprdma_reg_sums_t      *sums;      /* Of the caller */
    _Atomic uint32_t       count;
    void *_Atomic          blocks[NPRDMA_REG_MAX_BLOCKS];
};


static nprdma_reg_t *
nprdma_reg_at(const nprdma_reg_table_t *table, void *block, uint32_t index)
{
    return (nprdma_reg_t*)((char*)block + (table->size * index));
}

static nprdma_reg_t *
nprdma_reg_find(const nprdma_reg_table_t *table, uint32_t index)
{
    uint32_t block = index >> NPRDMA_REG_BLOCK_SHIFT;
    void *regs;

    if (block >= NPRDMA_REG_MAX_BLOCKS) {
        return NULL;
    }

    regs = atomic_load_explicit(&table->blocks[block], memory_order_acquire);
    return (regs == NULL) ? NULL :
           nprdma_reg_at(table, regs, index & (NPRDMA_REG_BLOCK_SIZE - 1));
}

static void nprdma_reg_free_push(nprdma_reg_table_t *table, nprdma_reg_t *reg)
{
    reg->length = NPRDMA_REG_NONE;
    if (table->free_head == NPRDMA_REG_NONE) {
        table->free_head = reg->index;
    } else {
        nprdma_reg_find(table, table->free_tail)->length = reg->index;
    }
    table->free_tail = reg->index;
}

static nprdma_reg_t *nprdma_reg_free_pop(nprdma_reg_table_t *table)
{
    nprdma_reg_t *reg = nprdma_reg_find(table, table->free_head);

    table->free_head = (uint32_t)reg->length;
    return reg;
}

/* Called without the lock: while this thread allocates, memory hooks of another
 * registration cache may call nprdma_reg_free() */
static ucs_status_t nprdma_reg_table_grow(nprdma_reg_table_t *table)
{
    uint32_t block, i;
    nprdma_reg_t *reg;
    void *regs;

    if (posix_memalign(&regs, 64, NPRDMA_REG_BLOCK_SIZE * table->size) != 0) {
        return UCS_ERR_NO_MEMORY;
    }
    memset(regs, 0, NPRDMA_REG_BLOCK_SIZE * table->size);

    pthread_mutex_lock(&table->lock);
    block = table->num_blocks;
    if (block == NPRDMA_REG_MAX_BLOCKS) {
        pthread_mutex_unlock(&table->lock);
        free(regs);
        return UCS_ERR_EXCEEDS_LIMIT;
    }

    for (i = 0; i < NPRDMA_REG_BLOCK_SIZE; ++i) {
        reg        = nprdma_reg_at(table, regs, i);
        reg->index = (block << NPRDMA_REG_BLOCK_SHIFT) + i;
        atomic_init(&reg->state, NPRDMA_REG_STATE(table->generation));
    }

    atomic_store_explicit(&table->blocks[block], regs, memory_order_release);
    ++table->num_blocks;
    for (i = 0; i < NPRDMA_REG_BLOCK_SIZE; ++i) {
        nprdma_reg_free_push(table, nprdma_reg_at(table, regs, i));
    }

    pthread_mutex_unlock(&table->lock);
    return UCS_OK;
}

ucs_status_t nprdma_reg_table_create(size_t extra, nprdma_reg_sums_t *sums,
                                     nprdma_reg_table_t **table_p)
{
    nprdma_reg_table_t *table;
    struct timespec now;

    table = calloc(1, sizeof(*table));
    if (table == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    /* The first generation is random, so that a key of another process, or of
     * an earlier table, is most likely not valid here */
    if (getrandom(&table->generation, sizeof(table->generation),
                  GRND_NONBLOCK) != sizeof(table->generation)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        table->generation = (uint32_t)now.tv_nsec ^ ((uint32_t)getpid() << 12);
    }

    table->size        = sizeof(nprdma_reg_t) + ((extra + 15) & ~(size_t)15);
    table->generation &= ~1u;
    table->free_head   = NPRDMA_REG_NONE;
    table->sums        = sums;
    pthread_mutex_init(&table->lock, NULL);
    *table_p = table;
    return UCS_OK;
}

void nprdma_reg_table_destroy(nprdma_reg_table_t *table)
{
    uint32_t i;

    for (i = 0; i < table->num_blocks; ++i) {
        free(atomic_load(&table->blocks[i]));
    }

    pthread_mutex_destroy(&table->lock);
    free(table);
}

unsigned nprdma_reg_table_count(const nprdma_reg_table_t *table)
{
    return atomic_load_explicit(&table->count, memory_order_relaxed);
}

void nprdma_reg_table_query(nprdma_reg_table_t *table, nprdma_reg_sums_t *sums)
{
    pthread_mutex_lock(&table->lock);
    *sums = *table->sums;
    pthread_mutex_unlock(&table->lock);
}

nprdma_reg_t *nprdma_reg_table_first(nprdma_reg_table_t *table)
{
    nprdma_reg_t *reg;
    uint32_t i;

    if (nprdma_reg_table_count(table) == 0) {
        return NULL;
    }

    for (i = 0; (reg = nprdma_reg_find(table, i)) != NULL; ++i) {
        if (NPRDMA_REG_IS_LIVE(atomic_load(&reg->state))) {
            return reg;
        }
    }

    return NULL;
}

ucs_status_t
nprdma_reg_alloc(nprdma_reg_table_t *table, uintptr_t address, size_t length,
                 uint32_t access, nprdma_reg_t **reg_p)
{
    ucs_status_t status;
    nprdma_reg_t *reg;

    if ((address + length) < address) {
        return UCS_ERR_INVALID_PARAM;
    }

    pthread_mutex_lock(&table->lock);
    while (table->free_head == NPRDMA_REG_NONE) {
        pthread_mutex_unlock(&table->lock);
        status = nprdma_reg_table_grow(table);
        if (status != UCS_OK) {
            return status;
        }
        pthread_mutex_lock(&table->lock);
    }

    reg = nprdma_reg_free_pop(table);
    atomic_fetch_add_explicit(&table->count, 1, memory_order_relaxed);
    table->sums->bytes += length;
    if (table->sums->bytes > table->sums->peak) {
        table->sums->peak = table->sums->bytes;
    }
    pthread_mutex_unlock(&table->lock);

    reg->address = address;
    reg->length  = length;
    reg->access  = access;
    *reg_p       = reg;
    return UCS_OK;
}

void nprdma_reg_publish(nprdma_reg_t *reg)
{
    /* From here on it can be found by its key */
    atomic_fetch_add_explicit(&reg->state, NPRDMA_REG_STATE(1),
                              memory_order_release);
}

void nprdma_reg_retire(nprdma_reg_t *reg)
{
    unsigned spin = 0;
    uint32_t users;

    atomic_fetch_add(&reg->state, NPRDMA_REG_STATE(1));
    while ((users = NPRDMA_REG_USERS(atomic_load(&reg->state))) != 0) {
        if (++spin > NPRDMA_REG_SPIN) {
            /* The low half is first in memory on little-endian processors */
            syscall(SYS_futex, &reg->state, FUTEX_WAIT_PRIVATE, users, NULL);
        }
    }
}

void nprdma_reg_free(nprdma_reg_table_t *table, nprdma_reg_t *reg)
{
    pthread_mutex_lock(&table->lock);
    atomic_fetch_sub_explicit(&table->count, 1, memory_order_relaxed);
    table->sums->bytes -= reg->length;
    nprdma_reg_free_push(table, reg);
    pthread_mutex_unlock(&table->lock);
}

void *nprdma_reg_extra(nprdma_reg_t *reg)
{
    return reg->extra;
}

uintptr_t nprdma_reg_address(const nprdma_reg_t *reg)
{
    return reg->address;
}

size_t nprdma_reg_length(const nprdma_reg_t *reg)
{
    return reg->length;
}

uint32_t nprdma_reg_access(const nprdma_reg_t *reg)
{
    return reg->access;
}

uint64_t nprdma_reg_key(const nprdma_reg_t *reg)
{
    uint64_t state = atomic_load_explicit(&reg->state, memory_order_relaxed);

    return NPRDMA_REG_STATE(NPRDMA_REG_GENERATION(state)) | reg->index;
}

int nprdma_reg_key_is_valid(uint64_t key)
{
    return NPRDMA_REG_IS_LIVE(key) &&
           (((uint32_t)key >> NPRDMA_REG_BLOCK_SHIFT) < NPRDMA_REG_MAX_BLOCKS);
}

ucs_status_t
nprdma_reg_get(nprdma_reg_table_t *table, uint64_t key, uintptr_t address,
               size_t length, uint32_t access, nprdma_reg_t **reg_p)
{
    ucs_status_t status;
    nprdma_reg_t *reg;
    uint64_t state;

    if (!nprdma_reg_key_is_valid(key)) {
        return UCS_ERR_NO_ELEM;
    }

    reg = nprdma_reg_find(table, (uint32_t)key);
    if (reg == NULL) {
        return UCS_ERR_NO_ELEM;
    }

    state = atomic_load_explicit(&reg->state, memory_order_acquire);
    do {
        if (NPRDMA_REG_GENERATION(state) != NPRDMA_REG_GENERATION(key)) {
            return UCS_ERR_NO_ELEM;
        }
    } while (!atomic_compare_exchange_weak(&reg->state, &state, state + 1));

    /* The fields cannot change now. A sum could wrap: a peer chooses both. */
    if ((address < reg->address) ||
        ((address - reg->address) > reg->length) ||
        (length > (reg->length - (address - reg->address)))) {
        status = UCS_ERR_OUT_OF_RANGE;
    } else if ((reg->access & access) != access) {
        status = UCS_ERR_REJECTED;
    } else {
        *reg_p = reg;
        return UCS_OK;
    }

    nprdma_reg_put(reg);
    return status;
}

void nprdma_reg_put(nprdma_reg_t *reg)
{
    uint64_t state = atomic_fetch_sub(&reg->state, 1) - 1;

    if ((NPRDMA_REG_USERS(state) == 0) && !NPRDMA_REG_IS_LIVE(state)) {
        syscall(SYS_futex, &reg->state, FUTEX_WAKE_PRIVATE, INT_MAX);
    }
}
