/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_forecast.h"
#include "nprdma_place.h"

#include <sched.h>
#include <stdatomic.h>


/* A buffer may begin behind the header of an allocator, and end before the last
 * byte: an operation fills the block if it leaves out less than this part */
#define NPRDMA_FORECAST_LEFT_OUT 16

/* Milliseconds for which a hook waits for a thread that brings pages in. Long,
 * because that may have no CPU for a while. */
#define NPRDMA_FORECAST_WAIT 5000

/* A word of `lengths` has the length in bytes, and the streak in its lowest
 * bits */
#define NPRDMA_FORECAST_STREAK_BITS 8
#define NPRDMA_FORECAST_STREAK_MAX  (((uint64_t)1 << \
                                      NPRDMA_FORECAST_STREAK_BITS) - 1)


enum {
    NPRDMA_FORECAST_EXPECTED = 1 << 0,
    NPRDMA_FORECAST_DUE      = 1 << 1, /* Pages are to be brought in */
    NPRDMA_FORECAST_FILLED   = 1 << 2,
    NPRDMA_FORECAST_NOTED    = 1 << 3 /* To be filled by the thread that has
                                       * claimed the place */
};

typedef struct nprdma_forecast_block {
    nprdma_place_t    place;
    _Atomic uint32_t  flags; /* Of the thread that has claimed the place, but
                              * for NPRDMA_FORECAST_NOTED */
    _Atomic uintptr_t next;  /* First byte that has not been brought in */
    _Atomic uint32_t  lost;  /* It was taken while it was claimed */
} nprdma_forecast_block_t;


struct nprdma_forecast {
    _Atomic uint32_t        is_used;    /* An operation was reported. Until then
                                         * hooks do nothing. */
    _Atomic uint32_t        num_blocks; /* Places that were ever used */
    _Atomic uint32_t        num_due;
    _Atomic size_t          expected;   /* Bytes of blocks that are expected to
                                         * be filled, and are not yet */
    _Atomic size_t          filled;     /* Bytes of blocks that are filled */
    _Atomic size_t          peak;       /* Highest value of `filled` */
    _Atomic uint32_t        victim;     /* Of `lengths`, the next one */
    _Atomic uint64_t        num_expected; /* Counters */
    _Atomic uint64_t        num_unused;
    _Atomic uint64_t        lengths[NPRDMA_FORECAST_NUM_LENGTHS];
    nprdma_forecast_block_t blocks[NPRDMA_FORECAST_NUM_BLOCKS];
};


/* ---- lengths ---- */

NPRDMA_HOOK
static _Atomic uint64_t *nprdma_forecast_find(nprdma_forecast_t *forecast,
                                              size_t length)
{
    unsigned i;

    for (i = 0; i < NPRDMA_FORECAST_NUM_LENGTHS; ++i) {
        if ((atomic_load(&forecast->lengths[i]) >>
             NPRDMA_FORECAST_STREAK_BITS) == length) {
            return &forecast->lengths[i];
        }
    }

    return NULL;
}

NPRDMA_HOOK
static unsigned nprdma_forecast_streak(nprdma_forecast_t *forecast,
                                       size_t length)
{
    _Atomic uint64_t *word = nprdma_forecast_find(forecast, length);

    return (word == NULL) ? 0 : atomic_load(word) & NPRDMA_FORECAST_STREAK_MAX;
}

/* A block has been unmapped. Two threads may enter one length twice, of which
 * the second is never found, and is replaced some time. */
NPRDMA_HOOK
static void nprdma_forecast_learn(nprdma_forecast_t *forecast, size_t length,
                                  int is_filled)
{
    _Atomic uint64_t *word = nprdma_forecast_find(forecast, length);
    uint64_t before, streak;

    if (word == NULL) {
        if (is_filled) {
            word = &forecast->lengths[atomic_fetch_add(&forecast->victim, 1) %
                                      NPRDMA_FORECAST_NUM_LENGTHS];
            atomic_store(word, ((uint64_t)length <<
                                NPRDMA_FORECAST_STREAK_BITS) + 1);
        }
        return;
    }

    before = atomic_load(word);
    do {
        if ((before >> NPRDMA_FORECAST_STREAK_BITS) != length) {
            return; /* Replaced by another thread */
        }

        streak = before & NPRDMA_FORECAST_STREAK_MAX;
        streak = !is_filled ? 0 :
                 (streak == NPRDMA_FORECAST_STREAK_MAX) ? streak : streak + 1;
    } while (!atomic_compare_exchange_weak(word, &before,
                                           ((uint64_t)length <<
                                            NPRDMA_FORECAST_STREAK_BITS) +
                                           streak));
}


/* ---- blocks ---- */

NPRDMA_HOOK
static size_t nprdma_forecast_length(nprdma_span_t span)
{
    return span.end - span.start;
}

/* The block is claimed */
NPRDMA_HOOK
static void nprdma_forecast_not_due(nprdma_forecast_t *forecast,
                                    nprdma_forecast_block_t *block)
{
    if (atomic_load(&block->flags) & NPRDMA_FORECAST_DUE) {
        atomic_fetch_and(&block->flags, ~(uint32_t)NPRDMA_FORECAST_DUE);
        atomic_fetch_sub(&forecast->num_due, 1);
    }
}

/* The block is claimed */
NPRDMA_HOOK
static void nprdma_forecast_fill(nprdma_forecast_t *forecast,
                                 nprdma_forecast_block_t *block, size_t length)
{
    uint32_t flags = atomic_fetch_or(&block->flags, NPRDMA_FORECAST_FILLED);
    size_t filled, peak;

    atomic_fetch_and(&block->flags, ~(uint32_t)NPRDMA_FORECAST_NOTED);
    nprdma_forecast_not_due(forecast, block);
    if (flags & NPRDMA_FORECAST_FILLED) {
        return;
    }

    if (flags & NPRDMA_FORECAST_EXPECTED) {
        atomic_fetch_sub(&forecast->expected, length);
    }
    filled = atomic_fetch_add(&forecast->filled, length) + length;
    peak   = atomic_load(&forecast->peak);
    while ((peak < filled) &&
           !atomic_compare_exchange_weak(&forecast->peak, &peak, filled)) {
    }
}

/* The block is claimed, and is not known any more */
NPRDMA_HOOK
static void nprdma_forecast_free(nprdma_forecast_t *forecast,
                                 nprdma_forecast_block_t *block)
{
    uint32_t flags = atomic_load(&block->flags);
    size_t length  = atomic_load(&block->place.end) -
                     atomic_load(&block->place.start);

    nprdma_forecast_not_due(forecast, block);
    if (flags & NPRDMA_FORECAST_FILLED) {
        atomic_fetch_sub(&forecast->filled, length);
    } else if (flags & NPRDMA_FORECAST_EXPECTED) {
        atomic_fetch_sub(&forecast->expected, length);
    }
    nprdma_place_unclaim(&block->place, NPRDMA_PLACE_FREE);
}

/*
 * Claim a block if it overlaps a span. Waits for another thread that has
 * claimed it. If that takes too long, or if this is a signal handler that has
 * interrupted it, the other one frees the block.
 */
NPRDMA_HOOK
static int nprdma_forecast_seize(nprdma_forecast_block_t *block,
                                 nprdma_span_t span, nprdma_span_t *block_p)
{
    uint64_t begun = 0;
    uintptr_t word;

    for (;;) {
        word = nprdma_place_read(&block->place, block_p);
        if ((nprdma_place_state(word) == NPRDMA_PLACE_FREE) ||
            !nprdma_span_overlaps(*block_p, span)) {
            return 0;
        }

        if (nprdma_place_state(word) == NPRDMA_PLACE_FULL) {
            if (nprdma_place_claim(&block->place, word)) {
                return 1;
            }
            continue;
        }

        begun = (begun == 0) ? nprdma_hook_now() : begun;
        if ((word == nprdma_place_mine()) ||
            (nprdma_hook_now() - begun > NPRDMA_FORECAST_WAIT)) {
            atomic_store(&block->lost, 1);
            return 0;
        }
        sched_yield();
    }
}

NPRDMA_HOOK
void nprdma_forecast_taken(nprdma_forecast_t *forecast, nprdma_span_t taken,
                           nprdma_span_t gone)
{
    uint32_t num_blocks = atomic_load(&forecast->num_blocks);
    nprdma_forecast_block_t *block;
    nprdma_span_t span;
    uint32_t flags, i;

    for (i = 0; i < num_blocks; ++i) {
        block = &forecast->blocks[i];
        if (!nprdma_forecast_seize(block, taken, &span)) {
            continue;
        }

        if (atomic_load(&block->flags) & NPRDMA_FORECAST_NOTED) {
            nprdma_forecast_fill(forecast, block, nprdma_forecast_length(span));
        }
        flags = atomic_load(&block->flags) &
                (NPRDMA_FORECAST_EXPECTED | NPRDMA_FORECAST_FILLED);
        if (flags == NPRDMA_FORECAST_EXPECTED) {
            atomic_fetch_add(&forecast->num_unused, 1);
        }
        if (((span.start == gone.start) && (span.end == gone.end)) ||
            (flags == NPRDMA_FORECAST_EXPECTED)) {
            nprdma_forecast_learn(forecast, nprdma_forecast_length(span),
                                  flags & NPRDMA_FORECAST_FILLED);
        }
        nprdma_forecast_free(forecast, block);
    }
}

/* @return A place that is claimed, or NULL if there is none */
NPRDMA_HOOK
static nprdma_forecast_block_t *
nprdma_forecast_take_free(nprdma_forecast_t *forecast)
{
    nprdma_forecast_block_t *block;
    uint32_t num_blocks, i;
    uintptr_t word;

    for (i = 0; i < NPRDMA_FORECAST_NUM_BLOCKS; ++i) {
        block = &forecast->blocks[i];
        word  = atomic_load(&block->place.word);
        if ((nprdma_place_state(word) == NPRDMA_PLACE_FREE) &&
            nprdma_place_claim(&block->place, word)) {
            num_blocks = atomic_load(&forecast->num_blocks);
            while ((num_blocks <= i) &&
                   !atomic_compare_exchange_weak(&forecast->num_blocks,
                                                 &num_blocks, i + 1)) {
            }
            return block;
        }
    }

    return NULL;
}

/* The block is claimed. Expect it if it may be: the sum of such blocks never
 * exceeds the peak. */
NPRDMA_HOOK
static void nprdma_forecast_expect(nprdma_forecast_t *forecast,
                                   nprdma_forecast_block_t *block,
                                   size_t length)
{
    size_t expected = atomic_load(&forecast->expected);

    if (nprdma_forecast_streak(forecast, length) < NPRDMA_FORECAST_STREAK) {
        return;
    }

    do {
        if (expected + atomic_load(&forecast->filled) + length >
            atomic_load(&forecast->peak)) {
            return;
        }
    } while (!atomic_compare_exchange_weak(&forecast->expected, &expected,
                                           expected + length));

    atomic_fetch_or(&block->flags,
                    NPRDMA_FORECAST_EXPECTED | NPRDMA_FORECAST_DUE);
    atomic_fetch_add(&forecast->num_expected, 1);
    atomic_fetch_add(&forecast->num_due, 1);
}

NPRDMA_HOOK
void nprdma_forecast_mapped(nprdma_forecast_t *forecast, nprdma_span_t span,
                            int is_plain)
{
    nprdma_forecast_block_t *block;

    if (!atomic_load_explicit(&forecast->is_used, memory_order_relaxed)) {
        return;
    }

    /* Left by a call that no hook has seen */
    nprdma_forecast_taken(forecast, span, nprdma_span(0, 0));
    if (!is_plain || (nprdma_forecast_length(span) < NPRDMA_FORECAST_MIN)) {
        return;
    }

    block = nprdma_forecast_take_free(forecast);
    if (block == NULL) {
        return;
    }

    nprdma_place_set(&block->place, span);
    atomic_store_explicit(&block->next, span.start, memory_order_release);
    atomic_store_explicit(&block->lost, 0, memory_order_release);
    atomic_store_explicit(&block->flags, 0, memory_order_release);
    nprdma_forecast_expect(forecast, block, nprdma_forecast_length(span));
    nprdma_place_unclaim(&block->place, NPRDMA_PLACE_FULL);
}

/* End a claim that is not for good. What others ask of the owner is looked at
 * behind the end, because they may do so until then. */
NPRDMA_HOOK
static void nprdma_forecast_return(nprdma_forecast_t *forecast,
                                   nprdma_forecast_block_t *block)
{
    nprdma_span_t span;
    uintptr_t word;

    for (;;) {
        nprdma_place_unclaim(&block->place, NPRDMA_PLACE_FULL);
        if (!atomic_load(&block->lost) &&
            !(atomic_load(&block->flags) & NPRDMA_FORECAST_NOTED)) {
            return;
        }

        word = nprdma_place_read(&block->place, &span);
        if ((nprdma_place_state(word) != NPRDMA_PLACE_FULL) ||
            !nprdma_place_claim(&block->place, word)) {
            return; /* Another thread has it, and does this */
        }

        if (atomic_load(&block->lost)) {
            nprdma_forecast_free(forecast, block);
            return;
        }
        nprdma_forecast_fill(forecast, block, nprdma_forecast_length(span));
    }
}

NPRDMA_HOOK
void nprdma_forecast_filled(nprdma_forecast_t *forecast, nprdma_span_t span)
{
    uint32_t num_blocks = atomic_load(&forecast->num_blocks);
    nprdma_forecast_block_t *block;
    nprdma_span_t whole;
    uintptr_t word;
    size_t length;
    uint32_t i;

    atomic_store_explicit(&forecast->is_used, 1, memory_order_relaxed);
    for (i = 0; i < num_blocks; ++i) {
        block  = &forecast->blocks[i];
        word   = nprdma_place_read(&block->place, &whole);
        length = nprdma_forecast_length(whole);
        if ((nprdma_place_state(word) == NPRDMA_PLACE_FREE) ||
            (span.start < whole.start) || (span.end > whole.end) ||
            (length - nprdma_forecast_length(span) >=
             length / NPRDMA_FORECAST_LEFT_OUT)) {
            continue;
        }

        if (atomic_load(&block->flags) & NPRDMA_FORECAST_FILLED) {
            return; /* A buffer that is used again costs nothing more */
        }

        if ((nprdma_place_state(word) == NPRDMA_PLACE_FULL) &&
            nprdma_place_claim(&block->place, word)) {
            nprdma_forecast_fill(forecast, block, length);
        } else {
            /* Another thread has the block, and brings its pages in. If it is
             * another block by now, this is a wrong forecast at worst. */
            atomic_fetch_or(&block->flags, NPRDMA_FORECAST_NOTED);
            word = atomic_load(&block->place.word);
            if ((nprdma_place_state(word) != NPRDMA_PLACE_FULL) ||
                !nprdma_place_claim(&block->place, word)) {
                return;
            }
        }
        nprdma_forecast_return(forecast, block);
        return;
    }
}

/* A block is not expected any more: that may make room for another one, of a
 * program that maps the buffer to send from before the one to receive into */
NPRDMA_HOOK
static void nprdma_forecast_expect_others(nprdma_forecast_t *forecast)
{
    uint32_t num_blocks = atomic_load(&forecast->num_blocks);
    nprdma_forecast_block_t *block;
    nprdma_span_t whole;
    uintptr_t word;
    uint32_t i;

    for (i = 0; i < num_blocks; ++i) {
        block = &forecast->blocks[i];
        word  = nprdma_place_read(&block->place, &whole);
        if ((nprdma_place_state(word) == NPRDMA_PLACE_FULL) &&
            (atomic_load(&block->flags) == 0) &&
            nprdma_place_claim(&block->place, word)) {
            nprdma_forecast_expect(forecast, block,
                                   nprdma_forecast_length(whole));
            nprdma_forecast_return(forecast, block);
        }
    }
}

NPRDMA_HOOK
void nprdma_forecast_shown(nprdma_forecast_t *forecast, nprdma_span_t span)
{
    uint32_t num_blocks = atomic_load(&forecast->num_blocks);
    uint32_t flags      = 0;
    nprdma_forecast_block_t *block;
    nprdma_span_t whole;
    uintptr_t word;
    uint32_t i;

    for (i = 0; i < num_blocks; ++i) {
        block = &forecast->blocks[i];
        word  = nprdma_place_read(&block->place, &whole);
        if ((nprdma_place_state(word) != NPRDMA_PLACE_FULL) ||
            !nprdma_span_overlaps(whole, span) ||
            (atomic_load(&block->flags) &
             (NPRDMA_FORECAST_FILLED | NPRDMA_FORECAST_NOTED)) ||
            !nprdma_place_claim(&block->place, word)) {
            continue; /* What was received may go on to others */
        }

        flags |= atomic_load(&block->flags);
        nprdma_forecast_free(forecast, block);
    }

    if (flags & NPRDMA_FORECAST_EXPECTED) {
        nprdma_forecast_expect_others(forecast);
    }
}


/* ---- bringing in ---- */

int nprdma_forecast_peek(nprdma_forecast_t *forecast,
                         nprdma_forecast_piece_t *piece)
{
    nprdma_forecast_block_t *block;
    uint32_t num_blocks;
    uintptr_t next;

    if (atomic_load_explicit(&forecast->num_due, memory_order_relaxed) == 0) {
        return 0;
    }

    num_blocks = atomic_load(&forecast->num_blocks);
    for (piece->index = 0; piece->index < num_blocks; ++piece->index) {
        block       = &forecast->blocks[piece->index];
        piece->word = nprdma_place_read(&block->place, &piece->block);
        next        = atomic_load(&block->next);
        if ((nprdma_place_state(piece->word) == NPRDMA_PLACE_FULL) &&
            (atomic_load(&block->flags) & NPRDMA_FORECAST_DUE) &&
            (next >= piece->block.start) && (next < piece->block.end)) {
            piece->span.start = next;
            piece->span.end   = (piece->block.end - next >
                                 NPRDMA_FORECAST_PIECE) ?
                                next + NPRDMA_FORECAST_PIECE :
                                piece->block.end;
            return 1;
        }
    }

    return 0;
}

int nprdma_forecast_begin(nprdma_forecast_t *forecast,
                          const nprdma_forecast_piece_t *piece)
{
    return nprdma_place_claim(&forecast->blocks[piece->index].place,
                              piece->word);
}

void nprdma_forecast_end(nprdma_forecast_t *forecast,
                         const nprdma_forecast_piece_t *piece, int is_done)
{
    nprdma_forecast_block_t *block = &forecast->blocks[piece->index];

    atomic_store(&block->next, piece->span.end);
    if (!is_done || (piece->span.end == atomic_load(&block->place.end))) {
        nprdma_forecast_not_due(forecast, block);
    }
    nprdma_forecast_return(forecast, block);
}

size_t nprdma_forecast_size(void)
{
    return sizeof(nprdma_forecast_t);
}

void nprdma_forecast_query(nprdma_forecast_t *forecast,
                           nprdma_forecast_stats_t *stats)
{
    stats->expected       = atomic_load(&forecast->num_expected);
    stats->unused         = atomic_load(&forecast->num_unused);
    stats->expected_bytes = atomic_load(&forecast->expected);
    stats->filled_bytes   = atomic_load(&forecast->filled);
}
