/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Address handles. */

#ifndef NPEMU_AH_H
#define NPEMU_AH_H

#include <infiniband/verbs.h>

/** Check an address vector. `unroutable`: 1 if it is well formed and no process
 * has it. Returns 0 or EINVAL. */
int npemu_ah_check(const struct ibv_ah_attr *attr, uint8_t *unroutable);

#endif
