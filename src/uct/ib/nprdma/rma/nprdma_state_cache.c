/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_state_cache.h"

#include <stdlib.h>
#include <string.h>

/* Blocks per set */
#define UCT_NPRDMA_STATE_CACHE_WAYS  4

/* Times that a block must be found unchanged before it is used again */
#define UCT_NPRDMA_STATE_CACHE_CHECKS  8

typedef struct uct_nprdma_state_block {
    uct_nprdma_peer_region_t region;
    uint64_t                 number;     /* Within the region, plus 1; 0:
                                          * unused */
    unsigned                 num_checks; /* Has changed recently: read this many
                                          * times before it is used again */
    /* 0: unknown, treated as absent */
    uint32_t                 states[UCT_NPRDMA_STATE_CACHE_BLOCK];
} uct_nprdma_state_block_t;

typedef struct uct_nprdma_state_set {
    unsigned                 victim;    /* Next block to be replaced */
    uct_nprdma_state_block_t blocks[UCT_NPRDMA_STATE_CACHE_WAYS];
} uct_nprdma_state_set_t;

struct uct_nprdma_state_cache {
    size_t                 num_sets;    /* 0, or a power of two */
    uct_nprdma_state_set_t sets[];
};


uct_nprdma_state_cache_t *uct_nprdma_state_cache_create(size_t size)
{
    size_t set_size = UCT_NPRDMA_STATE_CACHE_WAYS *
                      UCT_NPRDMA_STATE_CACHE_BLOCK * sizeof(uint32_t);
    uct_nprdma_state_cache_t *cache;
    size_t num_sets = (size > 0);

    while ((num_sets > 0) && ((num_sets * 2 * set_size) <= size)) {
        num_sets *= 2;
    }

    cache = calloc(1, sizeof(*cache) + (num_sets * sizeof(cache->sets[0])));
    if (cache != NULL) {
        cache->num_sets = num_sets;
    }
    return cache;
}

void uct_nprdma_state_cache_destroy(uct_nprdma_state_cache_t *cache)
{
    free(cache);
}

/* Neighbouring blocks go to neighbouring sets, so that the blocks of one buffer
 * do not replace each other */
static uct_nprdma_state_set_t *
uct_nprdma_state_cache_set(uct_nprdma_state_cache_t *cache,
                           const uct_nprdma_peer_region_t *region,
                           uint64_t number)
{
    uint64_t hash = (region->process ^ region->id) * 0x9e3779b97f4a7c15ull;

    return &cache->sets[((hash >> 32) + number) & (cache->num_sets - 1)];
}

static uct_nprdma_state_block_t *
uct_nprdma_state_cache_find(uct_nprdma_state_set_t *set,
                            const uct_nprdma_peer_region_t *region,
                            uint64_t number)
{
    uct_nprdma_state_block_t *block;
    unsigned i;

    for (i = 0; i < UCT_NPRDMA_STATE_CACHE_WAYS; ++i) {
        block = &set->blocks[i];
        if ((block->number == (number + 1)) &&
            (block->region.id == region->id) &&
            (block->region.process == region->process)) {
            return block;
        }
    }
    return NULL;
}

/* Find the block of some pages, or make one */
static uct_nprdma_state_block_t *
uct_nprdma_state_cache_get(uct_nprdma_state_cache_t *cache,
                           const uct_nprdma_peer_region_t *region,
                           uint64_t number)
{
    uct_nprdma_state_set_t *set = uct_nprdma_state_cache_set(cache, region,
                                                             number);
    uct_nprdma_state_block_t *block;

    block = uct_nprdma_state_cache_find(set, region, number);
    if (block == NULL) {
        block       = &set->blocks[set->victim];
        set->victim = (set->victim + 1) % UCT_NPRDMA_STATE_CACHE_WAYS;
        memset(block, 0, sizeof(*block));
        block->region = *region;
        block->number = number + 1;
    }
    return block;
}

/* @return Number of the count pages from this one that are in its block */
static size_t uct_nprdma_state_cache_run(uint64_t page, size_t count)
{
    size_t rest = UCT_NPRDMA_STATE_CACHE_BLOCK -
                  (page % UCT_NPRDMA_STATE_CACHE_BLOCK);

    return (count < rest) ? count : rest;
}

int uct_nprdma_state_cache_lookup(uct_nprdma_state_cache_t *cache,
                                  const uct_nprdma_peer_region_t *region,
                                  uint64_t page, size_t count, uint32_t bits,
                                  uint32_t *states)
{
    uct_nprdma_state_block_t *block;
    uint32_t all = bits;
    const uint32_t *known;
    uint64_t number;
    size_t i, run;

    if (cache->num_sets == 0) {
        return 0;
    }

    for (; count > 0; page += run, count -= run, states += run) {
        number = page / UCT_NPRDMA_STATE_CACHE_BLOCK;
        run    = uct_nprdma_state_cache_run(page, count);
        block  = uct_nprdma_state_cache_find(
                uct_nprdma_state_cache_set(cache, region, number), region,
                number);
        if ((block == NULL) || (block->num_checks > 0)) {
            return 0;
        }

        known = &block->states[page % UCT_NPRDMA_STATE_CACHE_BLOCK];
        for (i = 0; i < run; ++i) {
            states[i] = known[i];
            all      &= known[i];
        }
        if (all != bits) {
            return 0;
        }
    }
    return 1;
}

static int uct_nprdma_state_cache_changed(const uint32_t *known,
                                          const uint32_t *states, size_t count)
{
    int changed = 0;
    size_t i;

    for (i = 0; i < count; ++i) {
        changed |= (known[i] != 0) & (known[i] != states[i]);
    }
    return changed;
}

void uct_nprdma_state_cache_store(uct_nprdma_state_cache_t *cache,
                                  const uct_nprdma_peer_region_t *region,
                                  uint64_t page, size_t count,
                                  const uint32_t *states)
{
    uct_nprdma_state_block_t *block;
    uint32_t *known;
    size_t run;

    if (cache->num_sets == 0) {
        return;
    }

    for (; count > 0; page += run, count -= run, states += run) {
        run   = uct_nprdma_state_cache_run(page, count);
        block = uct_nprdma_state_cache_get(cache, region,
                                           page / UCT_NPRDMA_STATE_CACHE_BLOCK);
        known = &block->states[page % UCT_NPRDMA_STATE_CACHE_BLOCK];
        if (uct_nprdma_state_cache_changed(known, states, run)) {
            block->num_checks = UCT_NPRDMA_STATE_CACHE_CHECKS;
        } else if (block->num_checks > 0) {
            --block->num_checks;
        }
        memcpy(known, states, run * sizeof(*states));
    }
}
