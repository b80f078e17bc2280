/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Memory that one device accesses in the name of another one by RDMA: pinned,
 * on demand, or through views of the kernel module. Whatever cannot be made
 * ends the program with a message. */

#ifndef HW_REGION_H
#define HW_REGION_H

#include "emlx5_pair.h"

#include <nprdma_uapi.h>

enum { HW_PAGE = NPRDMA_PAGE_SIZE, HW_WORDS = HW_PAGE / 8 /* of a page */ };

/* Exit status for what the device or the kernel does not have */
enum { HW_SKIPPED = 77 };

typedef enum {
    HW_PINNED,
    HW_ON_DEMAND,
    HW_VIEWS
} hw_kind_t;

typedef struct {
    hw_kind_t         kind;
    uint64_t          *memory; /* untouched when it is made */
    size_t            length;
    struct ibv_mr     *read;   /* remote READs, by addresses of `memory` */
    struct ibv_mr     *write;  /* remote WRITEs, likewise */

    /* With HW_VIEWS */
    int               module;    /* context, or -1 */
    uint32_t          id;
    uint64_t          signature; /* that absent pages read as */
    struct ibv_mr     *state_mr; /* state words, from address 0 on */
    const uint32_t    *states;   /* the same, mapped */
    void              *mapped;
    size_t            mapped_size;
} hw_region_t;

/** Asks the module to attach a device ("mlx5_0", or "mlx5_0/1", whose port does
 * not matter). @return The answer, and the context in `module`. */
struct nprdma_ioc_attach_device hw_attach(hw_region_t *r, const char *device);

/** Maps memory. With HW_VIEWS the device must be attached. */
void hw_region_map(hw_region_t *r, hw_kind_t kind, size_t length);

/** Registers it with a device. This is what an application would wait for. Ends
 * the program with HW_SKIPPED if the device has no such registration. */
void hw_region_register(hw_region_t *r, struct ibv_pd *pd);

/** Registers it again, with HW_VIEWS, after the device has lost its driver.
 * The registrations that there were are forgotten. */
void hw_region_import(hw_region_t *r, struct ibv_pd *pd);

/** Deregisters, unmaps, and closes the context. */
void hw_region_close(hw_region_t *r);

/** Makes pages accessible; without HW_VIEWS they are. */
void hw_populate(const hw_region_t *r, size_t page, size_t count,
                 unsigned flags);

/** Takes pages away from the device. */
void hw_invalidate(const hw_region_t *r, size_t page, size_t count);

/** @return Pages that the kernel took away since the region was made. */
unsigned long hw_taken_by_kernel(const hw_region_t *r);

/** @return The state of a page as the CPU sees it. */
static inline uint32_t hw_state(const hw_region_t *r, size_t page)
{
    return __atomic_load_n(&r->states[page], __ATOMIC_ACQUIRE);
}

#endif
