/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_arena.h"
#include "base/npemu_log.h"
#include "base/npemu_util.h"
#include "fabric/npemu_segment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define NPEMU_ARENA_MIN_SHIFT 6

/* Freed blocks from this size on go back to the kernel at once. */
#define NPEMU_ARENA_TRIM (64 * 1024)

static unsigned npemu_arena_class(size_t size)
{
    unsigned index = 0;

    while (((size_t)1 << (index + NPEMU_ARENA_MIN_SHIFT)) < size) {
        ++index;
    }
    return index;
}

/* A process maps its own arena and that of each peer. Where its address space
 * is limited, one is a small part of that. */
static size_t npemu_arena_size(void)
{
    size_t size = NPEMU_ARENA_SIZE;
    struct rlimit limit;

    if ((getrlimit(RLIMIT_AS, &limit) != 0) ||
        (limit.rlim_cur == RLIM_INFINITY)) {
        return size;
    }

    while ((size > NPEMU_ARENA_MIN_SIZE) &&
           (size > limit.rlim_cur / NPEMU_ARENA_SHARE)) {
        size /= 2;
    }
    return size;
}

int npemu_arena_init(npemu_arena_t *arena)
{
    memset(arena, 0, sizeof(*arena));
    arena->size = npemu_arena_size();
    arena->shm  = npemu_segment_create(NPEMU_SEGMENT_ARENA, arena->size,
                                       &arena->id);
    if (arena->shm == NULL) {
        npemu_error("cannot make or map the %lu MiB (address space only, see "
                    "ulimit -v) of shared memory of this process: %s",
                    arena->size >> 20, strerror(errno));
        return errno;
    }

    arena->brk = sizeof(npemu_arena_shm_t);
    return 0;
}

void npemu_arena_cleanup(npemu_arena_t *arena)
{
    unsigned i;

    for (i = 0; i < NPEMU_ARENA_CLASSES; ++i) {
        free(arena->free[i].offsets);
    }
    if (arena->in_use != 0) {
        npemu_debug("%lu bytes of objects were not destroyed",
                    (unsigned long)arena->in_use);
    }
    npemu_segment_detach(arena->shm);
}

uint64_t npemu_arena_alloc(npemu_arena_t *arena, size_t size)
{
    unsigned index  = npemu_arena_class(size);
    size_t block    = (size_t)1 << (index + NPEMU_ARENA_MIN_SHIFT);
    size_t align    = (block < NPRDMA_PAGE_SIZE) ? block : NPRDMA_PAGE_SIZE;
    int fresh       = 0;
    uint64_t offset = 0;

    if (index >= NPEMU_ARENA_CLASSES) {
        return 0;
    }

    npemu_spin_lock(&arena->lock);
    if (arena->free[index].count > 0) {
        offset = arena->free[index].offsets[--arena->free[index].count];
    } else {
        offset = (arena->brk + align - 1) & ~(uint64_t)(align - 1);
        fresh  = 1;
        if (offset + block > arena->size) {
            offset = 0;
        } else {
            arena->brk = offset + block;
        }
    }
    if (offset != 0) {
        arena->in_use += block;
    }
    npemu_spin_unlock(&arena->lock);

    if (offset == 0) {
        npemu_warn("the shared memory of this process is full (%lu MiB)",
                   arena->size >> 20);
    } else if (!fresh && (block < NPEMU_ARENA_TRIM)) {
        memset(npemu_arena_ptr(arena->shm, offset), 0, block);
    }
    return offset;
}

/* Add a block to a list. If there is no memory for the list, the block is lost
 * until the process detaches. */
static void npemu_arena_add(npemu_arena_blocks_t *blocks, uint64_t offset)
{
    size_t capacity;
    uint64_t *offsets;

    if (blocks->count == blocks->capacity) {
        capacity = blocks->capacity * 2 + 16;
        offsets  = realloc(blocks->offsets, capacity * sizeof(*offsets));
        if (offsets == NULL) {
            return;
        }
        blocks->offsets  = offsets;
        blocks->capacity = capacity;
    }
    blocks->offsets[blocks->count++] = offset;
}

void npemu_arena_free(npemu_arena_t *arena, uint64_t offset, size_t size)
{
    unsigned index = npemu_arena_class(size);
    size_t block   = (size_t)1 << (index + NPEMU_ARENA_MIN_SHIFT);

    if (offset == 0) {
        return;
    }

    /* Reads as zeros afterwards, as npemu_arena_alloc() promises for large
     * ones */
    if ((block >= NPEMU_ARENA_TRIM) &&
        (npemu_madvise(npemu_arena_ptr(arena->shm, offset), block,
                       MADV_REMOVE) < 0)) {
        memset(npemu_arena_ptr(arena->shm, offset), 0, block);
    }

    npemu_spin_lock(&arena->lock);
    arena->in_use -= block;
    npemu_arena_add(&arena->free[index], offset);
    npemu_spin_unlock(&arena->lock);
}
