/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_SWAPPER_H_
#define NPRDMA_TEST_SWAPPER_H_

#include <stddef.h>
#include <stdint.h>

/*
 * An oracle: memory whose absent pages cannot be had by accident. A page that
 * is swapped out here is gone, and a userfaultfd that serves faults of user
 * mode only brings it back: whoever accesses it by the kernel, as the emulated
 * RNIC does, gets EFAULT. The two that may bring pages in, the monitor when it
 * populates and the service when it copies, would get that, too: their system
 * calls are hooked in this program, and touch the pages first.
 */

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Watch memory; once per process.
 *
 * @return 0, or an errno value if the kernel does not offer it.
 */
int swapper_start(char *ptr, size_t length);
void swapper_stop(void);

/** Take a page, by number, from the process. */
void swapper_out(size_t page);

/** @return Pages that have come back. */
uint64_t swapper_num_in(void);

#ifdef __cplusplus
}
#endif

#endif
