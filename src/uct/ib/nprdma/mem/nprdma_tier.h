/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_TIER_H_
#define UCT_NPRDMA_TIER_H_

#include "nprdma_mem_md.h"

/* How a memory domain gets zero copy. A tier is a way to watch memory for a
 * device, or the device's on-demand paging. Tiers are tried in order of
 * preference, and copy mode is what remains (ARCHITECTURE 5). */

/* Values of UCX_NPRDMA_MONITOR */
extern const char *uct_nprdma_monitor_names[];


/* Open the memory monitor of an MD, or on-demand paging, by the first tier that
 * works for its device. If none does, md->monitor and md->odp are NULL, one
 * line in the log says why not for each tier, and all data is copied.
 * UCS_ERR_INVALID_PARAM: the configuration cannot be met. */
ucs_status_t uct_nprdma_tier_init(uct_nprdma_mem_md_t *md);


/* The MD has no registrations any more */
void uct_nprdma_tier_cleanup(uct_nprdma_mem_md_t *md);

#endif
