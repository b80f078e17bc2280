/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_HEAP_H_
#define RMEM_HEAP_H_

/*
 * Allocator of a window, whose memory it never touches: what it knows is
 * elsewhere. It takes no lock and calls no function that allocates.
 *
 * The window consists of chunks. An object of at most half a chunk has a size
 * of a class, four of which double it, and shares its chunk with others of
 * the class. Another object has chunks of its own. Free chunks are found by
 * first fit.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RMEM_HEAP_CHUNK ((size_t)256 << 10)
#define RMEM_HEAP_NONE  UINT64_MAX

typedef struct rmem_heap rmem_heap_t;

/* Chunks without objects: their pages are not needed. The heap does not use
 * them again before this returns. */
typedef void (*rmem_heap_unused_t)(uint64_t offset, uint64_t length, void *arg);

/* bytes: of the window; what exceeds whole chunks is not used. NULL: no memory.
 * It stays until the process ends. */
rmem_heap_t *rmem_heap_create(uint64_t bytes, rmem_heap_unused_t unused,
                              void *arg);

/* Returns an offset that is a multiple of align, a power of two, or
 * RMEM_HEAP_NONE: no room, or align exceeds a chunk. is_new: nothing was there
 * since the chunks were unused, so it reads as zeros. */
uint64_t rmem_heap_alloc(rmem_heap_t *heap, size_t size, size_t align,
                         int *is_new);

/* What the object at an offset may use; 0 if no object begins there. */
size_t rmem_heap_size(const rmem_heap_t *heap, uint64_t offset);

/* An object begins there. */
void rmem_heap_free(rmem_heap_t *heap, uint64_t offset);

#ifdef __cplusplus
}
#endif

#endif
