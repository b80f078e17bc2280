/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Pinning of registered memory: a count, or mlock(). */

#ifndef NPEMU_PIN_H
#define NPEMU_PIN_H

#include "base/npemu_link.h"

#include <stdint.h>

/* A pin of whole pages. */
typedef struct {
    npemu_link_t link;
    uint64_t     start;
    uint64_t     end;
    int          is_locked;
} npemu_pin_t;

/** Pin pages. Several pins may have one page. `writable`: the NIC will write:
 * the pages must be writable. `is_locked`: by mlock(), else they are populated
 * and counted. Returns 0; ENOMEM at RLIMIT_MEMLOCK if they are locked; EFAULT
 * where nothing is mapped or may not be written; or another errno value. */
int npemu_pin(npemu_pin_t *pin, uint64_t start, uint64_t end, int writable,
              int is_locked);

/** Undo @ref npemu_pin: pages that no other pin has are unlocked. */
void npemu_unpin(npemu_pin_t *pin);

/** Before fork(): take the lock of the pins, so that the child does not inherit
 * it from another thread. */
void npemu_pin_fork_prepare(void);

/** After fork(), in parent and child: release the lock. */
void npemu_pin_fork_done(void);

#endif
