/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_POPULATOR_H_
#define UCT_NPRDMA_POPULATOR_H_

#include "nprdma_pager.h"

#include "uct/ib/nprdma/mem/nprdma_populate_step.h"

/*
 * Populates pages before peers need them (ARCHITECTURE 5, populate policy),
 * step by step (nprdma_populate_step.h): the background work of a pager.
 */

typedef struct uct_nprdma_populator uct_nprdma_populator_t;


/* A job of the populator; its result is not reported */
typedef struct uct_nprdma_populate_job {
    uint64_t   key;         /* Of the registration */
    uint64_t   address;
    uint64_t   length;
    uint32_t   access;      /* Access that the registration must allow,
                             * NPRDMA_REG_ACCESS_xx */
    unsigned   flags;       /* NPRDMA_POPULATE_xx */
    const void *owner;      /* For uct_nprdma_populator_cancel(); may be NULL */
} uct_nprdma_populate_job_t;


typedef struct uct_nprdma_populator_stats {
    uint64_t   jobs;        /* Queued */
    uint64_t   dropped;     /* Not queued, for lack of room */
    uint64_t   waiting;     /* Jobs that have not ended */
} uct_nprdma_populator_stats_t;


/* Create a populator for registrations of an MD. It wakes the pager when jobs
 * wait; the pager's background work is uct_nprdma_populator_run(). */
ucs_status_t uct_nprdma_populator_create(uct_nprdma_mem_md_t *md,
                                         uct_nprdma_pager_t *pager,
                                         uct_nprdma_populator_t **populator_p);


/* Drop all jobs; one that is being executed ends after its step */
void uct_nprdma_populator_stop(uct_nprdma_populator_t *populator);


/* Its pager does not exist any more */
void uct_nprdma_populator_destroy(uct_nprdma_populator_t *populator);


/* Execute a part of the first job; by one thread at a time. Nonzero: jobs are
 * left. */
int uct_nprdma_populator_run(uct_nprdma_populator_t *populator);


/* Copy a job. It is dropped if too many jobs wait, or if a waiting job includes
 * it. Its registration may end at any time. Never waits; safe in any thread. */
void uct_nprdma_populator_add(uct_nprdma_populator_t *populator,
                              const uct_nprdma_populate_job_t *job);


/* Drop the jobs of an owner; one that is being executed ends after its step */
void uct_nprdma_populator_cancel(uct_nprdma_populator_t *populator,
                                 const void *owner);


/* Copy the counters */
void uct_nprdma_populator_query(uct_nprdma_populator_t *populator,
                                uct_nprdma_populator_stats_t *stats);

#endif
