/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_INVALIDATE_H_
#define NPRDMA_INVALIDATE_H_

#include "nprdma_monitor_types.h"
#include "ucm/events/nprdma_hook.h"

BEGIN_C_DECLS

/* Take pages away from the NIC; `gone`, a part of `taken`, is retired as well.
 * When this returns their bits NPRDMA_PAGE_xx are cleared, and no access to
 * them is in progress. For memory hooks. Returns the number of pages that lost
 * a bit. */
size_t nprdma_monitor_invalidate(nprdma_monitor_t *monitor, nprdma_span_t taken,
                                 nprdma_span_t gone, uint32_t bits);


/* As nprdma_monitor_invalidate(), in all regions for peers: all pages of a
 * closed region, which are retired, and those pages of another one that no live
 * range of it covers */
void nprdma_monitor_revoke(nprdma_monitor_t *monitor, nprdma_span_t span);


/* As nprdma_monitor_invalidate(), for regions that are being dropped: others in
 * the same memory keep their pages */
void nprdma_monitor_revoke_dying(nprdma_monitor_t *monitor, nprdma_span_t span);

END_C_DECLS

#endif
