/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_HUGE_H_
#define NPRDMA_HUGE_H_

#include "nprdma_events.h"

BEGIN_C_DECLS

/**
 * Mappings of huge pages (hugetlbfs): the kernel rounds the lengths that
 * mmap(), mremap() and, in some versions, madvise() are given up to their page
 * size, so these calls take away more than their arguments tell.
 *
 * All but @ref nprdma_huge_init is for memory hooks, and leaves errno alone.
 */


/** Find out the size of huge pages that a call asks for without naming one. */
void nprdma_huge_init(void);


/**
 * @param [in] address    First byte; rounded down to a page.
 * @param [in] length     Bytes.
 * @param [in] page_size  Of the mapping, a power of two.
 *
 * @return The whole pages that the bytes lie in. Ends at UINTPTR_MAX if it
 *         would wrap around.
 */
nprdma_span_t nprdma_huge_span(uintptr_t address, size_t length,
                               size_t page_size);


/**
 * @param [in] address  Where mmap() is to map, or has mapped.
 * @param [in] flags    MAP_xx.
 * @param [in] fd       Descriptor; not looked at with MAP_ANONYMOUS.
 *
 * @return Page size of what mmap() with these arguments maps.
 */
size_t nprdma_huge_mmap_page(uintptr_t address, int flags, int fd);


/**
 * @param [in] address  Start of a mapping, or of a page in it.
 *
 * @return Page size of what is mapped there; that of ordinary pages if nothing
 *         is.
 */
size_t nprdma_huge_page_at(uintptr_t address);


/** @return The whole pages that bytes lie in which are mapped, or are not. */
nprdma_span_t nprdma_huge_mapped(const void *address, size_t length);


/**
 * @return The whole pages of what mmap() maps, or would, at @a address.
 */
nprdma_span_t nprdma_huge_mmap(const void *address, size_t length, int flags,
                               int fd);


/**
 * @return A span of ordinary pages, with what else a call would take if it used
 *         huge pages of the default size in its place.
 */
nprdma_span_t nprdma_huge_widen(nprdma_span_t span);

END_C_DECLS

#endif
