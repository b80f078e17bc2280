/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_HUGE_H_
#define NPRDMA_HUGE_H_

#include "nprdma_hook.h"

BEGIN_C_DECLS

/**
 * Mappings of huge pages (hugetlbfs). The kernel rounds the lengths of mmap(),
 * mremap() and, in some versions, madvise() up to their page size. So these
 * calls take away more than their arguments say.
 *
 * All functions but @ref nprdma_huge_init are for memory hooks, and keep errno.
 */


/** Find out the default size of huge pages. */
void nprdma_huge_init(void);


/**
 * @param [in] address    First byte; rounded down to a page.
 * @param [in] length     Bytes.
 * @param [in] page_size  Of the mapping, a power of two.
 *
 * @return The whole pages that hold the bytes. Ends at UINTPTR_MAX if it would
 *         wrap around.
 */
nprdma_span_t nprdma_huge_span(uintptr_t address, size_t length,
                               size_t page_size);


/**
 * @param [in] address  Address that mmap() is to map, or has mapped.
 * @param [in] flags    MAP_xx.
 * @param [in] fd       Descriptor; ignored with MAP_ANONYMOUS.
 *
 * @return Page size of the mapping that mmap() creates with these arguments.
 */
size_t nprdma_huge_mmap_page(uintptr_t address, int flags, int fd);


/**
 * @param [in] address  Start of a mapping, or of a page in it.
 *
 * @return Page size of the mapping; that of ordinary pages if there is none.
 */
size_t nprdma_huge_page_at(uintptr_t address);


/** @return The whole pages that hold bytes, which need not be mapped. */
nprdma_span_t nprdma_huge_mapped(const void *address, size_t length);


/**
 * @return The whole pages that mmap() with these arguments maps.
 */
nprdma_span_t nprdma_huge_mmap(const void *address, size_t length, int flags,
                               int fd);


/**
 * @return The span that a call takes if it uses huge pages of the default size
 *         in place of ordinary ones.
 */
nprdma_span_t nprdma_huge_widen(nprdma_span_t span);

END_C_DECLS

#endif
