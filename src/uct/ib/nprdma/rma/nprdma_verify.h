/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_VERIFY_H_
#define UCT_NPRDMA_VERIFY_H_

#include <nprdma_page_state.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * Verification: did the NIC access present pages only (ARCHITECTURE 3, remote
 * READ and WRITE)? Pure: no device, and no memory but the arguments, so that a
 * test can cover every case.
 */


/*
 * Search data that the NIC has read for the signature, and count the lines that
 * an absent page could have produced. A line is tested at its first aligned
 * 8-byte word that is wholly inside of the data; a line without one is tested
 * byte by byte. The alignment is that of the remote address; the data may have
 * any.
 *
 * Data that a CPU has copied must not be scanned: it never comes from the
 * signature page, but it may contain the value.
 */
size_t uct_nprdma_verify_scan(const void *data, uint64_t address, size_t length,
                              uint64_t signature);


/* Whether all pages have the bits NPRDMA_PAGE_xx */
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


/* Whether no page was absent between two reads of the states. Counts never
 * decrease, so an equal state has not changed in between. `before` is the
 * operation's own copy from before it was posted, never memory that other
 * operations update meanwhile; `after` was read after the operation had
 * accessed the pages. */
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


/* Whether uct_nprdma_verify_scan() would find a suspect line. Fast if that is
 * one comparison: for an aligned word and the bytes behind it in its line. */
static inline int uct_nprdma_verify_is_suspect(const void *data,
                                               uint64_t address, size_t length,
                                               uint64_t signature)
{
    uint64_t word;

    if (((address % sizeof(word)) == 0) && (length >= sizeof(word)) &&
        ((address % NPRDMA_LINE_SIZE) + length <= NPRDMA_LINE_SIZE)) {
        memcpy(&word, data, sizeof(word));
        return word == signature;
    }

    return uct_nprdma_verify_scan(data, address, length, signature) > 0;
}


/* Bytes from an address to the next line; 0 at the start of a line */
static inline size_t uct_nprdma_verify_head(uint64_t address)
{
    return -address & (NPRDMA_LINE_SIZE - 1);
}

#endif
