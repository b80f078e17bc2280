/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Reads the states of a region continually, as a NIC does, and compares them
 * with the kernel's pagemap. While a state with a bit does not change,
 *
 *   - the page is present in the page table of the owner, and
 *   - it is the same frame as when the state was first seen.
 *
 * ARCHITECTURE 3 demands that of page-out and page-in, whatever takes the page
 * away. The check is exact, because the state is read before and after.
 */

#ifndef KMOD_WATCH_H
#define KMOD_WATCH_H

#include "kmod_test.h"

typedef struct kmod_watch {
    const volatile uint32_t *words;
    uint64_t                address;
    size_t                  num_pages;
    int                     pagemap;
    pthread_t               thread;
    int                     stop;
    int                     gone;      /* the owner's memory is gone */
    uint32_t                *seen;     /* word at the last check */
    uint64_t                *frames;   /* frame number at that time */
    uint64_t                looks;     /* valid states that were compared */
    uint64_t                repeated;  /* of these, unchanged ones */
    uint64_t                changed;   /* changed during the check */
    char                    wrong[256];
} kmod_watch_t;

/** Watch a region of this process, or of one whose states are mapped. */
void kmod_watch_start(kmod_watch_t *watch, const kmod_region_t *region,
                      pid_t pid);

/** Wait until a page was seen twice in the same state. */
void kmod_watch_await(kmod_watch_t *watch);

/** Stop watching, and fail if anything was wrong or nothing was seen. */
void kmod_watch_stop(kmod_watch_t *watch);

#endif
