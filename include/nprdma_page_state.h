/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The page state: one 32-bit word per 4 KiB page of a region, in an array that
 * the memory monitor writes and everybody else reads (ARCHITECTURE 2). Kernel
 * module, monitor, emulated IOMMU and transport mean the same by it.
 */

#ifndef NPRDMA_PAGE_STATE_H
#define NPRDMA_PAGE_STATE_H

#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
#include <atomic>
#include <cstdint>
typedef std::atomic<uint32_t> nprdma_page_state_t;
#else
#include <stdatomic.h>
#include <stdint.h>
typedef _Atomic uint32_t nprdma_page_state_t;
#endif

#define NPRDMA_PAGE_SHIFT 12
#define NPRDMA_PAGE_SIZE  (1ul << NPRDMA_PAGE_SHIFT)

#define NPRDMA_PAGE_R     1u /* the R window points at the page */
#define NPRDMA_PAGE_W     2u /* the W window does */
#define NPRDMA_PAGE_BITS  (NPRDMA_PAGE_R | NPRDMA_PAGE_W)
/* Bits 2 to 31 count: +1 at every change of the word, wraps, never back. A word
 * of 0 says that the page has never been present. */
#define NPRDMA_PAGE_COUNT 4u

/* Memory hooks use these, and need them to be part of themselves */
#define NPRDMA_PAGE_INLINE static inline __attribute__((always_inline))

/** The word that follows @a word when its bits become @a bits. */
NPRDMA_PAGE_INLINE uint32_t nprdma_page_next(uint32_t word, uint32_t bits)
{
    return ((word & ~NPRDMA_PAGE_BITS) + NPRDMA_PAGE_COUNT) | bits;
}

/** Sequentially consistent, so that it orders with counts of DMA in flight. */
NPRDMA_PAGE_INLINE uint32_t nprdma_page_load(const nprdma_page_state_t *state)
{
    return __atomic_load_n((const uint32_t*)state, __ATOMIC_SEQ_CST);
}

/* Two neighbours */
typedef uint64_t __attribute__((may_alias)) nprdma_page_pair_t;

NPRDMA_PAGE_INLINE uint64_t
nprdma_page_load_pair(const nprdma_page_state_t *states)
{
    return __atomic_load_n((const nprdma_page_pair_t*)states, __ATOMIC_SEQ_CST);
}

/** @return Nonzero if a pair begins with this word, else the next one does. */
NPRDMA_PAGE_INLINE int
nprdma_page_begins_pair(const nprdma_page_state_t *state)
{
    return ((uintptr_t)state % sizeof(nprdma_page_pair_t)) == 0;
}

/**
 * Load the states of neighbouring pages, each as nprdma_page_load(), but by
 * pairs: large transfers look at all of theirs several times.
 *
 * @param [in]  states  The first of them.
 * @param [in]  count   Number of them, at least one.
 * @param [out] words   Gets what they were, unless NULL.
 *
 * @return The bits that all of them have.
 */
NPRDMA_PAGE_INLINE uint32_t
nprdma_page_load_all(const nprdma_page_state_t *states, size_t count,
                     uint32_t *words)
{
    uint32_t word = UINT32_MAX;
    uint64_t all  = UINT64_MAX;
    size_t i      = 0;
    uint64_t pair;

    if (!nprdma_page_begins_pair(states)) {
        word = nprdma_page_load(states);
        if (words != NULL) {
            words[0] = word;
        }
        i = 1;
    }

    for (; (i + 2) <= count; i += 2) {
        pair = nprdma_page_load_pair(&states[i]);
        all &= pair;
        if (words != NULL) {
            memcpy(&words[i], &pair, sizeof(pair));
        }
    }

    all &= all >> 32;
    if (i < count) {
        pair = nprdma_page_load(&states[i]);
        all &= pair;
        if (words != NULL) {
            words[i] = pair;
        }
    }
    return all & word & NPRDMA_PAGE_BITS;
}

/**
 * Whether states are what they were, in the same way.
 *
 * @param [in] states  The first of them.
 * @param [in] count   Number of them, at least one.
 * @param [in] words   What nprdma_page_load_all() said they were.
 *
 * @return 1 if all of them are, else 0.
 */
NPRDMA_PAGE_INLINE int nprdma_page_equal_all(const nprdma_page_state_t *states,
                                             size_t count,
                                             const uint32_t *words)
{
    uint64_t diff = 0;
    size_t i      = 0;
    uint64_t pair;

    if (!nprdma_page_begins_pair(states)) {
        diff = words[0] ^ nprdma_page_load(states);
        i    = 1;
    }

    for (; (i + 2) <= count; i += 2) {
        memcpy(&pair, &words[i], sizeof(pair));
        diff |= pair ^ nprdma_page_load_pair(&states[i]);
    }

    if (i < count) {
        diff |= words[i] ^ nprdma_page_load(&states[i]);
    }
    return diff == 0;
}

/**
 * Give a page other bits, unless somebody else changed the word meanwhile: that
 * may be an emulated NIC, which marks a page absent that it could not access.
 *
 * @param [in] state  The word.
 * @param [in] word   What it was when the decision was taken.
 * @param [in] bits   Bits it gets.
 *
 * @return 1 if it was changed, else 0.
 */
NPRDMA_PAGE_INLINE int nprdma_page_change(nprdma_page_state_t *state,
                                          uint32_t word, uint32_t bits)
{
    return __atomic_compare_exchange_n((uint32_t*)state, &word,
                                       nprdma_page_next(word, bits), 0,
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/**
 * Take bits away from a page; a page that has none of them is left as it is.
 *
 * @return The word before.
 */
NPRDMA_PAGE_INLINE uint32_t nprdma_page_clear(nprdma_page_state_t *state,
                                              uint32_t bits)
{
    uint32_t word = nprdma_page_load(state);

    while ((word & bits) &&
           !nprdma_page_change(state, word, word & NPRDMA_PAGE_BITS & ~bits)) {
        word = nprdma_page_load(state);
    }
    return word;
}

#endif
