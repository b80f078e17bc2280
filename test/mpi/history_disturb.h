/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HISTORY_DISTURB_H_
#define HISTORY_DISTURB_H_

#include <stddef.h>
#include <stdint.h>

/*
 * What may happen to a process at any time and must not be seen in its data,
 * by a thread of its own.
 */
typedef enum history_disturbance {
    HISTORY_FORK    = 1, /* Children, some of which write to their copies */
    HISTORY_PAGEOUT = 2  /* Pages are to be swapped out, or are made cold */
} history_disturbance_t;

#define HISTORY_DISTURB_RANGES  80u

/**
 * Start the thread.
 *
 * @param [in] kinds  history_disturbance_t, any of them; 0: no thread.
 * @param [in] seed   Of what it does.
 */
void history_disturb_start(unsigned kinds, uint64_t seed);


/**
 * Memory to disturb, private to the process (a child's copy is its own). Before
 * the start; at most HISTORY_DISTURB_RANGES.
 */
void history_disturb_add(void *address, size_t length);


/**
 * Stop the thread.
 *
 * @param [out] num_pageouts  How often pages were paged out.
 *
 * @return How often the process has forked.
 */
unsigned long history_disturb_stop(unsigned long *num_pageouts);

#endif
