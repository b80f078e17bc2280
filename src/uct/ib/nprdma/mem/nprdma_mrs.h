/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_MRS_H_
#define UCT_NPRDMA_MRS_H_

#include "nprdma_mem_md.h"

#include "nprdma_page_state.h"

/* A region of the memory monitor on the device. The views have the same
 * addresses as the memory, so that an address can be used with the key of
 * either view. The states begin at address 0, with four bytes for each page.
 * These memory regions never change: registering memory in a region does not
 * call the device. */
typedef struct uct_nprdma_mrs {
    struct ibv_mr *r;           /* Sources: absent pages show the signature */
    struct ibv_mr *w;           /* Destinations: absent pages swallow it */
    struct ibv_mr *s;           /* Page states, for peers to read; NULL for a
                                 * local region */
    uint64_t      id;           /* Never reused, see uct_nprdma_rkey_t */
} uct_nprdma_mrs_t;


/* Create the memory regions of a region of the monitor, whose priv is set, as
 * nprdma_monitor_params_t::attach says, and close its descriptor.
 * UCS_ERR_EXCEEDS_LIMIT: the device or the kernel module has no resources left;
 * UCS_ERR_INVALID_PARAM: the device does not take a region of this size. */
ucs_status_t uct_nprdma_mrs_attach(void *arg, nprdma_region_t *region);

void uct_nprdma_mrs_detach(void *arg, nprdma_region_t *region);


/* Whether every page of a range in the region has the bits NPRDMA_PAGE_xx at
 * this moment */
int uct_nprdma_mrs_is_valid(const nprdma_region_t *region, uintptr_t address,
                            size_t length, uint32_t bits);


/* The region on the device */
static inline const uct_nprdma_mrs_t *
uct_nprdma_mrs(const nprdma_region_t *region)
{
    return (const uct_nprdma_mrs_t*)region->priv;
}

#endif
