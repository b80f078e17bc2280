/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The tables of lazy unmapping, compared with a model of the address space:
 * each granule is free, mapped, or kept closed. Nothing that is mapped is ever
 * given away or released, and a block that is kept is whole and was made by one
 * call.
 */

#include "fuzz.h"

#include "ucm/events/nprdma_lazy.h"

/* Addresses are granules of this size, from the first one on */
#define FUZZ_GRANULE ((uintptr_t)64 * 1024)
#define FUZZ_NUM     64
#define FUZZ_LIMIT   (24 * FUZZ_GRANULE)

enum {
    FUZZ_OP_MAP,    /* A block, from the pool or where there is room */
    FUZZ_OP_UNMAP,  /* Any granules */
    FUZZ_OP_UNMAP_BLOCK,
    FUZZ_OP_ADVISE,
    FUZZ_OP_OTHER,  /* Map something else over any granules */
    FUZZ_OP_UNSEEN, /* The same without an event before it */
    FUZZ_OP_DROP,
    FUZZ_OP_PAUSE,
    FUZZ_OP_LAST
};

/* What a granule is. Blocks have numbers from FUZZ_FIRST on. */
enum {
    FUZZ_FREE,
    FUZZ_OTHER, /* Mapped; never to be kept */
    FUZZ_FIRST
};

typedef struct {
    nprdma_lazy_t *lazy;
    fuzz_reader_t reader;
    int           paused;
    int           is_spoilt; /* By a mapping that nothing has seen */
    unsigned      next;             /* Number of the next block */
    unsigned      what[FUZZ_NUM];
    uint8_t       closed[FUZZ_NUM]; /* Kept */
    uint8_t       tainted[FUZZ_NUM];
} fuzz_space_t;

static unsigned fuzz_first(nprdma_span_t span)
{
    return (unsigned)(span.start / FUZZ_GRANULE) - 1;
}

static unsigned fuzz_count(nprdma_span_t span)
{
    return (unsigned)((span.end - span.start) / FUZZ_GRANULE);
}

static nprdma_span_t fuzz_span(unsigned first, unsigned count)
{
    return nprdma_span((first + 1) * FUZZ_GRANULE,
                       (first + 1 + count) * FUZZ_GRANULE);
}

static void fuzz_fill(fuzz_space_t *space, nprdma_span_t span, unsigned what,
                      int closed)
{
    unsigned i;

    for (i = fuzz_first(span); i < fuzz_first(span) + fuzz_count(span); ++i) {
        space->what[i]    = what;
        space->closed[i]  = closed;
        space->tainted[i] = 0;
    }
}

/* @return The block that is exactly the span, closed or not, or 0 */
static unsigned fuzz_block(const fuzz_space_t *space, nprdma_span_t span,
                           int closed)
{
    unsigned first = fuzz_first(span);
    unsigned end   = first + fuzz_count(span);
    unsigned what  = space->what[first];
    unsigned i;

    for (i = 0; i < FUZZ_NUM; ++i) {
        if ((i >= first) && (i < end)) {
            if ((space->what[i] != what) || (space->closed[i] != closed)) {
                return 0;
            }
        } else if (space->what[i] == what) {
            return 0;
        }
    }
    return (what >= FUZZ_FIRST) ? what : 0;
}

static nprdma_lazy_result_t fuzz_close(void *arg, nprdma_span_t span)
{
    fuzz_space_t *space = arg;
    unsigned what       = fuzz_block(space, span, 0);
    unsigned i;

    if (what == 0) {
        FUZZ_CHECK(space->is_spoilt);
        return NPRDMA_LAZY_REFUSED; /* As the kernel tells */
    }
    for (i = fuzz_first(span); i < fuzz_first(span) + fuzz_count(span); ++i) {
        FUZZ_CHECK(!space->tainted[i]);
    }
    FUZZ_CHECK(!space->paused);
    if (fuzz_read_u8(&space->reader) % 8 == 7) {
        return NPRDMA_LAZY_REFUSED;
    }

    fuzz_fill(space, span, what, 1);
    return NPRDMA_LAZY_DONE;
}

static nprdma_lazy_result_t fuzz_open(void *arg, nprdma_span_t span)
{
    fuzz_space_t *space = arg;

    if (fuzz_block(space, span, 1) == 0) {
        FUZZ_CHECK(space->is_spoilt);
        return NPRDMA_LAZY_LOST; /* As the kernel tells */
    }
    if (fuzz_read_u8(&space->reader) % 8 == 7) {
        return NPRDMA_LAZY_REFUSED;
    }

    fuzz_fill(space, span, FUZZ_FREE, 0);
    return NPRDMA_LAZY_DONE;
}

static nprdma_lazy_result_t fuzz_release(void *arg, nprdma_span_t span)
{
    fuzz_space_t *space = arg;

    if (fuzz_block(space, span, 1) == 0) {
        FUZZ_CHECK(space->is_spoilt);
        return NPRDMA_LAZY_LOST;
    }

    fuzz_fill(space, span, FUZZ_FREE, 0);
    return NPRDMA_LAZY_DONE;
}

static const nprdma_lazy_ops_t fuzz_ops = {
    .close   = fuzz_close,
    .open    = fuzz_open,
    .release = fuzz_release
};

static nprdma_span_t fuzz_read_span(fuzz_space_t *space)
{
    unsigned first = fuzz_read_u8(&space->reader) % FUZZ_NUM;
    unsigned count = 1 + (fuzz_read_u8(&space->reader) % 16);

    return fuzz_span(first, (first + count > FUZZ_NUM) ? FUZZ_NUM - first :
                                                         count);
}

static void fuzz_map(fuzz_space_t *space)
{
    unsigned count  = 1 + (fuzz_read_u8(&space->reader) % 16);
    uintptr_t start = nprdma_lazy_reuse(space->lazy, count * FUZZ_GRANULE);
    unsigned first, i;

    first = (start == 0) ? 0 : fuzz_first(nprdma_span(start, start));
    for (i = 0; (start == 0) && (first + count <= FUZZ_NUM);) {
        if (space->what[first + i] != FUZZ_FREE) {
            first += i + 1;
            i      = 0;
        } else if (++i == count) {
            break;
        }
    }
    if (first + count > FUZZ_NUM) {
        return; /* No room */
    }

    for (i = 0; i < count; ++i) {
        FUZZ_CHECK(space->what[first + i] == FUZZ_FREE);
    }
    fuzz_fill(space, fuzz_span(first, count), space->next++, 0);
    nprdma_lazy_made(space->lazy, fuzz_span(first, count));
}

static void fuzz_unmap(fuzz_space_t *space, nprdma_span_t span)
{
    unsigned i;

    nprdma_lazy_forget(space->lazy, span);
    for (i = fuzz_first(span); i < fuzz_first(span) + fuzz_count(span); ++i) {
        FUZZ_CHECK(!space->closed[i]);
    }
    if (!nprdma_lazy_keep(space->lazy, span)) {
        /* Also what close() has refused */
        fuzz_fill(space, span, FUZZ_FREE, 0);
    }
}

static void fuzz_unmap_block(fuzz_space_t *space)
{
    unsigned at = fuzz_read_u8(&space->reader) % FUZZ_NUM;
    unsigned first, end;

    if ((space->what[at] < FUZZ_FIRST) || space->closed[at]) {
        return;
    }

    for (first = at; (first > 0) &&
                     (space->what[first - 1] == space->what[at]); --first) {
    }
    for (end = at; (end < FUZZ_NUM) && (space->what[end] == space->what[at]);
         ++end) {
    }
    fuzz_unmap(space, fuzz_span(first, end - first));
}

/* Without an event the rest of a block that was closed stays what it is */
static void fuzz_spoil(fuzz_space_t *space, nprdma_span_t span)
{
    unsigned first = fuzz_first(span);
    unsigned i, k, what;

    for (i = first; i < first + fuzz_count(span); ++i) {
        what = space->what[i];
        for (k = 0; space->closed[i] && (k < FUZZ_NUM); ++k) {
            if ((k != i) && (space->what[k] == what)) {
                space->what[k]   = FUZZ_OTHER;
                space->closed[k] = 0;
            }
        }
        space->what[i]   = FUZZ_OTHER;
        space->closed[i] = 0;
    }
}

static void fuzz_other(fuzz_space_t *space, int is_seen)
{
    nprdma_span_t span = fuzz_read_span(space);

    if (is_seen) {
        nprdma_lazy_forget(space->lazy, span);
    }
    fuzz_spoil(space, span);
    fuzz_fill(space, span, FUZZ_OTHER, 0);
    if (is_seen || (fuzz_read_u8(&space->reader) % 2)) {
        nprdma_lazy_mapped(space->lazy, span);
    } else {
        space->is_spoilt = 1;
    }
}

static void fuzz_advise(fuzz_space_t *space)
{
    nprdma_span_t span = fuzz_read_span(space);
    unsigned i;

    nprdma_lazy_forget(space->lazy, span);
    nprdma_lazy_taint(space->lazy, span);
    for (i = fuzz_first(span); i < fuzz_first(span) + fuzz_count(span); ++i) {
        space->tainted[i] = 1;
    }
}

static void fuzz_pause(fuzz_space_t *space)
{
    unsigned i;

    if (space->paused) {
        nprdma_lazy_resume(space->lazy);
    } else {
        nprdma_lazy_pause(space->lazy);
        for (i = 0; i < FUZZ_NUM; ++i) {
            FUZZ_CHECK(!space->closed[i]);
        }
    }
    space->paused = !space->paused;
}

static void fuzz_op(fuzz_space_t *space)
{
    switch (fuzz_read_u8(&space->reader) % FUZZ_OP_LAST) {
    case FUZZ_OP_MAP:
        fuzz_map(space);
        break;
    case FUZZ_OP_UNMAP:
        fuzz_unmap(space, fuzz_read_span(space));
        break;
    case FUZZ_OP_UNMAP_BLOCK:
        fuzz_unmap_block(space);
        break;
    case FUZZ_OP_ADVISE:
        fuzz_advise(space);
        break;
    case FUZZ_OP_OTHER:
        fuzz_other(space, 1);
        break;
    case FUZZ_OP_UNSEEN:
        fuzz_other(space, 0);
        break;
    case FUZZ_OP_DROP:
        nprdma_lazy_drop(space->lazy);
        break;
    default:
        fuzz_pause(space);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_space_t space = {0};
    nprdma_lazy_stats_t stats;

    space.reader = (fuzz_reader_t){data, size};
    space.next   = FUZZ_FIRST;
    space.lazy   = calloc(1, nprdma_lazy_size());
    FUZZ_CHECK(space.lazy != NULL);
    nprdma_lazy_init(space.lazy, FUZZ_LIMIT, &fuzz_ops, &space);
    while (space.reader.left > 0) {
        fuzz_op(&space);
        nprdma_lazy_query(space.lazy, &stats);
        FUZZ_CHECK(stats.bytes <= FUZZ_LIMIT);
        FUZZ_CHECK(stats.reused + stats.dropped <= stats.kept);
    }

    nprdma_lazy_drop(space.lazy);
    nprdma_lazy_query(space.lazy, &stats);
    FUZZ_CHECK(stats.bytes == 0);
    FUZZ_CHECK(stats.kept == stats.reused + stats.dropped);
    free(space.lazy);
    return 0;
}
