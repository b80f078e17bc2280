/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_REGION_H_
#define UCT_NPRDMA_REGION_H_

#include "nprdma_mem_md.h"

#include "nprdma_page_state.h"

/*
 * What the device knows of a region of the memory monitor. Its windows are
 * addressed like the memory itself, so that an address can be used with the key
 * of either window; the states begin at address 0, four bytes for each page.
 * They never change: registering memory in a region asks no device.
 */
typedef struct uct_nprdma_region {
    struct ibv_mr *r;           /* Sources: what absent pages show is the
                                   signature */
    struct ibv_mr *w;           /* Destinations: absent pages swallow it */
    struct ibv_mr *s;           /* Page states, for peers to read; a local
                                   region has none */
    uint64_t      id;           /* Never given to a region again, see
                                   uct_nprdma_rkey_t */
} uct_nprdma_region_t;


/**
 * Open the memory monitor of an MD, or find that all data has to be copied:
 * then md->monitor is NULL, and one line tells why.
 *
 * @param [in] md  MD with an opened device.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM with a logged reason if the
 *         configuration asks for what cannot be had.
 */
ucs_status_t uct_nprdma_region_init(uct_nprdma_mem_md_t *md);


/**
 * Close the monitor of an MD, with all regions.
 *
 * @param [in] md  MD without registrations.
 */
void uct_nprdma_region_cleanup(uct_nprdma_mem_md_t *md);


/**
 * @param [in] region   Region.
 * @param [in] address  First byte, inside of it.
 * @param [in] length   Bytes, at least one, inside of it.
 * @param [in] bits     NPRDMA_PAGE_xx.
 *
 * @return Nonzero if every page has them, at this moment.
 */
int uct_nprdma_region_is_valid(const nprdma_region_t *region, uintptr_t address,
                               size_t length, uint32_t bits);


/** @return What the device knows of a region. */
static inline const uct_nprdma_region_t *
uct_nprdma_region(const nprdma_region_t *region)
{
    return (const uct_nprdma_region_t*)region->priv;
}

#endif
