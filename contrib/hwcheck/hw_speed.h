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

/** Prints what the module takes for pages of a region with windows, in
 * microseconds per page: to bring in pages that are mapped, and to take them
 * away again. */
void hw_speed_turn(const char *device, size_t pages, unsigned count);

/** Prints the microseconds of mapping, touching and unmapping memory that is no
 * region, next to a region with windows or without one. */
void hw_speed_cycle(const char *device, int has_region, size_t pages,
                    unsigned count);

#endif
