/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_POPULATE_STEP_H_
#define UCT_NPRDMA_POPULATE_STEP_H_

#include "nprdma_mem_md.h"

/*
 * Brings pages of registrations into the windows of the NIC (ARCHITECTURE 5,
 * populate policy), synchronously and in the caller's thread.
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


/**
 * Populate a part of a registration.
 *
 * @param [in]  md          MD of the registration.
 * @param [in]  key         Its key; any value is safe.
 * @param [in]  address     First byte.
 * @param [in]  length      Length in bytes, not zero.
 * @param [in]  access      Access that the registration must allow,
 *                          NPRDMA_REG_ACCESS_xx.
 * @param [in]  flags       NPRDMA_POPULATE_xx.
 * @param [out] states      States of the first pages after populate, at most
 *                          num_states; may be NULL if num_states is 0.
 * @param [in]  num_states  Entries of @a states.
 *
 * @return UCS_OK. UCS_ERR_NO_ELEM, UCS_ERR_OUT_OF_RANGE or UCS_ERR_REJECTED as
 *         nprdma_reg_get() returns them. UCS_ERR_UNSUPPORTED if the NIC has no
 *         windows to it. UCS_ERR_BUSY or UCS_ERR_INVALID_ADDR as
 *         nprdma_monitor_populate() returns them.
 */
ucs_status_t
uct_nprdma_populate_step(uct_nprdma_mem_md_t *md, uint64_t key,
                         uint64_t address, uint64_t length, uint32_t access,
                         unsigned flags, uint32_t *states, size_t num_states);


/**
 * @param [in] address  First byte.
 * @param [in] length   Length in bytes from there on.
 * @param [in] step     Step size in bytes, a power of two.
 *
 * @return Length in bytes of the step that begins at an address, so that the
 *         following steps begin at multiples of the step size.
 */
static inline uint64_t
uct_nprdma_populate_step_length(uint64_t address, uint64_t length,
                                uint64_t step)
{
    uint64_t left = step - (address & (step - 1));

    return ucs_min(left, length);
}

#endif
