/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The table that decides what a peer may access. Keys, addresses and lengths
 * come from the wire. Every result is compared with a model of the table.
 */

#include "fuzz.h"

#include "ucm/regions/nprdma_reg.h"

#define FUZZ_REGS 16

enum {
    FUZZ_OP_ADD,
    FUZZ_OP_REMOVE,
    FUZZ_OP_GET_NEAR,   /* around a registration, with its key */
    FUZZ_OP_GET_ANY,    /* any key, any range */
    FUZZ_OP_LAST
};

/* The model. A key stays here when its registration is removed. */
typedef struct {
    nprdma_reg_t *reg;      /* NULL: removed */
    uint64_t     key;       /* 0: never used */
    uint64_t     address;
    uint64_t     length;
    uint32_t     access;
} fuzz_reg_t;

static void fuzz_reg_add(nprdma_reg_table_t *table, fuzz_reg_t *entry,
                         fuzz_reader_t *reader)
{
    uint8_t shape = fuzz_read_u8(reader);
    ucs_status_t status;

    if (entry->reg != NULL) {
        return;
    }

    entry->address = fuzz_read_u64(reader);
    entry->length  = fuzz_read_u64(reader);
    entry->access  = shape & NPRDMA_REG_ACCESS_ALL;
    if (shape & 0x80) {
        /* Up to the end of the address space, where sums wrap around */
        entry->length = -entry->address;
    } else if (shape & 0x40) {
        entry->length &= 0xffff;
    }

    status = nprdma_reg_add(table, entry->address, entry->length,
                            entry->access, &entry->reg);
    if (status != UCS_OK) {
        FUZZ_CHECK(status == UCS_ERR_INVALID_PARAM);
        FUZZ_CHECK(entry->length > UINT64_MAX - entry->address);
        entry->reg = NULL;
        entry->key = 0;
        return;
    }

    FUZZ_CHECK((entry->length == 0) ||
               (entry->length - 1 <= UINT64_MAX - entry->address));
    entry->key = nprdma_reg_key(entry->reg);
    FUZZ_CHECK((entry->key != 0) && (entry->key != UINT64_MAX));
    FUZZ_CHECK(nprdma_reg_key_is_valid(entry->key));
}

static const fuzz_reg_t *fuzz_reg_find(const fuzz_reg_t *entries, uint64_t key)
{
    int i;

    for (i = 0; i < FUZZ_REGS; ++i) {
        if ((entries[i].reg != NULL) && (entries[i].key == key)) {
            return &entries[i];
        }
    }
    return NULL;
}

static int fuzz_reg_inside(const fuzz_reg_t *entry, uint64_t address,
                           uint64_t length)
{
    return (address >= entry->address) && (length <= entry->length) &&
           (address - entry->address <= entry->length - length);
}

static void fuzz_reg_get(nprdma_reg_table_t *table, const fuzz_reg_t *entries,
                         uint64_t key, uint64_t address, uint64_t length,
                         uint32_t access)
{
    const fuzz_reg_t *entry = fuzz_reg_find(entries, key);
    nprdma_reg_t *reg       = NULL;
    ucs_status_t status;

    status = nprdma_reg_get(table, key, address, length, access, &reg);
    if (entry == NULL) {
        FUZZ_CHECK(status == UCS_ERR_NO_ELEM);
        return;
    }

    if (status == UCS_OK) {
        FUZZ_CHECK(reg == entry->reg);
        FUZZ_CHECK(fuzz_reg_inside(entry, address, length));
        FUZZ_CHECK((access & ~entry->access) == 0);
        nprdma_reg_put(reg);
    } else if (status == UCS_ERR_OUT_OF_RANGE) {
        /* Nothing may be accessed through an empty registration */
        FUZZ_CHECK(!fuzz_reg_inside(entry, address, length) ||
                   (entry->length == 0));
    } else {
        FUZZ_CHECK(status == UCS_ERR_REJECTED);
        FUZZ_CHECK((access & ~entry->access) != 0);
    }
}

static void fuzz_reg_op(nprdma_reg_table_t *table, fuzz_reg_t *entries,
                        fuzz_reader_t *reader)
{
    uint8_t code      = fuzz_read_u8(reader);
    fuzz_reg_t *entry = &entries[(code >> 4) % FUZZ_REGS];
    uint8_t shape;
    uint64_t key;

    switch ((code & 0xf) % FUZZ_OP_LAST) {
    case FUZZ_OP_ADD:
        fuzz_reg_add(table, entry, reader);
        break;
    case FUZZ_OP_REMOVE:
        if (entry->reg != NULL) {
            nprdma_reg_remove(table, entry->reg);
            entry->reg = NULL;
        }
        break;
    case FUZZ_OP_GET_NEAR:
        shape = fuzz_read_u8(reader);
        fuzz_reg_get(table, entries, entry->key,
                     entry->address + (int8_t)fuzz_read_u8(reader),
                     ((shape & 0x80) ? entry->length : 0) +
                     (int8_t)fuzz_read_u8(reader),
                     shape & NPRDMA_REG_ACCESS_ALL);
        break;
    case FUZZ_OP_GET_ANY:
        key = entry->key ^ fuzz_read_u64(reader);
        fuzz_reg_get(table, entries, key, fuzz_read_u64(reader),
                     fuzz_read_u64(reader), fuzz_read_u8(reader) &
                     NPRDMA_REG_ACCESS_ALL);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_reader_t reader          = {data, size};
    fuzz_reg_t entries[FUZZ_REGS] = {{0}};
    nprdma_reg_sums_t sums        = {0};
    nprdma_reg_table_t *table;
    unsigned live = 0;
    int i;

    FUZZ_CHECK(nprdma_reg_table_create(0, &sums, &table) == UCS_OK);
    while (reader.left > 0) {
        fuzz_reg_op(table, entries, &reader);
    }

    for (i = 0; i < FUZZ_REGS; ++i) {
        live += (entries[i].reg != NULL);
    }
    FUZZ_CHECK(nprdma_reg_table_count(table) == live);
    nprdma_reg_table_destroy(table);
    return 0;
}
