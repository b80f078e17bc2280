/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_VERIFY_H_
#define UCT_NPRDMA_VERIFY_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * Whether data that the NIC has moved met only pages that were there
 * (ARCHITECTURE 3, remote READ and WRITE). Pure: no device, no memory but the
 * arguments, so that every case can be tried by a test.
 */

/* What arrives as a whole: PCIe completions and packets end at its multiples,
 * provided that the READ began at one */
#define UCT_NPRDMA_VERIFY_LINE  64u


/**
 * Look for the signature in data that was read by the NIC: for lines that an
 * absent page could have produced. A line is tested at its first aligned 8-byte
 * word that lies wholly inside of the data; a line that has none, byte by byte.
 * Aligned means by the remote address: the data may lie anywhere here.
 *
 * Data that a CPU has copied must not be scanned: the signature page is never
 * in it, but the value of the signature may be.
 *
 * @param [in] data       Data as it arrived.
 * @param [in] address    Remote address of its first byte.
 * @param [in] length     Bytes; may be 0.
 * @param [in] signature  Of the target.
 *
 * @return Number of lines that may not be real; 0: all of them are.
 */
size_t uct_nprdma_verify_scan(const void *data, uint64_t address, size_t length,
                              uint64_t signature);


/**
 * @param [in] states  States of pages.
 * @param [in] count   Number of them.
 * @param [in] bits    What each must have, NPRDMA_PAGE_xx.
 *
 * @return Nonzero if all have.
 */
static inline int uct_nprdma_verify_usable(const uint32_t *states, size_t count,
                                           uint32_t bits)
{
    uint32_t all = bits;
    size_t i;

    for (i = 0; i < count; ++i) {
        all &= states[i];
    }
    return all == bits;
}


/**
 * Whether no page was absent at any time between two looks at their states:
 * counts never go back, so what is equal has not changed.
 *
 * @param [in] before  The operation's own copy of the states, from before it
 *                     was posted; never memory that others update meanwhile.
 * @param [in] after   States read after the operation had reached the pages.
 * @param [in] count   Number of them.
 * @param [in] bits    What each must have, NPRDMA_PAGE_xx.
 *
 * @return Nonzero if so.
 */
static inline int
uct_nprdma_verify_states(const uint32_t *before, const uint32_t *after,
                         size_t count, uint32_t bits)
{
    uint32_t diff = 0, all = bits;
    size_t i;

    for (i = 0; i < count; ++i) {
        diff |= before[i] ^ after[i];
        all  &= after[i];
    }
    return (diff == 0) && (all == bits);
}


/**
 * What matters of uct_nprdma_verify_scan(), quickly where it is one comparison:
 * an aligned word, and what follows it in its line. Arguments as there.
 *
 * @return Nonzero if not all lines are certainly real.
 */
static inline int uct_nprdma_verify_is_suspect(const void *data,
                                               uint64_t address, size_t length,
                                               uint64_t signature)
{
    uint64_t word;

    if (((address % sizeof(word)) == 0) && (length >= sizeof(word)) &&
        ((address % UCT_NPRDMA_VERIFY_LINE) + length <=
         UCT_NPRDMA_VERIFY_LINE)) {
        memcpy(&word, data, sizeof(word));
        return word == signature;
    }

    return uct_nprdma_verify_scan(data, address, length, signature) > 0;
}


/** @return Bytes from an address to the next line; 0 at its begin. */
static inline size_t uct_nprdma_verify_head(uint64_t address)
{
    return -address & (UCT_NPRDMA_VERIFY_LINE - 1);
}

#endif
