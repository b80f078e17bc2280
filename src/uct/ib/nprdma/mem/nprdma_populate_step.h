/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_POPULATE_STEP_H_
#define UCT_NPRDMA_POPULATE_STEP_H_

#include "nprdma_mem_md.h"

/*
 * Brings pages of registrations into the views of the NIC (ARCHITECTURE 5,
 * populate policy), in the caller's thread.
 *
 * Each step looks the registration up by its key and holds it for that step
 * only. Therefore a thread that deregisters waits for the pages of at most one
 * step, and a thread that unmaps memory for none. A step for an ended
 * registration fails, so nothing has to be cancelled.
 */

/* Bytes of a step that may fault. The kernel may have to read the pages, for
 * instance from swap, and other requests wait no longer than for one step. */
#define UCT_NPRDMA_POPULATE_STEP           (64 * UCS_KBYTE)

/* Bytes of a step that populates resident pages only */
#define UCT_NPRDMA_POPULATE_RESIDENT_STEP  (2 * UCS_MBYTE)


/* Populate a range, not empty, of a registration that must allow
 * NPRDMA_REG_ACCESS_xx; any key is safe. Returns the states of the first pages
 * after populate. Errors are those of nprdma_reg_get() and
 * nprdma_monitor_populate(), and UCS_ERR_UNSUPPORTED if the NIC has no views
 * to it. */
ucs_status_t
uct_nprdma_populate_step(uct_nprdma_mem_md_t *md, uint64_t key,
                         uint64_t address, uint64_t length, uint32_t access,
                         unsigned flags, uint32_t *states, size_t num_states);


/* Length of the step that begins at an address, so that the following steps
 * begin at multiples of the step size, a power of two */
static inline uint64_t
uct_nprdma_populate_step_length(uint64_t address, uint64_t length,
                                uint64_t step)
{
    uint64_t left = step - (address & (step - 1));

    return ucs_min(left, length);
}

#endif
