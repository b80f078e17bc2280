/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Tests of hw_views that print lines "NAME: VALUE", and end the program if
 * something is wrong. */

#ifndef HW_TESTS_H
#define HW_TESTS_H

#include "hw_access.h"

/**
 * WRITE or READ pages, and READ their states behind that, while they come and
 * go, for the given seconds, and up to ten times as long until some accesses
 * were verified and, for WRITEs, refused. An access is verified if the state
 * before it and the one that is read behind it are equal and permit it.
 * - When the module has taken a page away, no WRITE changes it any more.
 * - The data of a verified WRITE is there, and a verified READ has the page's.
 * - A word that is read is the page's or the signature.
 *
 * @param [in] by_kernel  Half of the time the kernel takes pages: by page-out,
 *                        or because of mprotect(). Else the program does, so
 *                        DMA that arrives late hits memory of the program.
 */
void hw_race(hw_access_t *a, int is_put, int by_kernel, int seconds);

/** Microseconds of the first registration of untouched memory. */
void hw_speed_register(hw_kind_t kind, const char *device, size_t length);

/** Microseconds of an access to present pages: the median if one is in flight
 * at a time, else the mean. verified: a READ of the states is behind each. */
void hw_speed_access(hw_access_t *a, int is_put, int verified, size_t length,
                     unsigned count, unsigned depth);

#endif
