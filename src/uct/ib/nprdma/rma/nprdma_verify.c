/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_verify.h"


#define UCT_NPRDMA_VERIFY_WORD  sizeof(uint64_t)


static inline uint64_t uct_nprdma_verify_load(const uint8_t *data)
{
    uint64_t word;

    memcpy(&word, data, sizeof(word));
    return word;
}

/* Test a line, or the part of one that is in the data */
static int
uct_nprdma_verify_partial(const uint8_t *data, uint64_t address, size_t length,
                          uint64_t signature)
{
    size_t skip = -address & (UCT_NPRDMA_VERIFY_WORD - 1);
    uint8_t bytes[UCT_NPRDMA_VERIFY_WORD];
    size_t i;

    if ((skip + UCT_NPRDMA_VERIFY_WORD) <= length) {
        return uct_nprdma_verify_load(data + skip) == signature;
    }

    memcpy(bytes, &signature, sizeof(bytes));
    for (i = 0; i < length; ++i) {
        if (data[i] != bytes[(address + i) % UCT_NPRDMA_VERIFY_WORD]) {
            return 0;
        }
    }
    return 1;
}

/*
 * Test whole lines at their first words. One comparison costs less than the
 * load of the cache line. Measurements showed no gain from loading four words
 * into a vector (SSE2, or a gather of AVX2).
 */
static int uct_nprdma_verify_any(const uint8_t *data, size_t num_lines,
                                 uint64_t signature)
{
    size_t i;

    for (i = 0; (i + 4) <= num_lines; i += 4) {
        if ((uct_nprdma_verify_load(data) == signature) |
            (uct_nprdma_verify_load(data + NPRDMA_LINE_SIZE) == signature) |
            (uct_nprdma_verify_load(data + 2 * NPRDMA_LINE_SIZE) ==
             signature) |
            (uct_nprdma_verify_load(data + 3 * NPRDMA_LINE_SIZE) ==
             signature)) {
            return 1;
        }
        data += 4 * NPRDMA_LINE_SIZE;
    }

    for (; i < num_lines; ++i) {
        if (uct_nprdma_verify_load(data) == signature) {
            return 1;
        }
        data += NPRDMA_LINE_SIZE;
    }
    return 0;
}

static size_t uct_nprdma_verify_count(const uint8_t *data, size_t num_lines,
                                      uint64_t signature)
{
    size_t i, count = 0;

    for (i = 0; i < num_lines; ++i) {
        count += (uct_nprdma_verify_load(data) == signature);
        data  += NPRDMA_LINE_SIZE;
    }
    return count;
}

size_t uct_nprdma_verify_scan(const void *data, uint64_t address, size_t length,
                              uint64_t signature)
{
    size_t head          = uct_nprdma_verify_head(address);
    const uint8_t *bytes = data;
    size_t count         = 0;
    size_t num_lines;

    if (head >= length) {
        head = length;
    }
    if (head > 0) {
        count   += uct_nprdma_verify_partial(bytes, address, head, signature);
        bytes   += head;
        address += head;
        length  -= head;
    }

    num_lines = length / NPRDMA_LINE_SIZE;
    if (uct_nprdma_verify_any(bytes, num_lines, signature)) {
        count += uct_nprdma_verify_count(bytes, num_lines, signature);
    }

    bytes   += num_lines * NPRDMA_LINE_SIZE;
    address += num_lines * NPRDMA_LINE_SIZE;
    length  -= num_lines * NPRDMA_LINE_SIZE;
    if (length > 0) {
        count += uct_nprdma_verify_partial(bytes, address, length, signature);
    }
    return count;
}
