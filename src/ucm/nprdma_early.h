/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_EARLY_H_
#define NPRDMA_EARLY_H_

#include "nprdma_monitor_types.h"

BEGIN_C_DECLS

/**
 * Early page-in: pages of new memory that an operation will probably fill
 * (nprdma_forecast.h) come in while the process polls and has nothing else to
 * do. nprdma_monitor_params_t::early switches it on.
 */


/**
 * Report that an operation of this process will write to a buffer. A lookup
 * from 64 KiB on, and nothing below.
 *
 * @param [in] monitor  Monitor, also of a forked child.
 * @param [in] address  First byte.
 * @param [in] length   Bytes.
 */
void nprdma_early_filled(nprdma_monitor_t *monitor, uintptr_t address,
                         size_t length);


/** Report that a buffer has become accessible to peers. The same arguments. */
void nprdma_early_shown(nprdma_monitor_t *monitor, uintptr_t address,
                        size_t length);


/**
 * Bring in the next piece of memory that will be filled, if there is any: at
 * most 64 KiB, some 20 us. May create a region. Must not be called in memory
 * hooks.
 *
 * @param [in] monitor  Monitor, also of a forked child.
 *
 * @return Nonzero if there was a piece.
 */
int nprdma_early_page_in(nprdma_monitor_t *monitor);

END_C_DECLS

#endif
