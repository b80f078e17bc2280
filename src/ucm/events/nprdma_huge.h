/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_HUGE_H_
#define NPRDMA_HUGE_H_

#include "nprdma_hook.h"

BEGIN_C_DECLS

/*
 * Mappings of huge pages (hugetlbfs). The kernel rounds the lengths of mmap()
 * and mremap() up to their page size. So these calls take away more than their
 * arguments say.
 *
 * All functions but nprdma_huge_init() are for memory hooks, and keep errno.
 */


void nprdma_huge_init(void);


/* The whole ordinary pages that hold bytes */
nprdma_span_t nprdma_huge_pages(const void *address, size_t length);


/* Page size of the mapping that mmap() creates, or has created, with these
 * arguments */
size_t nprdma_huge_mmap_page(uintptr_t address, int flags, int fd);


/* Page size of the mapping that has an address; that of ordinary pages if there
 * is none */
size_t nprdma_huge_page_at(uintptr_t address);


/* The whole pages that hold bytes, which need not be mapped */
nprdma_span_t nprdma_huge_mapped(const void *address, size_t length);


/* The whole pages that mmap() with these arguments maps */
nprdma_span_t nprdma_huge_mmap(const void *address, size_t length, int flags,
                               int fd);


/* The span that a call takes if it uses huge pages of the default size in place
 * of ordinary ones */
nprdma_span_t nprdma_huge_widen(nprdma_span_t span);

END_C_DECLS

#endif
