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
} npemu_arena_t;

/** Make the arena segment. Returns 0, or an errno value, with an error line. */
int npemu_arena_init(npemu_arena_t *arena);

/** Detach the segment, which is not used any more. */
void npemu_arena_cleanup(npemu_arena_t *arena);

/** Allocate zeroed memory, aligned to its size class (to a page at most).
 * Returns the offset, or 0 if the arena is full. */
uint64_t npemu_arena_alloc(npemu_arena_t *arena, size_t size);

/** Free what @ref npemu_arena_alloc returned; 0 is ignored. */
void npemu_arena_free(npemu_arena_t *arena, uint64_t offset, size_t size);

#endif
