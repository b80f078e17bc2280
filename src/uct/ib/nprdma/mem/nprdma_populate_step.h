/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_POPULATE_STEP_H_
#define UCT_NPRDMA_POPULATE_STEP_H_

#include "nprdma_mem_md.h"

/*
 * Brings pages of registrations into the windows of the NIC (ARCHITECTURE 5,
 * populate policy), at once and in the caller's thread.
 *
 * A registration is found by its key for every step anew and held for that step
 * only. So a thread that deregisters waits for the pages of one step at most,
 * one that unmaps memory for none, and what is gone needs no cancelling.
 */

/* Bytes of one step that may fault: a peer's wait for the kernel to find them
 * elsewhere, for instance in swap, holds up others for no longer */
#define UCT_NPRDMA_POPULATE_STEP           (64 * UCS_KBYTE)

/* Bytes of one step that only looks at what is present */
#define UCT_NPRDMA_POPULATE_RESIDENT_STEP  (2 * UCS_MBYTE)


/**
 * Populate a piece of a registration.
 *
 * @param [in]  md       MD of the registration.
 * @param [in]  key      Its key; any value is safe.
 * @param [in]  address  First byte.
 * @param [in]  length   Bytes, not zero.
 * @param [in]  access   What the registration must allow, NPRDMA_REG_ACCESS_xx.
 * @param [in]  flags    NPRDMA_POPULATE_xx.
 * @param [out] states   States of the pages when they had been populated, for
 *                       the first num_states of them; may be NULL.
 *
 * @return UCS_OK; UCS_ERR_NO_ELEM, UCS_ERR_OUT_OF_RANGE or UCS_ERR_REJECTED as
 *         of nprdma_reg_get(); UCS_ERR_UNSUPPORTED if the NIC has no windows to
 *         it; UCS_ERR_BUSY or UCS_ERR_INVALID_ADDR as of
 *         nprdma_monitor_populate().
 */
ucs_status_t
uct_nprdma_populate_step(uct_nprdma_mem_md_t *md, uint64_t key,
                         uint64_t address, uint64_t length, uint32_t access,
                         unsigned flags, uint32_t *states, size_t num_states);


/** @return Bytes that a step from an address takes, so that the following ones
 *          begin at multiples of the step size. */
static inline uint64_t
uct_nprdma_populate_step_length(uint64_t address, uint64_t length,
                                uint64_t step)
{
    uint64_t left = step - (address & (step - 1));

    return ucs_min(left, length);
}

#endif
