/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The arena of this process and its allocator. */

#ifndef NPEMU_ARENA_H
#define NPEMU_ARENA_H

#include "fabric/npemu_shm.h"

/* Size classes are powers of two from 2^6 up. */
#define NPEMU_ARENA_CLASSES 28

/* A list of blocks of one class. */
typedef struct {
    uint64_t *offsets;
    size_t   count;
    size_t   capacity;
} npemu_arena_blocks_t;

/* The state of the allocator is in private memory: peers cannot damage it, and
 * a process that dies leaves nothing to repair. */
typedef struct {
    npemu_arena_shm_t *shm;
    int               id;      /* shmid */
    size_t            size;    /* bytes of address space */
    npemu_spin_t      lock;
    uint64_t          brk;     /* first byte never allocated */
    uint64_t          in_use;  /* bytes, for leak checks */
    npemu_arena_blocks_t free[NPEMU_ARENA_CLASSES];

    /* Blocks of objects that were destroyed while a process that was cut off
     * (npemu_cut.h) was in a request on this arena: it may write to them when
     * it continues */
    npemu_arena_blocks_t kept[NPEMU_ARENA_CLASSES];
    _Atomic uint32_t  cuts;      /* processes that were cut off, ever */
    _Atomic uint32_t  cuts_over; /* those of them that have left the arena */
} npemu_arena_t;

/**
 * Make the arena segment.
 *
 * @return 0, or an errno value, with an error line.
 */
int npemu_arena_init(npemu_arena_t *arena);

/** Detach the segment, which is not used any more. */
void npemu_arena_cleanup(npemu_arena_t *arena);

/**
 * Allocate zeroed memory, aligned to its size class (to a page at most).
 *
 * @param [in] size  Bytes.
 *
 * @return Offset, or 0 if the arena is full.
 */
uint64_t npemu_arena_alloc(npemu_arena_t *arena, size_t size);

/** Free what @ref npemu_arena_alloc returned; 0 is ignored. While @ref
 * npemu_arena_is_held the block is kept and not allocated again. */
void npemu_arena_free(npemu_arena_t *arena, uint64_t offset, size_t size);

/** 1 if a process that was cut off may still be in the arena, else 0. */
static inline int npemu_arena_is_held(npemu_arena_t *arena)
{
    return atomic_load(&arena->cuts) != atomic_load(&arena->cuts_over);
}

/** All processes that were cut off when `cuts` was @a cuts have left the arena:
 * free the blocks that were kept. */
void npemu_arena_release(npemu_arena_t *arena, uint32_t cuts);

#endif
