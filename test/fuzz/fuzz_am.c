/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Active messages as they come from the wire. */

#include "fuzz.h"

#include "uct/ib/nprdma/wire/nprdma_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void *copy = fuzz_copy(data, size);
    uct_nprdma_am_hdr_t hdr;
    int type;

    type = uct_nprdma_am_parse(copy, size);
    if (type != -1) {
        FUZZ_CHECK(size >= sizeof(hdr));
        memcpy(&hdr, copy, sizeof(hdr));
        FUZZ_CHECK(type == hdr.type);
        FUZZ_CHECK((type == UCT_NPRDMA_AM_DATA) || (type == UCT_NPRDMA_AM_FIN));
        /* The user's callback gets this length */
        FUZZ_CHECK(hdr.length == size - sizeof(hdr));
        FUZZ_CHECK((type != UCT_NPRDMA_AM_FIN) || (hdr.length == 0));
        FUZZ_CHECK((type != UCT_NPRDMA_AM_DATA) || (hdr.am_id < 32));
    }

    free(copy);
    return 0;
}
