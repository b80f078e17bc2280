/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_key.h"

#include "ucm/regions/nprdma_reg.h"

#include <nprdma_uapi.h>

#include <string.h>


void uct_nprdma_key_pack(const uct_nprdma_rkey_t *rkey,
                         uct_nprdma_packed_rkey_t *packed)
{
    memset(packed, 0, sizeof(*packed));
    packed->version = UCT_NPRDMA_KEY_VERSION;
    packed->key     = rkey->key;
    packed->address = rkey->address;
    packed->length  = rkey->length;
    packed->flags          = rkey->flags;
    packed->r_rkey         = rkey->r_rkey;
    packed->w_rkey         = rkey->w_rkey;
    packed->s_rkey         = rkey->s_rkey;
    packed->region_address = rkey->region_address;
    packed->region_id      = rkey->region_id;
    packed->signature      = rkey->signature;
}

/* Nothing that belongs to views and page states */
static int
uct_nprdma_key_has_no_states(const uct_nprdma_packed_rkey_t *packed)
{
    return (packed->s_rkey == 0) && (packed->region_address == 0) &&
           (packed->region_id == 0) && (packed->signature == 0);
}

/* A key with a region names a region that begins on a page, at or before the
 * registration. In other keys the fields that do not belong to them are 0. */
static int
uct_nprdma_key_region_is_valid(const uct_nprdma_packed_rkey_t *packed)
{
    int has_rkey = (packed->r_rkey != 0) || (packed->w_rkey != 0);

    switch (packed->flags) {
    case 0:
        return !has_rkey && uct_nprdma_key_has_no_states(packed);
    case UCT_NPRDMA_KEY_FLAG_REGION:
        return has_rkey && (packed->s_rkey != 0) &&
               (packed->region_address <= packed->address) &&
               ((packed->region_address % NPRDMA_PAGE_SIZE) == 0);
    case UCT_NPRDMA_KEY_FLAG_ON_DEMAND:
        return has_rkey && uct_nprdma_key_has_no_states(packed);
    default:
        return 0;
    }
}

uct_nprdma_key_result_t
uct_nprdma_key_unpack(const void *data, uct_nprdma_rkey_t *rkey)
{
    uct_nprdma_packed_rkey_t packed;

    /* The version is the first byte of every version of the format */
    if (*(const uint8_t*)data != UCT_NPRDMA_KEY_VERSION) {
        return UCT_NPRDMA_KEY_BAD_VERSION;
    }

    memcpy(&packed, data, sizeof(packed));
    if ((packed.reserved != 0) || !nprdma_reg_key_is_valid(packed.key) ||
        (packed.length > (UINT64_MAX - packed.address)) ||
        !uct_nprdma_key_region_is_valid(&packed)) {
        return UCT_NPRDMA_KEY_BAD_FIELD;
    }

    memset(rkey, 0, sizeof(*rkey));
    rkey->key            = packed.key;
    rkey->address        = packed.address;
    rkey->length         = packed.length;
    rkey->region_address = packed.region_address;
    rkey->region_id      = packed.region_id;
    rkey->signature      = packed.signature;
    rkey->r_rkey         = packed.r_rkey;
    rkey->w_rkey         = packed.w_rkey;
    rkey->s_rkey         = packed.s_rkey;
    rkey->flags          = packed.flags;
    return UCT_NPRDMA_KEY_OK;
}

/* A packed key has no padding and all its bytes are set, so memcmp() is
 * exact */
int uct_nprdma_key_compare(const uct_nprdma_rkey_t *rkey1,
                           const uct_nprdma_rkey_t *rkey2)
{
    uct_nprdma_packed_rkey_t packed1, packed2;

    uct_nprdma_key_pack(rkey1, &packed1);
    uct_nprdma_key_pack(rkey2, &packed2);
    return memcmp(&packed1, &packed2, sizeof(packed1));
}
