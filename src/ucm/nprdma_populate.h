/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_POPULATE_H_
#define NPRDMA_POPULATE_H_

#include "nprdma_monitor_types.h"
#include "ucm/events/nprdma_hook.h"

BEGIN_C_DECLS

/**
 * Make pages accessible to the NIC. Pages that are not present in the process
 * are brought in. Pages that are accessible already cost no system call.
 *
 * Waits only for page faults. May race with every other call and every event:
 * a page that is taken away meanwhile does not get its bits.
 *
 * @param [in] monitor  Monitor.
 * @param [in] range    Live range.
 * @param [in] address  First byte, inside of @a range.
 * @param [in] length   Bytes. Whole pages are populated, including the parts of
 *                      the first and last page outside of the range.
 * @param [in] flags    NPRDMA_POPULATE_xx. A page that is populated for writing
 *                      can be read as well. With NPRDMA_POPULATE_RESIDENT,
 *                      pages that are not present, or that a write would have
 *                      to copy, are skipped.
 *
 * @return UCS_OK: every page had the bit at some time (with
 *         NPRDMA_POPULATE_RESIDENT: every page that was not skipped).
 *         UCS_ERR_INVALID_ADDR: a page is not mapped, protected, or behind the
 *         end of its file, or was unmapped after it was registered; the pages
 *         before it are populated. UCS_ERR_BUSY: a page is being unmapped now,
 *         or was taken away repeatedly. The caller releases what the unmapping
 *         thread may wait for (nprdma_reg_get()), and tries again.
 *         UCS_ERR_NO_MEMORY: the kernel module is out of memory or at a limit.
 *         UCS_ERR_OUT_OF_RANGE: not inside of @a range. UCS_ERR_UNSUPPORTED:
 *         forked child.
 */
ucs_status_t
nprdma_monitor_populate(nprdma_monitor_t *monitor, nprdma_range_t *range,
                        uintptr_t address, size_t length, unsigned flags);


/** @return Nonzero if a thread is populating part of a span. For hooks. */
int nprdma_monitor_is_populating(const nprdma_monitor_t *monitor,
                                 nprdma_span_t span);

END_C_DECLS

#endif
