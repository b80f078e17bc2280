/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_STATE_CACHE_H_
#define UCT_NPRDMA_STATE_CACHE_H_

#include <stddef.h>
#include <stdint.h>

/*
 * States of pages of peers, as they were when they were last read: so that most
 * operations need not read them before. An operation takes a copy: what is here
 * changes with every operation that reads states, and comparing with it after
 * the operation would prove nothing (ARCHITECTURE 3, remote WRITE).
 *
 * Old states do no harm: those after the operation differ from them then, as
 * counts never go back. That holds for one region, so a region is named by what
 * never comes back, and not by its keys. Bounded memory, all of it allocated at
 * the begin. Belongs to one thread.
 */

/* Pages whose states are kept and dropped together */
#define UCT_NPRDMA_STATE_CACHE_BLOCK  64

typedef struct uct_nprdma_state_cache uct_nprdma_state_cache_t;

/* A region of a peer */
typedef struct uct_nprdma_state_region {
    uint64_t process;   /* Unlike in any two processes: the signature */
    uint64_t id;        /* Unlike for any two regions of the process */
} uct_nprdma_state_region_t;


/**
 * @param [in] size  Bytes for states, rounded to a power of two of blocks; 0 is
 *                   a cache that keeps nothing.
 *
 * @return The cache, to be given to uct_nprdma_state_cache_destroy(), or NULL
 *         when out of memory.
 */
uct_nprdma_state_cache_t *uct_nprdma_state_cache_create(size_t size);


void uct_nprdma_state_cache_destroy(uct_nprdma_state_cache_t *cache);


/**
 * Copy the states of pages, if all of them are known and have the bits. A page
 * that was last seen absent is better looked at again. So are pages whose
 * neighbourhood has lately changed, as memory does that is mapped anew for each
 * message: to read the states first costs less than data for nothing.
 *
 * @param [in]  cache   Cache.
 * @param [in]  region  Region of the peer.
 * @param [in]  page    Number of the first page in the region.
 * @param [in]  count   Number of pages.
 * @param [in]  bits    What each must have, NPRDMA_PAGE_xx, not 0.
 * @param [out] states  count words, not complete if the result is 0.
 *
 * @return Nonzero if so.
 */
int uct_nprdma_state_cache_lookup(uct_nprdma_state_cache_t *cache,
                                  const uct_nprdma_state_region_t *region,
                                  uint64_t page, size_t count, uint32_t bits,
                                  uint32_t *states);


/**
 * Keep the states of pages that have just been read, in place of older ones.
 * Arguments as of uct_nprdma_state_cache_lookup().
 */
void uct_nprdma_state_cache_store(uct_nprdma_state_cache_t *cache,
                                  const uct_nprdma_state_region_t *region,
                                  uint64_t page, size_t count,
                                  const uint32_t *states);

#endif
