/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Packed keys as they come from a peer's program. */

#include "fuzz.h"

#include "ucm/regions/nprdma_reg.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"

static void fuzz_key_good(const uct_nprdma_rkey_t *rkey, const void *data)
{
    uint64_t end = rkey->address + rkey->length;

    FUZZ_CHECK(rkey->version == UCT_NPRDMA_KEY_VERSION);
    FUZZ_CHECK(nprdma_reg_key_is_valid(rkey->key));
    FUZZ_CHECK(end >= rkey->address);
    FUZZ_CHECK(uct_nprdma_key_covers(rkey, rkey->address, rkey->length));
    FUZZ_CHECK(uct_nprdma_key_covers(rkey, end, 0));
    FUZZ_CHECK(!uct_nprdma_key_covers(rkey, end, 1));
    FUZZ_CHECK((rkey->address == 0) ||
               !uct_nprdma_key_covers(rkey, rkey->address - 1, 1));
    FUZZ_CHECK((rkey->length == UINT64_MAX) ||
               !uct_nprdma_key_covers(rkey, rkey->address, rkey->length + 1));
    /* Verified in exactly one way */
    FUZZ_CHECK(!(rkey->flags & UCT_NPRDMA_KEY_FLAG_REGION) ==
               (rkey->s_rkey == 0));
    if (uct_nprdma_key_is_on_demand(rkey)) {
        FUZZ_CHECK((rkey->r_rkey | rkey->w_rkey) != 0);
        FUZZ_CHECK((rkey->signature | rkey->region_address) == 0);
    } else if ((rkey->r_rkey | rkey->w_rkey) != 0) {
        /* The index of a page's state must not wrap */
        FUZZ_CHECK(rkey->s_rkey != 0);
        FUZZ_CHECK(rkey->region_address <= rkey->address);
    }

    FUZZ_CHECK(!memcmp(rkey, data, sizeof(*rkey)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_reader_t reader = {data, size};
    uct_nprdma_rkey_t packed, rkey;
    void *copy;

    fuzz_read(&reader, &packed, sizeof(packed));
    copy = fuzz_copy((const uint8_t*)&packed, sizeof(packed));
    if (uct_nprdma_key_unpack(copy, &rkey)) {
        fuzz_key_good(&rkey, copy);
    }

    free(copy);
    return 0;
}
