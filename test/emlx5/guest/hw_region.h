/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Memory that one end of a pair accesses by RDMA through views of the kernel
 * module, which the other end has imported. Whatever cannot be made ends the
 * program with a message. */

#ifndef HW_REGION_H
#define HW_REGION_H

#include "emlx5_pair.h"

#include <nprdma_uapi.h>

enum {
    HW_PAGE      = NPRDMA_PAGE_SIZE,
    HW_WORDS     = HW_PAGE / 8,          /* of a page */
    HW_STATES_AT = PAIR_MEMORY - HW_PAGE /* where hw_post_states() reads to */
};

typedef struct {
    pair_t          pair;   /* the first end accesses memory of the second */
    int             module; /* context */
    uint32_t        id;
    uint64_t        signature; /* that absent pages read as */
    uint64_t       *memory;    /* untouched when it is made */
    size_t          length;
    struct ibv_mr  *read;     /* remote READs, by addresses of `memory` */
    struct ibv_mr  *write;    /* remote WRITEs, likewise */
    struct ibv_mr  *state_mr; /* state words, from address 0 on */
    const uint32_t *states;   /* the same, mapped */
    void           *mapped;
    size_t          mapped_size;
} hw_region_t;

/** Asks the module to check a device ("mlx5_0", or "mlx5_0/1", whose port does
 * not matter). @return The answer, and the context in `module`. */
struct nprdma_ioc_check_device hw_attach(hw_region_t *r, const char *device);

/** Opens and connects two devices, and makes a region on the second one. */
void hw_open(hw_region_t *r, const char *from, const char *to, size_t length);

/** Imports the region again after the device has lost its driver. The
 * registrations that there were are forgotten. */
void hw_import(hw_region_t *r);

void hw_close(hw_region_t *r);

/** Makes pages accessible. */
void hw_populate(const hw_region_t *r, size_t page, size_t count,
                 unsigned flags);

/** Takes pages away from the device. */
void hw_invalidate(const hw_region_t *r, size_t page, size_t count);

/** @return Pages that the kernel took away since the region was made. */
unsigned long hw_taken_by_kernel(const hw_region_t *r);

/** Posts a READ of the region into the first end's memory, from its beginning
 * on, or a WRITE from there to the region. */
void hw_post(hw_region_t *r, int is_put, size_t offset, size_t length);

/** Posts a READ of the state words of some pages. */
void hw_post_states(hw_region_t *r, size_t page, size_t count);

/** Waits for this number of completions, which must be successful. */
void hw_wait(hw_region_t *r, int count);

/** @return The memory of the first end as words. */
static inline uint64_t *hw_buffer(const hw_region_t *r)
{
    return (uint64_t*)r->pair.a.memory;
}

/** @return The state of a page as the CPU sees it. */
static inline uint32_t hw_state(const hw_region_t *r, size_t page)
{
    return __atomic_load_n(&r->states[page], __ATOMIC_ACQUIRE);
}

/** @return The state of a page that hw_post_states() has read, as its i-th. */
static inline uint32_t hw_read_state(const hw_region_t *r, size_t i)
{
    return ((const uint32_t*)(r->pair.a.memory + HW_STATES_AT))[i];
}

#endif
