/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_key.h"

#include "ucm/regions/nprdma_reg.h"

#include <nprdma_uapi.h>

#include <string.h>


_Static_assert(sizeof(uct_nprdma_rkey_t) == 64, "it travels without padding");

/* Nothing that belongs to views and page states */
static int uct_nprdma_key_has_no_states(const uct_nprdma_rkey_t *rkey)
{
    return (rkey->s_rkey == 0) && (rkey->region_address == 0) &&
           (rkey->region_id == 0) && (rkey->signature == 0);
}

/* A key with a region names a region that begins on a page, at or before the
 * registration. In other keys the fields that do not belong to them are 0. */
static int uct_nprdma_key_region_is_valid(const uct_nprdma_rkey_t *rkey)
{
    int has_rkey = (rkey->r_rkey != 0) || (rkey->w_rkey != 0);

    switch (rkey->flags) {
    case 0:
        return !has_rkey && uct_nprdma_key_has_no_states(rkey);
    case UCT_NPRDMA_KEY_FLAG_REGION:
        return has_rkey && (rkey->s_rkey != 0) &&
               (rkey->region_address <= rkey->address) &&
               ((rkey->region_address % NPRDMA_PAGE_SIZE) == 0);
    case UCT_NPRDMA_KEY_FLAG_ON_DEMAND:
        return has_rkey && uct_nprdma_key_has_no_states(rkey);
    default:
        return 0;
    }
}

int uct_nprdma_key_unpack(const void *data, uct_nprdma_rkey_t *rkey)
{
    /* The version is the first byte of every version of the format */
    if (*(const uint8_t*)data != UCT_NPRDMA_KEY_VERSION) {
        return 0;
    }

    memcpy(rkey, data, sizeof(*rkey));
    return (rkey->reserved == 0) && nprdma_reg_key_is_valid(rkey->key) &&
           (rkey->length <= (UINT64_MAX - rkey->address)) &&
           uct_nprdma_key_region_is_valid(rkey);
}
