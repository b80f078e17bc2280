/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_MRS_H_
#define UCT_NPRDMA_MRS_H_

#include "nprdma_mem_md.h"

#include "nprdma_page_state.h"

/*
 * A region of the memory monitor on the device. The windows have the same
 * addresses as the memory, so that an address can be used with the key of
 * either window. The states begin at address 0, with four bytes for each page.
 * These memory regions never change: registering memory in a region does not
 * call the device.
 */
typedef struct uct_nprdma_mrs {
    struct ibv_mr *r;           /* Sources: absent pages show the signature */
    struct ibv_mr *w;           /* Destinations: absent pages swallow it */
    struct ibv_mr *s;           /* Page states, for peers to read; NULL for a
                                 * local region */
    uint64_t      id;           /* Never reused, see uct_nprdma_rkey_t */
} uct_nprdma_mrs_t;


/**
 * Open the memory monitor of an MD. If zero copy is not possible, md->monitor
 * is NULL, a line in the log says why, and all data is copied (ARCHITECTURE 5,
 * copy mode).
 *
 * @param [in] md  MD with an open device.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM with a logged reason if the
 *         configuration cannot be met.
 */
ucs_status_t uct_nprdma_mrs_init(uct_nprdma_mem_md_t *md);


/**
 * Close the monitor of an MD and all regions.
 *
 * @param [in] md  MD without registrations.
 */
void uct_nprdma_mrs_cleanup(uct_nprdma_mem_md_t *md);


/**
 * Check whether the NIC can access pages of a region.
 *
 * @param [in] region   Region.
 * @param [in] address  First byte, inside of it.
 * @param [in] length   Length in bytes, at least one, inside of it.
 * @param [in] bits     NPRDMA_PAGE_xx.
 *
 * @return Nonzero if every page has these bits at this moment.
 */
int uct_nprdma_mrs_is_valid(const nprdma_region_t *region, uintptr_t address,
                            size_t length, uint32_t bits);


/** @return The region on the device. */
static inline const uct_nprdma_mrs_t *
uct_nprdma_mrs(const nprdma_region_t *region)
{
    return (const uct_nprdma_mrs_t*)region->priv;
}

#endif
