/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_POPULATOR_H_
#define UCT_NPRDMA_POPULATOR_H_

#include "uct/ib/nprdma/mem/nprdma_populate_step.h"

/*
 * The populator is a thread that populates ahead of what peers will want
 * (ARCHITECTURE 5, populate policy), step by step (nprdma_populate_step.h). It
 * begins when there is something to do for the first time and sleeps while
 * there is nothing.
 */

typedef struct uct_nprdma_populator uct_nprdma_populator_t;


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
 * Create a populator. Starts no thread yet.
 *
 * @param [in]  md           MD whose registrations it works on.
 * @param [out] populator_p  To be given to @ref uct_nprdma_populator_destroy.
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t uct_nprdma_populator_create(uct_nprdma_mem_md_t *md,
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
