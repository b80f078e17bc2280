/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_mkey.h"
#include "base/emlx5_field.h"
#include "base/emlx5_log.h"

#include <stdlib.h>

/* How a key's addresses are translated (mkc.access_mode) */
enum {
    EMLX5_MODE_BUS = 0, /* they are bus addresses */
    EMLX5_MODE_MTT = 1, /* list of pages */
    EMLX5_MODE_KLM = 2, /* list of {length, key, address} */
    EMLX5_MODE_KSM = 3  /* the same with one length */
};

enum {
    EMLX5_MKEY_MAX_DEPTH = 3,  /* of keys that refer to keys */
    EMLX5_MKEY_MAX_SHIFT = 40, /* log2 of a page */
    EMLX5_MKEY_MAX_STEPS = 1 << 18, /* entries that one access looks at */
    EMLX5_MTT_SIZE       = 8,
    EMLX5_MTTS_PER_OCTOWORD = 2,
    /* The driver's updates are multiples of 64 bytes, whatever it declared */
    EMLX5_OCTOWORD_UNIT  = 4
};

/* What to do with each piece of memory */
typedef struct {
    emlx5_hca_t   *hca;
    uint8_t       *to;   /* read to here */
    const uint8_t *from; /* write from here; both NULL: only check */
    uint32_t      steps; /* done in lists of keys */
    int           is_rdma; /* as in emlx5_access_t */
} emlx5_walk_t;

static int emlx5_mkey_walk(emlx5_walk_t *walk, const emlx5_access_t *access,
                           int depth);

/* --- life ------------------------------------------------------------------*/

emlx5_mkey_t *emlx5_mkey_create(emlx5_hca_t *hca, const uint8_t *context,
                                uint32_t octowords, const void *list,
                                uint32_t bytes)
{
    uint64_t room = octowords;
    emlx5_mkey_t *mkey;

    room  = (room + EMLX5_OCTOWORD_UNIT - 1) & ~(EMLX5_OCTOWORD_UNIT - 1ull);
    room *= EMLX5_OCTOWORD;
    if ((bytes > room) ||
        (room > EMLX5_MAX_TRANSLATIONS - hca->translations)) {
        return NULL;
    }
    mkey = calloc(1, sizeof(*mkey));
    if (mkey == NULL) {
        return NULL;
    }
    mkey->hca         = hca;
    mkey->octowords   = room / EMLX5_OCTOWORD;
    mkey->translation = calloc(1, (room > 0) ? room : 1);
    if ((mkey->translation == NULL) ||
        (emlx5_table_add(&hca->mkeys, mkey, &mkey->index) != 0)) {
        free(mkey->translation);
        free(mkey);
        return NULL;
    }
    hca->translations += room;
    memcpy(mkey->context, context, EMLX5_MKC_SIZE);
    if (bytes > 0) {
        memcpy(mkey->translation, list, bytes);
    }
    return mkey;
}

void emlx5_mkey_destroy(emlx5_mkey_t *mkey)
{
    mkey->hca->translations -= (uint64_t)mkey->octowords * EMLX5_OCTOWORD;
    emlx5_table_remove(&mkey->hca->mkeys, mkey->index);
    free(mkey->translation);
    free(mkey);
}

void *emlx5_mkey_entries(emlx5_mkey_t *mkey, uint64_t offset, uint64_t bytes)
{
    uint64_t room = (uint64_t)mkey->octowords * EMLX5_OCTOWORD;

    return ((offset <= room) && (bytes <= room - offset)) ?
           mkey->translation + offset : NULL;
}

/* --- translation -----------------------------------------------------------*/

static void emlx5_walk_piece(emlx5_walk_t *walk, uint64_t bus, uint64_t length)
{
    if (walk->to != NULL) {
        emlx5_dma_get(&walk->hca->dma, bus, walk->to, length);
        walk->to += length;
    } else if (walk->from != NULL) {
        (walk->is_rdma ? emlx5_dma_put : emlx5_dma_write)(&walk->hca->dma, bus,
                                                          walk->from, length);
        walk->from += length;
    }
}

/* Pages. The first holds the key's start address. */
static int emlx5_walk_mtt(emlx5_walk_t *walk, const emlx5_mkey_t *mkey,
                          uint64_t offset, uint64_t length)
{
    uint32_t shift = EMLX5_GET32(mkey->context, mkc, log_page_size);
    uint64_t count = (uint64_t)mkey->octowords * EMLX5_MTTS_PER_OCTOWORD;
    uint64_t page, mask, at, part, entry;

    if (shift > EMLX5_MKEY_MAX_SHIFT) {
        return -1;
    }
    page = 1ull << shift;
    mask = page - 1;
    at   = offset + (EMLX5_GET(mkey->context, mkc, start_addr) & mask);
    for (; length > 0; length -= part) {
        if ((at >> shift) >= count) {
            return -1;
        }
        entry = emlx5_be64(mkey->translation +
                           ((at >> shift) * EMLX5_MTT_SIZE));
        /* The driver empties entries of memory that is gone */
        if (entry == 0) {
            return -1;
        }
        part = page - (at & mask);
        part = (part < length) ? part : length;
        /* The lowest bits are flags */
        emlx5_walk_piece(walk, (entry & ~7ull) + (at & mask), part);
        at += part;
    }
    return 0;
}

/* Memory of other keys, one after the other */
static int emlx5_walk_keys(emlx5_walk_t *walk, const emlx5_mkey_t *mkey,
                           const emlx5_access_t *access, uint64_t offset,
                           int same_length, int depth)
{
    uint32_t shift = EMLX5_GET32(mkey->context, mkc, log_page_size);
    uint64_t left  = access->length, length;
    emlx5_access_t part;
    const uint8_t *entry;
    uint32_t i;

    if ((depth >= EMLX5_MKEY_MAX_DEPTH) || (shift > EMLX5_MKEY_MAX_SHIFT)) {
        return -1;
    }
    part.pd     = access->pd;
    part.rights = (walk->to != NULL) ? EMLX5_LOCAL_READ : EMLX5_LOCAL_WRITE;
    for (i = 0; (i < mkey->octowords) && (left > 0); ++i) {
        if (++walk->steps > EMLX5_MKEY_MAX_STEPS) {
            return -1;
        }
        entry  = mkey->translation + ((size_t)i * EMLX5_OCTOWORD);
        length = same_length ? (1ull << shift) : emlx5_be32(entry);
        if (offset >= length) {
            offset -= length;
            continue;
        }
        part.key    = emlx5_be32(entry + 4);
        part.va     = emlx5_be64(entry + 8) + offset;
        part.length = length - offset;
        part.length = (part.length < left) ? part.length : left;
        if (emlx5_mkey_walk(walk, &part, depth + 1) != 0) {
            return -1;
        }
        left  -= part.length;
        offset = 0;
    }
    return (left == 0) ? 0 : -1;
}

static uint32_t emlx5_mkey_rights(const uint8_t *context)
{
    return (EMLX5_GET(context, mkc, lr) ? EMLX5_LOCAL_READ : 0) |
           (EMLX5_GET(context, mkc, lw) ? EMLX5_LOCAL_WRITE : 0) |
           (EMLX5_GET(context, mkc, rr) ? EMLX5_REMOTE_READ : 0) |
           (EMLX5_GET(context, mkc, rw) ? EMLX5_REMOTE_WRITE : 0) |
           (EMLX5_GET(context, mkc, a) ? EMLX5_REMOTE_ATOMIC : 0);
}

/* The key, if it permits the access, else NULL. */
static const emlx5_mkey_t *emlx5_mkey_find(const emlx5_hca_t *hca,
                                           const emlx5_access_t *access)
{
    const emlx5_mkey_t *mkey = emlx5_table_get(&hca->mkeys, access->key >> 8);
    const uint8_t *c;
    uint64_t start, length;

    if (mkey == NULL) {
        return NULL;
    }
    c = mkey->context;
    if ((EMLX5_GET(c, mkc, mkey_7_0) != (access->key & 0xff)) ||
        EMLX5_GET(c, mkc, free) || (EMLX5_GET(c, mkc, pd) != access->pd) ||
        ((emlx5_mkey_rights(c) & access->rights) != access->rights)) {
        return NULL;
    }
    if (EMLX5_GET(c, mkc, length64)) {
        return mkey;
    }
    start  = EMLX5_GET(c, mkc, start_addr);
    length = EMLX5_GET(c, mkc, len);
    if ((access->va < start) || (access->length > length) ||
        (access->va - start > length - access->length)) {
        return NULL;
    }
    return mkey;
}

static int emlx5_mkey_walk(emlx5_walk_t *walk, const emlx5_access_t *access,
                           int depth)
{
    const emlx5_mkey_t *mkey;
    uint32_t mode;
    uint64_t offset;

    if (access->length == 0) {
        return 0;
    }
    mkey = emlx5_mkey_find(walk->hca, access);
    if (mkey == NULL) {
        return -1;
    }
    mode   = EMLX5_GET32(mkey->context, mkc, access_mode_1_0) |
             (EMLX5_GET32(mkey->context, mkc, access_mode_4_2) << 2);
    offset = access->va - EMLX5_GET(mkey->context, mkc, start_addr);
    switch (mode) {
    case EMLX5_MODE_BUS:
        emlx5_walk_piece(walk, access->va, access->length);
        return 0;
    case EMLX5_MODE_MTT:
        return emlx5_walk_mtt(walk, mkey, offset, access->length);
    case EMLX5_MODE_KLM:
    case EMLX5_MODE_KSM:
        return emlx5_walk_keys(walk, mkey, access, offset,
                               mode == EMLX5_MODE_KSM, depth);
    default:
        return -1;
    }
}

static int emlx5_mkey_use(emlx5_walk_t *walk, const emlx5_access_t *access)
{
    if (emlx5_mkey_walk(walk, access, 0) == 0) {
        return 0;
    }
    emlx5_event("port %u: key %#x does not permit %#x of %#llx bytes at %#llx "
                "in PD %u", walk->hca->lid, access->key, access->rights,
                (unsigned long long)access->length,
                (unsigned long long)access->va, access->pd);
    return -1;
}

int emlx5_mkey_get(emlx5_hca_t *hca, const emlx5_access_t *access, void *data)
{
    emlx5_walk_t walk = {.hca = hca, .to = data};

    return emlx5_mkey_use(&walk, access);
}

int emlx5_mkey_put(emlx5_hca_t *hca, const emlx5_access_t *access,
                   const void *data)
{
    emlx5_walk_t walk = {.hca = hca, .from = data, .is_rdma = access->is_rdma};

    return emlx5_mkey_use(&walk, access);
}

int emlx5_mkey_check(emlx5_hca_t *hca, const emlx5_access_t *access)
{
    emlx5_walk_t walk = {.hca = hca};

    return emlx5_mkey_use(&walk, access);
}
