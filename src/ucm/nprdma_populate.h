/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_POPULATE_H_
#define NPRDMA_POPULATE_H_

#include "nprdma_monitor_types.h"
#include "ucm/events/nprdma_hook.h"

BEGIN_C_DECLS

/*
 * Make pages accessible to the NIC. Pages that are not present in the process
 * are brought in. Pages that are accessible already cost no system call.
 *
 * Waits only for page faults. May race with every other call and every event: a
 * page that is taken away meanwhile does not get its bits.
 */
ucs_status_t
nprdma_monitor_populate(nprdma_monitor_t *monitor, nprdma_range_t *range,
                        uintptr_t address, size_t length, unsigned flags);


/* A thread is populating part of a span. For hooks. */
int nprdma_monitor_is_populating(const nprdma_monitor_t *monitor,
                                 nprdma_span_t span);

END_C_DECLS

#endif
