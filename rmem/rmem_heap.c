/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "rmem_heap.h"

#include <sys/mman.h>


enum {
    RMEM_HEAP_SMALLEST = 64,
    RMEM_HEAP_CLASSES  = 45, /* 64 bytes to half a chunk */
    RMEM_HEAP_WORDS    = RMEM_HEAP_CHUNK / RMEM_HEAP_SMALLEST / 64,
    RMEM_HEAP_FREE     = 0,  /* What a chunk has, if it has no class */
    RMEM_HEAP_OWN      = RMEM_HEAP_CLASSES + 1,
    RMEM_HEAP_REST           /* Not the first chunk of an object */
};

#define RMEM_HEAP_NO_CHUNK  UINT32_MAX

/* Of chunks that are one object, or free together, the first one has what they
 * are. The last free one has their number, too. */
typedef struct {
    uint32_t run;  /* Number of chunks */
    uint16_t used; /* Objects of a class */
    uint8_t  what; /* Class + 1, or one of the others above */
} rmem_heap_chunk_t;

struct rmem_heap {
    rmem_heap_unused_t unused;
    void               *arg;
    uint32_t           chunks;
    uint32_t           first;  /* No chunk before it is free */
    uint32_t           top;    /* No chunk from it on was ever used */
    uint32_t           room[RMEM_HEAP_CLASSES]; /* None before has any */
    uint64_t           (*taken)[RMEM_HEAP_WORDS]; /* Places of chunks */
    rmem_heap_chunk_t  chunk[];
};


rmem_heap_t *rmem_heap_create(uint64_t bytes, rmem_heap_unused_t unused,
                              void *arg)
{
    uint32_t    chunks = bytes / RMEM_HEAP_CHUNK;
    size_t      taken  = sizeof(rmem_heap_t) +
                         (chunks + 1) * sizeof(rmem_heap_chunk_t);
    rmem_heap_t *heap;
    size_t      mapped;

    taken  = (taken + 63) & ~(size_t)63;
    mapped = taken + (size_t)chunks * sizeof(*heap->taken);
    /* Only what is used of it takes memory */
    heap   = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (heap == MAP_FAILED) {
        return NULL;
    }

    heap->unused = unused;
    heap->arg    = arg;
    heap->chunks = chunks;
    heap->taken  = (void*)((char*)heap + taken);
    /* The chunk behind the last one is never free */
    heap->chunk[chunks].what = RMEM_HEAP_OWN;
    if (chunks > 0) {
        heap->chunk[0].run          = chunks;
        heap->chunk[chunks - 1].run = chunks;
    }
    return heap;
}

/* Class + 1 of a size */
static unsigned rmem_heap_class(size_t size)
{
    unsigned shift;

    if (size <= RMEM_HEAP_SMALLEST) {
        return 1;
    }

    /* The size is in (2^shift, 2^(shift + 1)] */
    shift = 63 - __builtin_clzl(size - 1);
    return (shift - 6) * 4 + ((size - 1) >> (shift - 2)) - 4 + 2;
}

static size_t rmem_heap_class_size(unsigned what)
{
    unsigned step = what - 1;

    return (size_t)(4 + step % 4) << (4 + step / 4);
}


/* ---- chunks ---- */

static void rmem_heap_set_free(rmem_heap_t *heap, uint32_t index, uint32_t run)
{
    heap->chunk[index].what           = RMEM_HEAP_FREE;
    heap->chunk[index].run            = run;
    heap->chunk[index + run - 1].what = RMEM_HEAP_FREE;
    heap->chunk[index + run - 1].run  = run;
}

/* First fit; every number of chunks is that of an object, of one chunk of a
 * class, or of free chunks */
static uint32_t rmem_heap_take(rmem_heap_t *heap, uint32_t run, unsigned what)
{
    uint32_t index = heap->first;
    uint32_t length, i;

    while ((index < heap->chunks) &&
           ((heap->chunk[index].what != RMEM_HEAP_FREE) ||
            (heap->chunk[index].run < run))) {
        index += heap->chunk[index].run;
    }
    if (index >= heap->chunks) {
        return RMEM_HEAP_NO_CHUNK;
    }

    length = heap->chunk[index].run;
    if (length > run) {
        rmem_heap_set_free(heap, index + run, length - run);
    }
    heap->chunk[index].what = what;
    heap->chunk[index].run  = run;
    heap->top               = (index + run > heap->top) ? index + run :
                              heap->top;
    for (i = index + 1; i < index + run; ++i) {
        heap->chunk[i].what = RMEM_HEAP_REST;
    }
    if (index == heap->first) {
        heap->first = index + run;
    }
    return index;
}

static void rmem_heap_give(rmem_heap_t *heap, uint32_t index)
{
    uint32_t run = heap->chunk[index].run;
    uint32_t before, after;

    heap->unused(index * (uint64_t)RMEM_HEAP_CHUNK,
                 run * (uint64_t)RMEM_HEAP_CHUNK, heap->arg);
    heap->chunk[index].what = RMEM_HEAP_FREE;
    after                   = index + run;
    if (heap->chunk[after].what == RMEM_HEAP_FREE) {
        run += heap->chunk[after].run;
    }
    if ((index > 0) && (heap->chunk[index - 1].what == RMEM_HEAP_FREE)) {
        before = heap->chunk[index - 1].run;
        index -= before;
        run   += before;
    }
    rmem_heap_set_free(heap, index, run);
    if (index < heap->first) {
        heap->first = index;
    }
}


/* ---- places of a class ---- */

static uint64_t rmem_heap_alloc_place(rmem_heap_t *heap, unsigned what)
{
    size_t            size  = rmem_heap_class_size(what);
    uint32_t          index = heap->room[what - 1];
    unsigned          word, bit;

    while ((index < heap->top) &&
           ((heap->chunk[index].what != what) ||
            (heap->chunk[index].used == RMEM_HEAP_CHUNK / size))) {
        ++index;
    }
    if (index >= heap->top) {
        index = rmem_heap_take(heap, 1, what);
        if (index == RMEM_HEAP_NO_CHUNK) {
            return RMEM_HEAP_NONE;
        }

        heap->chunk[index].used = 0;
    }

    /* The chunk has a free place, and places behind the last are not taken */
    for (word = 0; heap->taken[index][word] == UINT64_MAX; ++word) {}
    bit                      = __builtin_ctzl(~heap->taken[index][word]);
    heap->taken[index][word] |= UINT64_C(1) << bit;
    heap->room[what - 1]     = index;
    ++heap->chunk[index].used;
    return index * (uint64_t)RMEM_HEAP_CHUNK + (word * 64 + bit) * size;
}

uint64_t rmem_heap_alloc(rmem_heap_t *heap, size_t size, size_t align,
                         int *is_new)
{
    unsigned what;
    uint32_t index;

    *is_new = 0;
    size    = (size < align) ? align : size;
    if ((align > RMEM_HEAP_CHUNK) ||
        (size > heap->chunks * RMEM_HEAP_CHUNK)) {
        return RMEM_HEAP_NONE;
    }

    if (size <= RMEM_HEAP_CHUNK / 2) {
        /* A power of two is among the next four */
        what = rmem_heap_class(size);
        while (rmem_heap_class_size(what) % align != 0) {
            ++what;
        }
        return rmem_heap_alloc_place(heap, what);
    }

    index = rmem_heap_take(heap, (size - 1) / RMEM_HEAP_CHUNK + 1,
                           RMEM_HEAP_OWN);
    if (index == RMEM_HEAP_NO_CHUNK) {
        return RMEM_HEAP_NONE;
    }

    *is_new = 1;
    return index * (uint64_t)RMEM_HEAP_CHUNK;
}

size_t rmem_heap_size(const rmem_heap_t *heap, uint64_t offset)
{
    uint32_t                index  = offset / RMEM_HEAP_CHUNK;
    size_t                  within = offset % RMEM_HEAP_CHUNK;
    const rmem_heap_chunk_t *chunk = &heap->chunk[index];
    size_t                  size, place;

    if ((index >= heap->chunks) || (chunk->what == RMEM_HEAP_FREE) ||
        (chunk->what == RMEM_HEAP_REST)) {
        return 0;
    }

    if (chunk->what == RMEM_HEAP_OWN) {
        return (within == 0) ? chunk->run * RMEM_HEAP_CHUNK : 0;
    }

    size  = rmem_heap_class_size(chunk->what);
    place = within / size;
    return ((within % size == 0) &&
            ((heap->taken[index][place / 64] >> (place % 64)) & 1)) ? size : 0;
}

void rmem_heap_free(rmem_heap_t *heap, uint64_t offset)
{
    uint32_t          index  = offset / RMEM_HEAP_CHUNK;
    rmem_heap_chunk_t *chunk = &heap->chunk[index];
    size_t            size, place;

    if (chunk->what == RMEM_HEAP_OWN) {
        rmem_heap_give(heap, index);
        return;
    }

    size  = rmem_heap_class_size(chunk->what);
    place = offset % RMEM_HEAP_CHUNK / size;
    heap->taken[index][place / 64] &= ~(UINT64_C(1) << (place % 64));
    if (index < heap->room[chunk->what - 1]) {
        heap->room[chunk->what - 1] = index;
    }
    if (--chunk->used == 0) {
        rmem_heap_give(heap, index);
    }
}
