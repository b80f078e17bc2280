/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_FUZZ_DUMP_H_
#define NPRDMA_FUZZ_DUMP_H_

#include "fuzz.h"

#include "uct/ib/nprdma/wire/nprdma_dump.h"

/* Dumps a packet to a buffer of some size. The text must be terminated within
 * it. */
static inline void
fuzz_dump(const uct_nprdma_dump_format_t *format, const void *packet,
          size_t length)
{
    size_t max = (length > 0) ? 2u * *(const uint8_t*)packet :
                                UCT_NPRDMA_DUMP_MAX;
    char *text = malloc((max > 0) ? max : 1);

    FUZZ_CHECK(text != NULL);
    FUZZ_CHECK(uct_nprdma_dump(format, text, max, packet, length) == text);
    FUZZ_CHECK((max == 0) || (memchr(text, '\0', max) != NULL));
    free(text);
}

#endif
