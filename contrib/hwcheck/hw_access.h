/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* RDMA by one end of a pair to a region of the other end. The own buffer is the
 * end's pinned memory. */

#ifndef HW_ACCESS_H
#define HW_ACCESS_H

#include "hw_region.h"

/* Where the state words of a verified access go, in the own buffer */
enum { HW_STATES_AT = PAIR_MEMORY - HW_PAGE };

typedef struct {
    pair_t      pair;   /* the first end accesses memory of the second one */
    hw_region_t region;
} hw_access_t;

/** Opens and connects two devices, and makes a region on the second one. */
void hw_access_open(hw_access_t *a, const char *from, const char *to,
                    hw_kind_t kind, size_t length);

void hw_access_close(hw_access_t *a);

/** @return The own buffer as words. */
static inline uint64_t *hw_buffer(const hw_access_t *a)
{
    return (uint64_t*)a->pair.a.memory;
}

/** Posts a READ into the buffer from there on, or a WRITE from it, to an offset
 * in the region. */
void hw_post(hw_access_t *a, int is_put, size_t offset, size_t from,
             size_t length);

/** Posts a READ of the state words of some pages to HW_STATES_AT. */
void hw_post_states(hw_access_t *a, size_t page, size_t count);

/** Waits for this number of completions, which must be successful. */
void hw_wait(hw_access_t *a, int count);

/** READs words to the beginning of the buffer. @return The first one. */
uint64_t hw_get(hw_access_t *a, size_t word, size_t count);

void hw_put(hw_access_t *a, size_t word, uint64_t value);

/** @return The state of a page that hw_post_states() has read, as its i-th. */
static inline uint32_t hw_read_state(const hw_access_t *a, size_t i)
{
    return ((const uint32_t*)(a->pair.a.memory + HW_STATES_AT))[i];
}

#endif
