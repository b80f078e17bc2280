/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The page state: one 32-bit word per 4 KiB page of a region, in an array that
 * the memory monitor writes and all others only read (ARCHITECTURE 2). The page
 * size and the bits are defined once, in the interface of the kernel module,
 * which both kernel and user space can include. This header adds the atomic
 * operations of user space.
 */

#ifndef NPRDMA_PAGE_STATE_H
#define NPRDMA_PAGE_STATE_H

#include "nprdma_uapi.h"

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

/* Bytes of a page that a NIC reads as a unit: PCIe completions and packets end
 * at multiples of it, provided that the READ began at one. So one test per line
 * finds each line that came from the signature page. */
#define NPRDMA_LINE_SIZE 64u

/* Bytes of a cache line of the CPU. A wrong value costs time only. */
#define NPRDMA_PAGE_CPU_LINE 64u

/* Memory hooks use these functions, and ThreadSanitizer must not instrument
 * hooks: inlined, the functions have the attributes of the hook */
#define NPRDMA_PAGE_INLINE static inline __attribute__((always_inline))

/** The word that follows @a word when its bits become @a bits. */
NPRDMA_PAGE_INLINE uint32_t nprdma_page_next(uint32_t word, uint32_t bits)
{
    return ((word & ~NPRDMA_PAGE_BITS) + NPRDMA_PAGE_COUNT) | bits;
}

/** Sequentially consistent, to be ordered with the counts of DMA in flight. */
NPRDMA_PAGE_INLINE uint32_t nprdma_page_load(const nprdma_page_state_t *state)
{
    return __atomic_load_n((const uint32_t*)state, __ATOMIC_SEQ_CST);
}

/* The states of two neighbouring pages */
typedef uint64_t __attribute__((may_alias)) nprdma_page_pair_t;

NPRDMA_PAGE_INLINE uint64_t
nprdma_page_load_pair(const nprdma_page_state_t *states)
{
    return __atomic_load_n((const nprdma_page_pair_t*)states, __ATOMIC_SEQ_CST);
}

/** @return Nonzero if a pair can begin with this word, by its alignment. */
NPRDMA_PAGE_INLINE int
nprdma_page_begins_pair(const nprdma_page_state_t *state)
{
    return ((uintptr_t)state % sizeof(nprdma_page_pair_t)) == 0;
}

/**
 * Load the states of neighbouring pages, each as nprdma_page_load() does, but
 * in pairs: a large transfer loads all of its states several times.
 *
 * @param [in]  states  The first of them.
 * @param [in]  count   Number of them, at least one.
 * @param [out] words   Filled with the states, unless NULL.
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
 * Compare states with an earlier copy; loads them as nprdma_page_load_all().
 *
 * @param [in] states  The first of them.
 * @param [in] count   Number of them, at least one.
 * @param [in] words   The copy that nprdma_page_load_all() filled.
 *
 * @return 1 if all are equal, else 0.
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
 * Give a page other bits, unless the word has changed meanwhile. For example,
 * an emulated NIC marks a page absent that it could not access.
 *
 * @param [in] state  The word.
 * @param [in] word   The word on which the decision is based.
 * @param [in] bits   New bits.
 *
 * @return 1 if the word has changed to the new bits, else 0.
 */
NPRDMA_PAGE_INLINE int nprdma_page_change(nprdma_page_state_t *state,
                                          uint32_t word, uint32_t bits)
{
    return __atomic_compare_exchange_n((uint32_t*)state, &word,
                                       nprdma_page_next(word, bits), 0,
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/**
 * Clear bits of a page. A page that has none of them is left as it is.
 *
 * @param [in] state  The word.
 * @param [in] bits   Bits to clear.
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

/**
 * Announce that states will be changed. Peers read states, so another CPU has
 * their cache lines as well. Atomic operations wait for one such line after the
 * other; this asks for all of them at once. Changes nothing.
 *
 * @param [in] states  The first of them.
 * @param [in] count   Number of them.
 */
NPRDMA_PAGE_INLINE void
nprdma_page_prefetchw(const nprdma_page_state_t *states, size_t count)
{
    size_t i;

    for (i = 0; i < count; i += NPRDMA_PAGE_CPU_LINE / sizeof(*states)) {
#ifdef __x86_64__
        /* By name: unless told that all CPUs have it, compilers ask for a line
         * to be read. CPUs that do not have it execute it as a NOP. */
        __asm__ volatile("prefetchw %0" : : "m" (states[i]));
#else
        __builtin_prefetch((const void*)&states[i], 1);
#endif
    }
}

/**
 * Change the words of two neighbouring pages at once, unless one of them has
 * changed meanwhile: for two pages that both change, in half the time of
 * nprdma_page_change().
 *
 * @param [in] states  The first one; nprdma_page_begins_pair() holds.
 * @param [in] words   Both words on which the decision is based.
 * @param [in] next    Both new words.
 *
 * @return 1 if both words have changed, 0 if none has.
 */
NPRDMA_PAGE_INLINE int nprdma_page_change_pair(nprdma_page_state_t *states,
                                               const uint32_t *words,
                                               const uint32_t *next)
{
    uint64_t pair, next_pair;

    memcpy(&pair, words, sizeof(pair));
    memcpy(&next_pair, next, sizeof(next_pair));
    return __atomic_compare_exchange_n((nprdma_page_pair_t*)states, &pair,
                                       next_pair, 0, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

/** As nprdma_page_clear(), for the two pages that begin with a pair. @return
 * How many of them had one of the bits. */
NPRDMA_PAGE_INLINE size_t nprdma_page_clear_pair(nprdma_page_state_t *states,
                                                 uint32_t bits)
{
    uint32_t words[2], next[2];
    size_t count, i;
    uint64_t pair;

    do {
        pair  = nprdma_page_load_pair(states);
        count = 0;
        memcpy(words, &pair, sizeof(pair));
        for (i = 0; i < 2; ++i) {
            next[i] = words[i];
            if (words[i] & bits) {
                next[i] = nprdma_page_next(words[i], words[i] &
                                           NPRDMA_PAGE_BITS & ~bits);
                ++count;
            }
        }
    } while ((count > 0) && !nprdma_page_change_pair(states, words, next));

    return count;
}

/**
 * Clear bits of neighbouring pages, of each as nprdma_page_clear() does, but in
 * pairs.
 *
 * @param [in] states  The first of them.
 * @param [in] count   Number of them.
 * @param [in] bits    Bits to clear.
 *
 * @return How many pages had one of the bits.
 */
NPRDMA_PAGE_INLINE size_t nprdma_page_clear_all(nprdma_page_state_t *states,
                                                size_t count, uint32_t bits)
{
    size_t cleared = 0;
    size_t i       = 0;

    nprdma_page_prefetchw(states, count);
    while (i < count) {
        if (nprdma_page_begins_pair(&states[i]) && ((i + 2) <= count)) {
            cleared += nprdma_page_clear_pair(&states[i], bits);
            i       += 2;
        } else {
            cleared += !!(nprdma_page_clear(&states[i], bits) & bits);
            ++i;
        }
    }
    return cleared;
}

#endif
