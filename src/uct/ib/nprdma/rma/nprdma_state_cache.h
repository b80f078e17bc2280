/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_STATE_CACHE_H_
#define UCT_NPRDMA_STATE_CACHE_H_

#include <stddef.h>
#include <stdint.h>

/*
 * States of pages of peers as they were last read, so that most operations need
 * not READ them first. An operation takes a copy. The cache changes with every
 * operation that reads states, so a comparison with it after the operation
 * would prove nothing (ARCHITECTURE 3, remote WRITE).
 *
 * Outdated states are safe: counts never decrease, so the states after the
 * operation differ from them. This holds within one region. Therefore regions
 * are identified by numbers that are never reused, not by keys. Memory is
 * bounded and allocated at creation. One thread uses a cache.
 */

/* Pages of a block; their states are kept and replaced together */
#define UCT_NPRDMA_STATE_CACHE_BLOCK  64

typedef struct uct_nprdma_state_cache uct_nprdma_state_cache_t;

/* A region of a peer */
typedef struct uct_nprdma_peer_region {
    uint64_t process;   /* Signature: different in any two processes */
    uint64_t id;        /* Different for any two regions of the process */
} uct_nprdma_peer_region_t;


/* The size is rounded to a power of two of blocks; 0: a cache that stores
 * nothing. NULL without memory. */
uct_nprdma_state_cache_t *uct_nprdma_state_cache_create(size_t size);


void uct_nprdma_state_cache_destroy(uct_nprdma_state_cache_t *cache);


/* Copy the states of pages, if all are known and have the bits NPRDMA_PAGE_xx.
 * A page that was last seen absent is read again, because it may be present
 * now. So are pages of a block that has changed recently, for example memory
 * that is mapped anew for each message. To READ the states first costs less
 * than to move data that is then void. */
int uct_nprdma_state_cache_lookup(uct_nprdma_state_cache_t *cache,
                                  const uct_nprdma_peer_region_t *region,
                                  uint64_t page, size_t count, uint32_t bits,
                                  uint32_t *states);


/* Store the states of pages that have just been read */
void uct_nprdma_state_cache_store(uct_nprdma_state_cache_t *cache,
                                  const uct_nprdma_peer_region_t *region,
                                  uint64_t page, size_t count,
                                  const uint32_t *states);

#endif
