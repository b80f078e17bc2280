/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SELFCHECK_H_
#define UCT_NPRDMA_SELFCHECK_H_

#include "nprdma_mem_md.h"

/*
 * Check that views of a device behave as the rules of ARCHITECTURE 3 need, on
 * a few pages of this process over a loopback connection: absent pages read as
 * the signature and swallow writes, states that the device reads are those that
 * the process sees, no access happens behind an invalidation, and a READ does
 * not overtake a WRITE. Takes some milliseconds. Creates the first region,
 * which stays in the monitor's cache, and measures the time of that.
 *
 * A device that passes may still be broken in a way that shows seldom.
 * UCS_ERR_INVALID_PARAM: the device does not take a region of this size;
 * UCS_ERR_EXCEEDS_LIMIT: there are no resources for one; UCS_ERR_NO_DEVICE: it
 * is refused for another reason; UCS_ERR_IO_ERROR: the device does not work or
 * breaks a rule.
 */
ucs_status_t
uct_nprdma_selfcheck(uct_nprdma_mem_md_t *md, char *why, size_t max);

#endif
