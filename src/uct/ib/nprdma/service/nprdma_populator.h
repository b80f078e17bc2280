/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_POPULATOR_H_
#define UCT_NPRDMA_POPULATOR_H_

#include "uct/ib/nprdma/base/nprdma_md.h"

/*
 * Brings pages of registrations into the windows of the NIC, at the wish of
 * peers and ahead of what they will want (ARCHITECTURE 5, populate policy).
 *
 * A registration is found by its key for every step anew and held for that step
 * only. So a thread that deregisters waits for the pages of one step at most,
 * one that unmaps memory for none, and what is gone needs no cancelling.
 *
 * The populator is a thread for what nobody waits for. It begins when there is
 * something to do for the first time and sleeps while there is nothing.
 */

typedef struct uct_nprdma_populator uct_nprdma_populator_t;


/* Bytes of one step that may fault: a peer's wait for the kernel to find them
 * elsewhere, for instance in swap, holds up others for no longer */
#define UCT_NPRDMA_POPULATE_STEP           (64 * UCS_KBYTE)

/* Bytes of one step that only looks at what is present */
#define UCT_NPRDMA_POPULATE_RESIDENT_STEP  (2 * UCS_MBYTE)


/* What the populator has to do; nobody is told how it ended */
typedef struct uct_nprdma_populate_job {
    uint64_t   key;         /* Registration */
    uint64_t   address;
    uint64_t   length;
    uint32_t   access;      /* That the registration must allow,
                               NPRDMA_REG_ACCESS_xx */
    unsigned   flags;       /* NPRDMA_POPULATE_xx */
    const void *owner;      /* For whom, or NULL; see the cancel function */
} uct_nprdma_populate_job_t;


typedef struct uct_nprdma_populator_stats {
    uint64_t   jobs;        /* Begun */
    uint64_t   dropped;     /* Not even queued */
    uint64_t   bytes;       /* Of all steps that ended well */
} uct_nprdma_populator_stats_t;


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
uct_nprdma_populate_step(uct_nprdma_md_t *md, uint64_t key, uint64_t address,
                         uint64_t length, uint32_t access, unsigned flags,
                         uint32_t *states, size_t num_states);


/** @return Bytes that a step from an address takes, so that the following ones
 *          begin at multiples of the step size. */
static inline uint64_t
uct_nprdma_populate_step_length(uint64_t address, uint64_t length,
                                uint64_t step)
{
    uint64_t left = step - (address & (step - 1));

    return ucs_min(left, length);
}


/**
 * Create a populator. Starts no thread yet.
 *
 * @param [in]  md           MD whose registrations it works on.
 * @param [out] populator_p  To be given to @ref uct_nprdma_populator_destroy.
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t uct_nprdma_populator_create(uct_nprdma_md_t *md,
                                         uct_nprdma_populator_t **populator_p);


/** Stop a populator after its current step, forget its jobs, and free it. */
void uct_nprdma_populator_destroy(uct_nprdma_populator_t *populator);


/**
 * Add a job, unless there are too many or the same registration is waiting with
 * the same flags already. Never waits; may be called from any thread.
 *
 * @param [in] populator  Populator.
 * @param [in] job        Copied. Nothing in it needs to stay valid.
 */
void uct_nprdma_populator_add(uct_nprdma_populator_t *populator,
                              const uct_nprdma_populate_job_t *job);


/** Forget the jobs of an owner; one that is running ends after its step. */
void uct_nprdma_populator_cancel(uct_nprdma_populator_t *populator,
                                 const void *owner);


/** Get the counters; they need not be of one moment. */
void uct_nprdma_populator_query(uct_nprdma_populator_t *populator,
                                uct_nprdma_populator_stats_t *stats);

#endif
