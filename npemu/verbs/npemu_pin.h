/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Pinning of registered memory by mlock(), counted per page. */

#ifndef NPEMU_PIN_H
#define NPEMU_PIN_H

#include <stdint.h>

/** Pin pages. Pages that are pinned already cost no system call; several pins
 * of one page are counted. `writable`: the NIC will write: the pages must be
 * writable. Returns 0; ENOMEM at RLIMIT_MEMLOCK; EFAULT where nothing is mapped
 * or may not be written; or another errno value. */
int npemu_pin(uint64_t start, uint64_t end, int writable);

/** Undo one @ref npemu_pin of the same range. */
void npemu_unpin(uint64_t start, uint64_t end);

/** Before fork(): take the lock of the pins, so that the child does not inherit
 * it from another thread. */
void npemu_pin_fork_prepare(void);

/** After fork(), in parent and child: release the lock. */
void npemu_pin_fork_done(void);

#endif
