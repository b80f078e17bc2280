/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_populator.h"

#include "ucm/access/nprdma_pagein.h"

#include <nprdma_page_state.h>

#include <ucs/debug/memtrack_int.h>

#include <pthread.h>
#include <stdatomic.h>

/* Maximum number of waiting jobs; a power of two */
#define UCT_NPRDMA_POPULATOR_JOBS  64u

/* Steps of a job before the next job is served */
#define UCT_NPRDMA_POPULATOR_MAX_STEPS  16


struct uct_nprdma_populator {
    uct_nprdma_mem_md_t          *md;
    uct_nprdma_pager_t           *pager;

    /* A leaf lock, held for a few instructions */
    pthread_mutex_t              lock;
    int                          stop;
    unsigned                     first;   /* Index of the next job */
    unsigned                     count;   /* Number of waiting jobs */
    uct_nprdma_populate_job_t    jobs[UCT_NPRDMA_POPULATOR_JOBS];
    int                          busy;    /* Another job is being executed */
    const void                   *owner;  /* Owner of that job */
    uct_nprdma_populator_stats_t stats;

    atomic_int                   cancel;  /* Give up the job that is being
                                           * executed */
};


/* ---- the background work ---- */

static uct_nprdma_populate_job_t *
uct_nprdma_populator_job(uct_nprdma_populator_t *populator, unsigned index)
{
    return &populator->jobs[(populator->first + index) &
                            (UCT_NPRDMA_POPULATOR_JOBS - 1)];
}

/* Resident pages are no fault for a userfaultfd: see nprdma_pagein_scan() */
static int uct_nprdma_populator_is_watched(const uct_nprdma_populate_job_t *job,
                                           uint64_t length)
{
    uintptr_t start = job->address & ~(uintptr_t)(NPRDMA_PAGE_SIZE - 1);

    return !(job->flags & NPRDMA_POPULATE_RESIDENT) &&
           nprdma_pagein_is_watched(start, (job->address + length - start +
                                            NPRDMA_PAGE_SIZE - 1) >>
                                           NPRDMA_PAGE_SHIFT,
                                    job->flags & NPRDMA_POPULATE_WRITE);
}

/* Execute a part of a job. Afterwards the job contains the rest. */
static void uct_nprdma_populator_run_job(uct_nprdma_populator_t *populator,
                                         uct_nprdma_populate_job_t *job)
{
    uint64_t step = (job->flags & NPRDMA_POPULATE_RESIDENT) ?
                    UCT_NPRDMA_POPULATE_RESIDENT_STEP :
                    UCT_NPRDMA_POPULATE_STEP;
    ucs_status_t status;
    uint64_t length;
    unsigned i;

    for (i = 0; (i < UCT_NPRDMA_POPULATOR_MAX_STEPS) && (job->length > 0) &&
                !atomic_load(&populator->cancel); ++i) {
        length = uct_nprdma_populate_step_length(job->address, job->length,
                                                 step);
        if (uct_nprdma_populator_is_watched(job, length)) {
            job->length = 0; /* An operation has to ask for it */
            break;
        }

        status = uct_nprdma_populate_step(populator->md, job->key, job->address,
                                          length, job->access, job->flags, NULL,
                                          0);
        if (status != UCS_OK) {
            job->length = 0; /* A later access reports the error */
            break;
        }

        job->address += length;
        job->length  -= length;
    }
}

int uct_nprdma_populator_run(uct_nprdma_populator_t *populator)
{
    uct_nprdma_populate_job_t job;
    int is_left;

    pthread_mutex_lock(&populator->lock);
    if (populator->count > 0) {
        job = *uct_nprdma_populator_job(populator, 0);
        ++populator->first;
        --populator->count;
        populator->busy  = 1;
        populator->owner = job.owner;
        atomic_store(&populator->cancel, 0);
        pthread_mutex_unlock(&populator->lock);

        uct_nprdma_populator_run_job(populator, &job);

        pthread_mutex_lock(&populator->lock);
        populator->busy = 0;
        if ((job.length > 0) && !atomic_load(&populator->cancel)) {
            /* uct_nprdma_populator_add() has left room for it */
            *uct_nprdma_populator_job(populator, populator->count++) = job;
        }
    }
    is_left = populator->count > 0;
    pthread_mutex_unlock(&populator->lock);
    return is_left;
}


/* ---- jobs ---- */

/* Check whether a waiting job includes a new one; the lock is held */
static int uct_nprdma_populator_covers(uct_nprdma_populator_t *populator,
                                       const uct_nprdma_populate_job_t *job)
{
    const uct_nprdma_populate_job_t *other;
    unsigned i;

    for (i = 0; i < populator->count; ++i) {
        other = uct_nprdma_populator_job(populator, i);
        if ((other->key == job->key) && (other->flags == job->flags) &&
            (other->owner == job->owner) &&
            (other->address <= job->address) &&
            ((other->address + other->length) >=
             (job->address + job->length))) {
            return 1;
        }
    }

    return 0;
}

/* @return Nonzero if the job was queued; the lock is held */
static int uct_nprdma_populator_push(uct_nprdma_populator_t *populator,
                                     const uct_nprdma_populate_job_t *job)
{
    /* The job that is being executed may be queued again */
    if ((populator->count + populator->busy) == UCT_NPRDMA_POPULATOR_JOBS) {
        ++populator->stats.dropped;
        return 0;
    }

    if (populator->stop || uct_nprdma_populator_covers(populator, job)) {
        return 0;
    }

    *uct_nprdma_populator_job(populator, populator->count++) = *job;
    ++populator->stats.jobs;
    return 1;
}

void uct_nprdma_populator_add(uct_nprdma_populator_t *populator,
                              const uct_nprdma_populate_job_t *job)
{
    int is_queued;

    /* A child made by fork() has no thread, and the lock may be held for ever
     * there */
    if ((job->length == 0) ||
        !uct_nprdma_device_is_owner(&populator->md->super)) {
        return;
    }

    pthread_mutex_lock(&populator->lock);
    is_queued = uct_nprdma_populator_push(populator, job);
    pthread_mutex_unlock(&populator->lock);
    if (is_queued) {
        uct_nprdma_pager_wake(populator->pager);
    }
}

void uct_nprdma_populator_cancel(uct_nprdma_populator_t *populator,
                                 const void *owner)
{
    unsigned i, count;
    uct_nprdma_populate_job_t *job;

    pthread_mutex_lock(&populator->lock);
    if (populator->busy && (populator->owner == owner)) {
        atomic_store(&populator->cancel, 1);
    }

    count            = populator->count;
    populator->count = 0;
    for (i = 0; i < count; ++i) {
        job = uct_nprdma_populator_job(populator, i);
        if (job->owner != owner) {
            *uct_nprdma_populator_job(populator, populator->count++) = *job;
        }
    }
    pthread_mutex_unlock(&populator->lock);
}

void uct_nprdma_populator_query(uct_nprdma_populator_t *populator,
                                uct_nprdma_populator_stats_t *stats)
{
    pthread_mutex_lock(&populator->lock);
    *stats         = populator->stats;
    stats->waiting = populator->count + populator->busy;
    pthread_mutex_unlock(&populator->lock);
}


/* ---- start and end ---- */

ucs_status_t uct_nprdma_populator_create(uct_nprdma_mem_md_t *md,
                                         uct_nprdma_pager_t *pager,
                                         uct_nprdma_populator_t **populator_p)
{
    uct_nprdma_populator_t *populator;

    populator = ucs_calloc(1, sizeof(*populator), "nprdma_populator");
    if (populator == NULL) {
        ucs_error("failed to allocate the populator of %s", md->super.name);
        return UCS_ERR_NO_MEMORY;
    }

    populator->md    = md;
    populator->pager = pager;
    pthread_mutex_init(&populator->lock, NULL);
    *populator_p = populator;
    return UCS_OK;
}

void uct_nprdma_populator_stop(uct_nprdma_populator_t *populator)
{
    pthread_mutex_lock(&populator->lock);
    populator->stop  = 1;
    populator->count = 0;
    atomic_store(&populator->cancel, 1);
    pthread_mutex_unlock(&populator->lock);
}

void uct_nprdma_populator_destroy(uct_nprdma_populator_t *populator)
{
    pthread_mutex_destroy(&populator->lock);
    ucs_free(populator);
}
