/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What the driver is told that the function can do. */

#ifndef EMLX5_CAPS_H
#define EMLX5_CAPS_H

#include <stdint.h>

/** Writes the general capabilities into EMLX5_CAPS_SIZE bytes of zeros. */
void emlx5_caps_general(uint8_t *caps);

/** Writes those of atomics. */
void emlx5_caps_atomic(uint8_t *caps);

#endif
