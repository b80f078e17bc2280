/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_SWAPPER_H_
#define NPRDMA_TEST_SWAPPER_H_

#include <stddef.h>
#include <stdint.h>

/*
 * An oracle: memory whose absent pages cannot be read by accident. A page that
 * is swapped out is really removed. A userfaultfd for faults of user mode
 * brings it back, so accesses by the kernel, as the emulated RNIC makes, get
 * EFAULT. The monitor when it populates, and the service when it copies, may
 * bring pages in. Their system calls are hooked in this program, and touch the
 * pages first.
 */

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Watch a range of memory. Once per process.
 *
 * @return 0, or an errno value if the kernel does not support it.
 */
int swapper_start(char *ptr, size_t length);
void swapper_stop(void);

/** Take a page, given by its number, from the process. */
void swapper_out(size_t page);

/** @return Number of pages that have come back. */
uint64_t swapper_num_in(void);

#ifdef __cplusplus
}
#endif

#endif
