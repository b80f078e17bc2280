/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PAGEIN_H_
#define NPRDMA_PAGEIN_H_

#include <nprdma_page_state.h>

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/* Which pages of this process are present, and how to bring them in. By system
 * calls without the C library: UCM would report our madvise() to our own
 * hooks. */


/* Most pages of one nprdma_pagein_scan() */
#define NPRDMA_PAGEIN_MAX 512

/* Most pages of one nprdma_pagein_is_watched() */
#define NPRDMA_PAGEIN_PROBE_MAX 65


/* Bit i % 64 of word i / 64 stands for page i */
typedef struct nprdma_page_set {
    uint64_t bits[NPRDMA_PAGEIN_MAX / 64];
} nprdma_page_set_t;


/* Open the files of /proc, or count one more user. An error is logged. */
ucs_status_t nprdma_pagein_init(void);

/* The last user closes the files */
void nprdma_pagein_cleanup(void);


/* In a child after fork(): release the lock of nprdma_pagein_init() and
 * _cleanup(), which another thread of the parent may have held */
void nprdma_pagein_forked(void);


/* Bring pages in, so that a write or a read does not fault; by reading, a page
 * that was never accessed becomes a zero page. Counts system calls. Returns the
 * number of pages before the first one that cannot be brought in, because it is
 * not mapped, protected, or behind the end of its file. */
size_t nprdma_pagein_fault(uintptr_t start, size_t count, int write,
                           uint64_t *calls_p);


/* Times that this thread has waited for something, such as a page from a disk.
 * To clear a page, or to lose the CPU, is no wait. */
long nprdma_pagein_num_waits(void);


/* Find pages that are present, of NPRDMA_PAGEIN_MAX at most. Accesses none of
 * them. `write` leaves out pages that a write may have to copy, because they
 * are of zeros or another process maps them too, and those that a userfaultfd
 * protects against writing. */
void nprdma_pagein_scan(uintptr_t start, size_t count, int write,
                        nprdma_page_set_t *set);


/* The first of the pages that may be present, or `count`: that
 * nprdma_pagein_in_memory() would count */
size_t nprdma_pagein_next(uintptr_t start, size_t count);


/* Find out whether an access that no caller waits for may be a fault for a
 * userfaultfd of the application: its thread may be the one that waits for us.
 * Accesses none of the pages, NPRDMA_PAGEIN_PROBE_MAX at most. Nonzero if the
 * first absent page is watched, or with `write` one that is protected. Zero as
 * well if the kernel gives this process no userfaultfd, as then the program has
 * none. */
int nprdma_pagein_is_watched(uintptr_t start, size_t count, int write);


/* Count the pages from the first one on that an access finds in memory: mapped,
 * or in the page cache, or in the swap cache. Accesses none of them. Every page
 * of a file that the user neither owns nor may write counts (mincore(2)), and a
 * page that is not mapped, with others of the same 16 MiB. */
size_t nprdma_pagein_in_memory(uintptr_t start, size_t count);


/* Ask the kernel to read absent pages of files and of swap, without waiting for
 * the disk */
void nprdma_pagein_read_ahead(uintptr_t start, size_t count);


/* Ask the kernel to write pages out. They stay mapped. */
void nprdma_pagein_evict(uintptr_t start, size_t count);

END_C_DECLS

#endif
