/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PAGEMAP_H_
#define NPRDMA_PAGEMAP_H_

#include "nprdma_hook.h"

#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

/* PAGEMAP_SCAN, an ioctl of /proc/self/pagemap since Linux 6.7, which older
 * headers lack (Documentation/admin-guide/mm/pagemap.rst). It returns the
 * number of runs, neighbouring pages of equal categories, that it has filled
 * in. */

/* Categories of a page */
#define NPRDMA_PAGEMAP_WRITTEN (1u << 1) /* No userfaultfd watches writes */
#define NPRDMA_PAGEMAP_PRESENT (1u << 3)
#define NPRDMA_PAGEMAP_PFNZERO (1u << 5) /* The kernel's page of zeros */

typedef struct nprdma_pagemap_run {
    uint64_t start;
    uint64_t end;
    uint64_t categories;
} nprdma_pagemap_run_t;

typedef struct nprdma_pagemap_scan {
    uint64_t size; /* Of this structure */
    uint64_t flags;
    uint64_t start;
    uint64_t end;
    uint64_t walk_end; /* Out: where the kernel stopped */
    uint64_t vec;      /* Array of runs */
    uint64_t vec_len;
    uint64_t max_pages;
    uint64_t category_inverted;
    uint64_t category_mask;
    uint64_t category_anyof_mask;
    uint64_t return_mask;
} nprdma_pagemap_scan_t;

#define NPRDMA_PAGEMAP_SCAN _IOWR('f', 16, nprdma_pagemap_scan_t)

/* Before the call. valgrind does not know that the call fills in the runs, and
 * would report each use of them. */
NPRDMA_HOOK
static inline void nprdma_pagemap_clear(nprdma_pagemap_run_t *runs,
                                        size_t num_runs)
{
    memset(runs, 0, num_runs * sizeof(*runs));
}

#endif
