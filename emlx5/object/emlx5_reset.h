/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Function-level reset. */

#ifndef EMLX5_RESET_H
#define EMLX5_RESET_H

#include "object/emlx5_hca.h"

/** Destroys everything the guest made. No DMA happens. */
void emlx5_reset(emlx5_hca_t *hca);

/** The same, by the function's queue: for message handlers, which may run while
 * an object waits for its DMA. From now on, no DMA begins. */
void emlx5_reset_later(emlx5_hca_t *hca);

#endif
