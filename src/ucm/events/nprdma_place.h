/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PLACE_H_
#define NPRDMA_PLACE_H_

#include "nprdma_hook.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
 * A place of a table that memory hooks use. A place is claimed by
 * compare-and-swap: nothing here waits or allocates, and all of it may run in
 * several threads at once, and in a signal handler that has interrupted one of
 * them.
 */


/** States of a place, in the lowest bits of its word */
enum {
    NPRDMA_PLACE_FREE,
    NPRDMA_PLACE_CLAIMED, /* One thread owns it */
    NPRDMA_PLACE_FULL,
    NPRDMA_PLACE_STATES = 3
};

/* Step of the count in a word */
#define NPRDMA_PLACE_COUNT 4


/**
 * A span, and a word. That has the state in its lowest two bits, and above them
 * the thread that has claimed the place, or a count that differs each time the
 * place is used again. All zeros: free.
 */
typedef struct nprdma_place {
    _Atomic uintptr_t word;
    _Atomic uintptr_t count; /* Of the thread that has claimed the place */
    _Atomic uintptr_t start;
    _Atomic uintptr_t end;
} nprdma_place_t;


/** @return NPRDMA_PLACE_xx of a word. */
NPRDMA_HOOK
static inline unsigned nprdma_place_state(uintptr_t word)
{
    return word & NPRDMA_PLACE_STATES;
}

/** @return The word of a place that this thread has claimed. One word has both,
 * so that a signal handler that interrupts the thread recognizes its own
 * claim. */
NPRDMA_HOOK
static inline uintptr_t nprdma_place_mine(void)
{
    return ((uintptr_t)pthread_self() & ~(uintptr_t)NPRDMA_PLACE_STATES) |
           NPRDMA_PLACE_CLAIMED;
}

/** @return Nonzero if the place still had the word, and is claimed now. */
NPRDMA_HOOK
static inline int nprdma_place_claim(nprdma_place_t *place, uintptr_t word)
{
    uintptr_t expected = word;

    if (!atomic_compare_exchange_strong(&place->word, &expected,
                                        nprdma_place_mine())) {
        return 0;
    }

    atomic_store_explicit(&place->count,
                          (word & ~(uintptr_t)NPRDMA_PLACE_STATES) +
                          NPRDMA_PLACE_COUNT, memory_order_relaxed);
    return 1;
}

/** End the claim of a place. Sequentially consistent: a caller may look behind
 * it for what others have asked for meanwhile. */
NPRDMA_HOOK
static inline void nprdma_place_unclaim(nprdma_place_t *place, unsigned state)
{
    atomic_store(&place->word,
                 atomic_load_explicit(&place->count, memory_order_relaxed) |
                 state);
}

/** Set the span of a place that is claimed. Not visible before the claim. */
NPRDMA_HOOK
static inline void nprdma_place_set(nprdma_place_t *place, nprdma_span_t span)
{
    atomic_store_explicit(&place->start, span.start, memory_order_release);
    atomic_store_explicit(&place->end, span.end, memory_order_release);
}

/** @return The word of a place whose span is *span_p; it may be claimed. */
NPRDMA_HOOK
static inline uintptr_t nprdma_place_read(nprdma_place_t *place,
                                          nprdma_span_t *span_p)
{
    uintptr_t word;

    do {
        word          = atomic_load(&place->word);
        span_p->start = atomic_load_explicit(&place->start,
                                             memory_order_acquire);
        span_p->end   = atomic_load_explicit(&place->end, memory_order_acquire);
    } while (atomic_load(&place->word) != word);

    return word;
}

END_C_DECLS

#endif
