/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HW_RACE_H
#define HW_RACE_H

#include "hw_access.h"

/*
 * Each race lasts the given seconds, and up to ten times as long until what it
 * is about has happened: pages that are verified and, for WRITEs, refused.
 */

/** What happens to the pages meanwhile */
typedef enum {
    HW_TAKE_BY_CALL,  /* the program takes them away from the device. If DMA
                       * arrives late, it hits memory of the program. */
    HW_TAKE_BY_KERNEL /* half of the time, the kernel takes them: by page-out,
                       * or because of mprotect() */
} hw_take_t;

/**
 * WRITE pages and READ their states behind that, while they come and go.
 * - When the module has taken a page away, no WRITE changes it any more.
 * - If the state before a WRITE and the state that is read behind it are equal
 *   and say that the device may write, all of the data is there.
 * Anything else ends the program. Prints how often what was seen.
 */
void hw_race_puts(hw_access_t *a, hw_take_t take, int seconds);

/**
 * READ pages and their states behind that, while they come and go.
 * - Each word is the page's or the signature.
 * - If the state before the READ and the state that is read behind it are equal
 *   and say that the device may read, each word is the page's.
 */
void hw_race_gets(hw_access_t *a, hw_take_t take, int seconds);

#endif
