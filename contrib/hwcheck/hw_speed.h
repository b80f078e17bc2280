/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HW_SPEED_H
#define HW_SPEED_H

#include "hw_access.h"

/** Prints the microseconds of the first registration of untouched memory. */
void hw_speed_register(hw_kind_t kind, const char *device, size_t length);

/**
 * Prints the microseconds of an access to present pages: the median if one is
 * in flight at a time, else the mean.
 *
 * @param [in] verified  With HW_WINDOWS: a READ of the states is behind each.
 * @param [in] length    Bytes of an access, at most 1 MiB.
 * @param [in] depth     Accesses in flight, at most 16.
 */
void hw_speed_access(hw_access_t *a, int is_put, int verified, size_t length,
                     unsigned count, unsigned depth);

#endif
