/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_lazy.h"
#include "nprdma_place.h"

#include <sched.h>
#include <stdatomic.h>


typedef struct nprdma_lazy_slot {
    nprdma_place_t   place;
    _Atomic uint64_t order; /* Higher: kept later */
} nprdma_lazy_slot_t;


struct nprdma_lazy {
    const nprdma_lazy_ops_t *ops;
    void                    *arg;   /* Of ops */
    size_t                   limit; /* Of bytes */
    _Atomic uint32_t         paused;
    _Atomic uint32_t         num_blocks; /* Places that were ever used */
    _Atomic size_t           bytes;      /* In slots that are not free */
    _Atomic uint64_t         order;
    _Atomic uint64_t         kept;       /* Counters */
    _Atomic uint64_t         reused;
    _Atomic uint64_t         dropped;
    _Atomic uint64_t         tainted;
    nprdma_lazy_slot_t       slots[NPRDMA_LAZY_NUM_SLOTS];
    nprdma_place_t           blocks[NPRDMA_LAZY_NUM_BLOCKS];
};


/* ---- blocks ---- */

/* @return Nonzero if a block was exactly the span. All others are tainted. */
NPRDMA_HOOK
static int nprdma_lazy_unlist(nprdma_lazy_t *lazy, nprdma_span_t span)
{
    uint32_t num_blocks = atomic_load(&lazy->num_blocks);
    int is_exact        = 0;
    nprdma_place_t *place;
    nprdma_span_t block;
    uintptr_t word;
    uint32_t i;

    for (i = 0; i < num_blocks; ++i) {
        place = &lazy->blocks[i];
        word  = nprdma_place_read(place, &block);
        if ((nprdma_place_state(word) != NPRDMA_PLACE_FULL) ||
            !nprdma_span_overlaps(block, span) ||
            !nprdma_place_claim(place, word)) {
            continue;
        }

        nprdma_place_unclaim(place, NPRDMA_PLACE_FREE);
        if ((block.start == span.start) && (block.end == span.end)) {
            is_exact = 1;
        } else {
            atomic_fetch_add(&lazy->tainted, 1);
        }
    }

    return is_exact;
}

NPRDMA_HOOK
static void nprdma_lazy_list(nprdma_lazy_t *lazy, nprdma_span_t span)
{
    nprdma_place_t *place;
    uint32_t num_blocks, i;
    uintptr_t word;

    for (i = 0; i < NPRDMA_LAZY_NUM_BLOCKS; ++i) {
        place = &lazy->blocks[i];
        word  = atomic_load(&place->word);
        if ((nprdma_place_state(word) == NPRDMA_PLACE_FREE) &&
            nprdma_place_claim(place, word)) {
            break;
        }
    }
    if (i == NPRDMA_LAZY_NUM_BLOCKS) {
        return;
    }

    num_blocks = atomic_load(&lazy->num_blocks);
    while ((num_blocks <= i) &&
           !atomic_compare_exchange_weak(&lazy->num_blocks, &num_blocks,
                                         i + 1)) {
    }
    nprdma_place_set(place, span);
    nprdma_place_unclaim(place, NPRDMA_PLACE_FULL);
}

NPRDMA_HOOK
static int nprdma_lazy_fits(const nprdma_lazy_t *lazy, nprdma_span_t span)
{
    size_t length = span.end - span.start;

    return (span.start < span.end) && (length >= NPRDMA_LAZY_MIN) &&
           (length <= lazy->limit / 2);
}

NPRDMA_HOOK
void nprdma_lazy_taint(nprdma_lazy_t *lazy, nprdma_span_t span)
{
    if (nprdma_lazy_unlist(lazy, span)) {
        atomic_fetch_add(&lazy->tainted, 1);
    }
}

NPRDMA_HOOK
void nprdma_lazy_mapped(nprdma_lazy_t *lazy, nprdma_span_t span)
{
    nprdma_lazy_slot_t *slot;
    nprdma_span_t block;
    uintptr_t word;
    unsigned i;

    nprdma_lazy_taint(lazy, span);
    if (atomic_load(&lazy->bytes) == 0) {
        return;
    }

    for (i = 0; i < NPRDMA_LAZY_NUM_SLOTS; ++i) {
        slot = &lazy->slots[i];
        word = nprdma_place_read(&slot->place, &block);
        if ((nprdma_place_state(word) == NPRDMA_PLACE_FULL) &&
            nprdma_span_overlaps(block, span) &&
            nprdma_place_claim(&slot->place, word)) {
            nprdma_place_unclaim(&slot->place, NPRDMA_PLACE_FREE);
            atomic_fetch_sub(&lazy->bytes, block.end - block.start);
            atomic_fetch_add(&lazy->dropped, 1);
        }
    }
}

NPRDMA_HOOK
void nprdma_lazy_made(nprdma_lazy_t *lazy, nprdma_span_t span)
{
    nprdma_lazy_mapped(lazy, span);
    if (nprdma_lazy_fits(lazy, span)) {
        nprdma_lazy_list(lazy, span);
    }
}


/* ---- slots ---- */

/* The slot stays claimed until its block is unmapped: a call that maps other
 * memory there waits for that, see nprdma_lazy_forget() */
NPRDMA_HOOK
static int nprdma_lazy_release(nprdma_lazy_t *lazy, nprdma_lazy_slot_t *slot,
                               int must)
{
    nprdma_span_t block;

    nprdma_place_read(&slot->place, &block);
    if ((lazy->ops->release(lazy->arg, block) == NPRDMA_LAZY_REFUSED) &&
        !must) {
        nprdma_place_unclaim(&slot->place, NPRDMA_PLACE_FULL);
        return 0;
    }

    nprdma_place_unclaim(&slot->place, NPRDMA_PLACE_FREE);
    atomic_fetch_sub(&lazy->bytes, block.end - block.start);
    atomic_fetch_add(&lazy->dropped, 1);
    return 1;
}

NPRDMA_HOOK
static void nprdma_lazy_forget_slot(nprdma_lazy_t *lazy,
                                    nprdma_lazy_slot_t *slot,
                                    nprdma_span_t span)
{
    nprdma_span_t block;
    uintptr_t word;

    for (;;) {
        word = nprdma_place_read(&slot->place, &block);
        if ((nprdma_place_state(word) == NPRDMA_PLACE_FREE) ||
            !nprdma_span_overlaps(block, span)) {
            return;
        }

        if (word == nprdma_place_mine()) {
            return; /* A signal handler has interrupted the owner */
        } else if (nprdma_place_state(word) == NPRDMA_PLACE_CLAIMED) {
            sched_yield();
        } else if (nprdma_place_claim(&slot->place, word)) {
            nprdma_lazy_release(lazy, slot, 1);
            return;
        }
    }
}

NPRDMA_HOOK
void nprdma_lazy_forget(nprdma_lazy_t *lazy, nprdma_span_t span)
{
    unsigned i;

    /* `bytes` counts a block until it is unmapped */
    for (i = 0; (i < NPRDMA_LAZY_NUM_SLOTS) &&
                (atomic_load(&lazy->bytes) > 0); ++i) {
        nprdma_lazy_forget_slot(lazy, &lazy->slots[i], span);
    }
}

/* @return The slot that was filled first (or last), of a length if that is not
 *         0, with its word; NULL if there is none */
NPRDMA_HOOK
static nprdma_lazy_slot_t *
nprdma_lazy_find(nprdma_lazy_t *lazy, size_t length, int newest,
                 uintptr_t *word_p)
{
    nprdma_lazy_slot_t *found = NULL;
    uint64_t best             = 0;
    nprdma_lazy_slot_t *slot;
    nprdma_span_t block;
    uint64_t order;
    uintptr_t word;
    unsigned i;

    for (i = 0; i < NPRDMA_LAZY_NUM_SLOTS; ++i) {
        slot  = &lazy->slots[i];
        word  = nprdma_place_read(&slot->place, &block);
        order = atomic_load(&slot->order);
        if ((nprdma_place_state(word) == NPRDMA_PLACE_FULL) &&
            ((length == 0) || (block.end - block.start == length)) &&
            ((found == NULL) || (newest == (order > best)))) {
            found   = slot;
            best    = order;
            *word_p = word;
        }
    }

    return found;
}

/* @return Nonzero unless there is no block that can be released */
NPRDMA_HOOK
static int nprdma_lazy_drop_oldest(nprdma_lazy_t *lazy)
{
    nprdma_lazy_slot_t *slot;
    uintptr_t word;

    do {
        slot = nprdma_lazy_find(lazy, 0, 0, &word);
        if (slot == NULL) {
            return 0;
        }
    } while (!nprdma_place_claim(&slot->place, word));

    return nprdma_lazy_release(lazy, slot, 0);
}

/* Count a block before it is kept, so that the limit always holds */
NPRDMA_HOOK
static int nprdma_lazy_reserve(nprdma_lazy_t *lazy, size_t length)
{
    size_t bytes = atomic_load(&lazy->bytes);

    for (;;) {
        if (bytes + length > lazy->limit) {
            if (!nprdma_lazy_drop_oldest(lazy)) {
                return 0;
            }
            bytes = atomic_load(&lazy->bytes);
        } else if (atomic_compare_exchange_weak(&lazy->bytes, &bytes,
                                                bytes + length)) {
            return 1;
        }
    }
}

NPRDMA_HOOK
static nprdma_lazy_slot_t *nprdma_lazy_take_free(nprdma_lazy_t *lazy)
{
    nprdma_lazy_slot_t *slot;
    uintptr_t word;
    unsigned i;

    do {
        for (i = 0; i < NPRDMA_LAZY_NUM_SLOTS; ++i) {
            slot = &lazy->slots[i];
            word = atomic_load(&slot->place.word);
            if ((nprdma_place_state(word) == NPRDMA_PLACE_FREE) &&
                nprdma_place_claim(&slot->place, word)) {
                return slot;
            }
        }
    } while (nprdma_lazy_drop_oldest(lazy));

    return NULL;
}

NPRDMA_HOOK
static int nprdma_lazy_fill(nprdma_lazy_t *lazy, nprdma_lazy_slot_t *slot,
                            nprdma_span_t span)
{
    nprdma_place_set(&slot->place, span);
    if (lazy->ops->close(lazy->arg, span) != NPRDMA_LAZY_DONE) {
        nprdma_place_unclaim(&slot->place, NPRDMA_PLACE_FREE);
        return 0;
    }

    atomic_store(&slot->order, atomic_fetch_add(&lazy->order, 1));
    atomic_fetch_add(&lazy->kept, 1);
    nprdma_place_unclaim(&slot->place, NPRDMA_PLACE_FULL);
    return 1;
}

NPRDMA_HOOK
int nprdma_lazy_keep(nprdma_lazy_t *lazy, nprdma_span_t span)
{
    size_t length = span.end - span.start;
    nprdma_lazy_slot_t *slot;

    if (!nprdma_lazy_unlist(lazy, span) || !nprdma_lazy_fits(lazy, span) ||
        (atomic_load(&lazy->paused) > 0) ||
        !nprdma_lazy_reserve(lazy, length)) {
        return 0;
    }

    slot = nprdma_lazy_take_free(lazy);
    if ((slot == NULL) || !nprdma_lazy_fill(lazy, slot, span)) {
        atomic_fetch_sub(&lazy->bytes, length);
        return 0;
    }

    /* Either this sees the pause, or the pause has seen the slot */
    if (atomic_load(&lazy->paused) > 0) {
        nprdma_lazy_forget(lazy, span);
    }
    return 1;
}

NPRDMA_HOOK
uintptr_t nprdma_lazy_reuse(nprdma_lazy_t *lazy, size_t length)
{
    nprdma_lazy_result_t result;
    nprdma_lazy_slot_t *slot;
    nprdma_span_t block;
    uintptr_t word;

    if (atomic_load(&lazy->bytes) < length) {
        return 0;
    }

    do {
        slot = nprdma_lazy_find(lazy, length, 1, &word);
        if (slot == NULL) {
            return 0;
        }
    } while (!nprdma_place_claim(&slot->place, word));

    nprdma_place_read(&slot->place, &block);
    result = lazy->ops->open(lazy->arg, block);
    if (result == NPRDMA_LAZY_REFUSED) {
        nprdma_lazy_release(lazy, slot, 0);
        return 0;
    }

    nprdma_place_unclaim(&slot->place, NPRDMA_PLACE_FREE);
    atomic_fetch_sub(&lazy->bytes, length);
    atomic_fetch_add((result == NPRDMA_LAZY_DONE) ? &lazy->reused :
                                                    &lazy->dropped, 1);
    return (result == NPRDMA_LAZY_DONE) ? block.start : 0;
}

NPRDMA_HOOK
unsigned nprdma_lazy_drop(nprdma_lazy_t *lazy)
{
    unsigned count = 0;
    nprdma_lazy_slot_t *slot;
    nprdma_span_t block;
    uintptr_t word;
    unsigned i;

    for (i = 0; i < NPRDMA_LAZY_NUM_SLOTS; ++i) {
        slot = &lazy->slots[i];
        word = nprdma_place_read(&slot->place, &block);
        if ((nprdma_place_state(word) == NPRDMA_PLACE_FULL) &&
            nprdma_place_claim(&slot->place, word)) {
            count += nprdma_lazy_release(lazy, slot, 0);
        }
    }

    return count;
}

void nprdma_lazy_pause(nprdma_lazy_t *lazy)
{
    /* Waits for blocks that other threads keep at this moment */
    atomic_fetch_add(&lazy->paused, 1);
    nprdma_lazy_forget(lazy, nprdma_span(0, UINTPTR_MAX));
}

void nprdma_lazy_resume(nprdma_lazy_t *lazy)
{
    atomic_fetch_sub(&lazy->paused, 1);
}

void nprdma_lazy_init(nprdma_lazy_t *lazy, size_t limit,
                      const nprdma_lazy_ops_t *ops, void *arg)
{
    unsigned i;

    lazy->ops   = ops;
    lazy->arg   = arg;
    lazy->limit = limit;
    atomic_store(&lazy->paused, 0);
    for (i = 0; i < NPRDMA_LAZY_NUM_BLOCKS; ++i) {
        atomic_store(&lazy->blocks[i].word, NPRDMA_PLACE_FREE);
    }
    atomic_store(&lazy->num_blocks, 0);
}

size_t nprdma_lazy_size(void)
{
    return sizeof(nprdma_lazy_t);
}

void nprdma_lazy_query(nprdma_lazy_t *lazy, nprdma_lazy_stats_t *stats)
{
    stats->bytes   = atomic_load(&lazy->bytes);
    stats->kept    = atomic_load(&lazy->kept);
    stats->reused  = atomic_load(&lazy->reused);
    stats->dropped = atomic_load(&lazy->dropped);
    stats->tainted = atomic_load(&lazy->tainted);
}
