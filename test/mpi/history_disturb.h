/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HISTORY_DISTURB_H_
#define HISTORY_DISTURB_H_

#include <stddef.h>
#include <stdint.h>

/*
 * A thread that does to its process what may happen to any process at any time.
 * The process's data must not be affected.
 */
typedef enum history_disturbance {
    HISTORY_FORK    = 1, /* Children; some write to their copies */
    HISTORY_PAGEOUT = 2, /* Swap pages out, or mark them cold */
    HISTORY_MOVE    = 4, /* Memory policies, migration, compaction */
    HISTORY_HUGE    = 8  /* Huge pages are formed, split and forbidden */
} history_disturbance_t;

#define HISTORY_NUM_DISTURBANCES  4u

#define HISTORY_DISTURB_RANGES  200u

/**
 * Start the thread.
 *
 * @param [in] kinds  Set of history_disturbance_t; 0: no thread.
 * @param [in] seed   Seed of its random choices.
 */
void history_disturb_start(unsigned kinds, uint64_t seed);

/**
 * Add private memory to disturb. Call before the start, at most
 * HISTORY_DISTURB_RANGES times. (A child has its own copy of the memory.)
 */
void history_disturb_add(void *address, size_t length);

/**
 * Stop the thread.
 *
 * @return How often it did each of the disturbances.
 */
const unsigned long *history_disturb_stop(void);

#endif
