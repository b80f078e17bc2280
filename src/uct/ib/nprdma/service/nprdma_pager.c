/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_pager.h"

#include "ucm/access/nprdma_pagein.h"
#include "ucm/regions/nprdma_range.h"

#include <nprdma_thread.h>

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/math.h>
#include <ucs/time/time.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* Longest time in microseconds of a job of more than one step. A peer waits for
 * it, and asks again for the rest */
#define UCT_NPRDMA_PAGER_USEC  200

/* Time in microseconds after the start of the last job until another thread
 * takes the next one: the reads of all are on their way, so that is rare */
#define UCT_NPRDMA_PAGER_STUCK_USEC  200

/* Time in microseconds in which no disk reads a page. What is there within it
 * comes from compressed memory, for instance */
#define UCT_NPRDMA_PAGER_QUICK_USEC  10

/* Most jobs that a thread reads ahead at once: to start more of them could wait
 * for the disk */
#define UCT_NPRDMA_PAGER_AHEAD  32

/* Time in seconds that destroy waits for pages */
#define UCT_NPRDMA_PAGER_PATIENCE  1


/* Ranges to populate that wait, at most: a power of two */
#define UCT_NPRDMA_PAGER_RANGES  64u

/* Steps of a range before the next one is served */
#define UCT_NPRDMA_PAGER_MAX_STEPS  16

/* Bytes of a step that populates resident pages only */
#define UCT_NPRDMA_PAGER_RESIDENT_STEP  (2 * UCS_MBYTE)


/* One thread */
typedef struct uct_nprdma_pager_thread {
    uct_nprdma_pager_t *pager;
    pthread_t          thread;
    int                has_left; /* It does not access the pager any more */
} uct_nprdma_pager_thread_t;


struct uct_nprdma_pager {
    const char                   *name;
    const uct_nprdma_pager_ops_t *ops;
    void                         *arg;
    unsigned                     max_threads;

    /* A leaf lock, held for a few instructions, the start of a thread, or
     * system calls that wait for no page. Protects all that follows */
    pthread_mutex_t          lock;
    pthread_cond_t           work;        /* A job waits, or stop is set */
    pthread_cond_t           left;        /* A thread has left */
    ucs_list_link_t          waiting;
    ucs_list_link_t          done;
    unsigned                 num_waiting;
    /* Waiting jobs that are not read ahead yet */
    unsigned                 num_new;
    unsigned                 num_idle;    /* Threads that wait for a job */
    /* Those of them that take the next job if the others do not, and when */
    unsigned                 num_watches;
    struct timespec          stuck;
    unsigned                 num_running; /* Threads that execute a job */
    unsigned                 num_calls;   /* Threads in functions of ops */

    /* Ranges to populate: a ring */
    uct_nprdma_populate_t    ranges[UCT_NPRDMA_PAGER_RANGES];
    unsigned                 first_range;
    unsigned                 num_ranges;
    int                      is_populating; /* A thread has a range */
    const void               *owner;        /* Of that range */
    atomic_int               is_canceled;   /* That range is */

    unsigned                 num_threads; /* That have not left */
    int                      stop;
    /* Destroyed: the last thread frees the pager */
    int                      is_given_up;
    int                      reported;    /* A failed start was logged */
    uct_nprdma_pager_stats_t stats;
    /* In use: stats.threads of max_threads */
    uct_nprdma_pager_thread_t threads[];
};


static void uct_nprdma_pager_free(uct_nprdma_pager_t *pager)
{
    nprdma_pagein_cleanup();
    pthread_cond_destroy(&pager->left);
    pthread_cond_destroy(&pager->work);
    pthread_mutex_destroy(&pager->lock);
    ucs_free(pager);
}


/* ---- the threads ---- */

/* Whether the pages of a job, which were absent, have been read meanwhile */
static int uct_nprdma_pager_was_read(const uct_nprdma_pager_job_t *job)
{
    size_t count = ucs_min(job->count, (size_t)NPRDMA_PAGEIN_PROBE_MAX);

    return nprdma_pagein_in_memory(job->address, count) == count;
}

/* Bring the pages of a job in, and fill its results */
static void uct_nprdma_pager_run(uct_nprdma_pager_job_t *job)
{
    const size_t step   = UCT_NPRDMA_PAGER_STEP / NPRDMA_PAGE_SIZE;
    ucs_time_t deadline = ucs_get_time() +
                          ucs_time_from_usec(UCT_NPRDMA_PAGER_USEC);
    int was_read        = !job->is_quick && uct_nprdma_pager_was_read(job);
    long num_waits      = was_read ? 0 : nprdma_pagein_num_waits();
    uint64_t calls      = 0;
    size_t count, done;

    job->done = 0;
    do {
        count      = ucs_min(step, job->count - job->done);
        done       = nprdma_pagein_fault(job->address +
                                         (job->done * NPRDMA_PAGE_SIZE), count,
                                         job->is_write, &calls);
        job->done += done;
    } while ((done == count) && (job->done < job->count) &&
             (ucs_get_time() < deadline));

    job->is_slow = was_read || (nprdma_pagein_num_waits() != num_waits);
}

/* Start to read the pages of a job */
static void uct_nprdma_pager_read(uct_nprdma_pager_job_t *job)
{
    ucs_time_t deadline = ucs_get_time() +
                          ucs_time_from_usec(UCT_NPRDMA_PAGER_QUICK_USEC);

    nprdma_pagein_read_ahead(job->address, job->count);
    job->is_quick = (ucs_get_time() < deadline) &&
                    uct_nprdma_pager_was_read(job) &&
                    (ucs_get_time() < deadline);
}

/*
 * Start to read the pages of jobs. The lock is held at the start and the end,
 * but not meanwhile. Jobs that have left the list then may not exist any more.
 */
static void uct_nprdma_pager_read_ahead(uct_nprdma_pager_t *pager)
{
    uct_nprdma_pager_job_t copies[UCT_NPRDMA_PAGER_AHEAD];
    uct_nprdma_pager_job_t *job;
    unsigned i, num = 0;

    ucs_list_for_each(job, &pager->waiting, list) {
        if ((job->reader == NULL) && (num < UCT_NPRDMA_PAGER_AHEAD)) {
            job->reader   = copies;
            job->index    = num;
            copies[num++] = *job;
        }
    }
    pager->num_new -= num;
    pthread_mutex_unlock(&pager->lock);

    for (i = 0; i < num; ++i) {
        uct_nprdma_pager_read(&copies[i]);
    }

    pthread_mutex_lock(&pager->lock);
    ucs_list_for_each(job, &pager->waiting, list) {
        if (job->reader == copies) {
            job->reader   = pager;
            job->is_quick = copies[job->index].is_quick;
        }
    }
}

static int uct_nprdma_pager_is_stuck(const uct_nprdma_pager_t *pager)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec > pager->stuck.tv_sec) ||
           ((now.tv_sec == pager->stuck.tv_sec) &&
            (now.tv_nsec >= pager->stuck.tv_nsec));
}

static void uct_nprdma_pager_set_stuck(uct_nprdma_pager_t *pager)
{
    clock_gettime(CLOCK_MONOTONIC, &pager->stuck);
    pager->stuck.tv_nsec += UCT_NPRDMA_PAGER_STUCK_USEC * 1000;
    if (pager->stuck.tv_nsec >= 1000000000) {
        pager->stuck.tv_nsec -= 1000000000;
        ++pager->stuck.tv_sec;
    }
}

static void *uct_nprdma_pager_thread(void *arg);

/* The lock is held */
static void uct_nprdma_pager_start(uct_nprdma_pager_t *pager)
{
    uct_nprdma_pager_thread_t *self = &pager->threads[pager->stats.threads];
    int ret;

    self->pager = pager;
    ret = nprdma_thread_start_accessing(&self->thread, uct_nprdma_pager_thread,
                                        self);
    if (ret != 0) {
        if (!pager->reported) {
            ucs_diag("%s: %u of %u threads to bring in pages: %s", pager->name,
                     pager->num_threads, pager->max_threads, strerror(ret));
            pager->reported = 1;
        }
        return;
    }

    pthread_setname_np(self->thread, "nprdma-pager");
    ++pager->num_threads;
    ++pager->stats.threads;
}

/*
 * Release the lock, and wake an idle thread or start one. A thread that wakes
 * while the lock is held has to sleep again.
 */
static void uct_nprdma_pager_unlock_and_wake(uct_nprdma_pager_t *pager)
{
    int has_idle = pager->num_idle > 0;

    if (!has_idle && (pager->num_threads < pager->max_threads)) {
        uct_nprdma_pager_start(pager);
    }
    pthread_mutex_unlock(&pager->lock);
    if (has_idle) {
        pthread_cond_signal(&pager->work);
    }
}

/* Release the lock for a call of a function of ops */
static void uct_nprdma_pager_call_begin(uct_nprdma_pager_t *pager)
{
    ++pager->num_calls;
    pthread_mutex_unlock(&pager->lock);
}

static void uct_nprdma_pager_call_end(uct_nprdma_pager_t *pager)
{
    pthread_mutex_lock(&pager->lock);
    --pager->num_calls;
    if (pager->stop) {
        pthread_cond_signal(&pager->left);
    }
}

/*
 * Execute the first job. The lock is held at the start and the end, but not
 * meanwhile. After the pager was destroyed the job does not exist any more, so
 * the thread works on a copy.
 */
static void uct_nprdma_pager_run_first(uct_nprdma_pager_t *pager)
{
    uct_nprdma_pager_job_t *job, copy;

    job  = ucs_list_extract_head(&pager->waiting, uct_nprdma_pager_job_t, list);
    copy = *job;
    --pager->num_waiting;
    ++pager->num_running;
    uct_nprdma_pager_set_stuck(pager);
    pager->stats.peak = ucs_max(pager->stats.peak, pager->num_running);
    if ((pager->num_waiting > 0) && (pager->num_watches == 0)) {
        uct_nprdma_pager_unlock_and_wake(pager);
    } else {
        pthread_mutex_unlock(&pager->lock);
    }

    uct_nprdma_pager_run(&copy);

    pthread_mutex_lock(&pager->lock);
    --pager->num_running;
    if (pager->stop) {
        return;
    }

    *job                = copy;
    pager->stats.slow += !!copy.is_slow;
    ucs_list_add_tail(&pager->done, &job->list);
    uct_nprdma_pager_call_begin(pager);
    pager->ops->notify(pager->arg);
    uct_nprdma_pager_call_end(pager);
}

/* Resident pages are no fault for a userfaultfd: see nprdma_pagein_scan() */
static int uct_nprdma_pager_is_watched(const uct_nprdma_populate_t *range,
                                       uint64_t length)
{
    uintptr_t start = range->address & ~(uintptr_t)(NPRDMA_PAGE_SIZE - 1);

    return !(range->flags & NPRDMA_POPULATE_RESIDENT) &&
           nprdma_pagein_is_watched(start, (range->address + length - start +
                                            NPRDMA_PAGE_SIZE - 1) >>
                                           NPRDMA_PAGE_SHIFT,
                                    range->flags & NPRDMA_POPULATE_WRITE);
}

/* Populate a part of a range. Afterwards it is the rest. */
static void uct_nprdma_pager_populate_part(uct_nprdma_pager_t *pager,
                                           uct_nprdma_populate_t *range)
{
    uint64_t step = (range->flags & NPRDMA_POPULATE_RESIDENT) ?
                    UCT_NPRDMA_PAGER_RESIDENT_STEP : UCT_NPRDMA_PAGER_STEP;
    uint64_t length;
    unsigned i;

    for (i = 0; (i < UCT_NPRDMA_PAGER_MAX_STEPS) && (range->length > 0) &&
                !atomic_load(&pager->is_canceled); ++i) {
        length = uct_nprdma_pager_step_length(range->address, range->length,
                                              step);
        /* An operation has to ask for what is watched, and a later access
         * reports the error */
        if (uct_nprdma_pager_is_watched(range, length) ||
            (pager->ops->populate(pager->arg, range, length) != UCS_OK)) {
            range->length = 0;
            break;
        }

        range->address += length;
        range->length  -= length;
    }
}

static uct_nprdma_populate_t *
uct_nprdma_pager_range(uct_nprdma_pager_t *pager, unsigned index)
{
    return &pager->ranges[(pager->first_range + index) %
                          UCT_NPRDMA_PAGER_RANGES];
}

/* Populate a part of the first range. The lock is held, but not meanwhile. */
static void uct_nprdma_pager_populate_first(uct_nprdma_pager_t *pager)
{
    uct_nprdma_populate_t range = *uct_nprdma_pager_range(pager, 0);

    ++pager->first_range;
    --pager->num_ranges;
    pager->is_populating = 1;
    pager->owner         = range.owner;
    atomic_store(&pager->is_canceled, 0);
    uct_nprdma_pager_call_begin(pager);
    uct_nprdma_pager_populate_part(pager, &range);
    uct_nprdma_pager_call_end(pager);
    pager->is_populating = 0;
    if ((range.length > 0) && !atomic_load(&pager->is_canceled)) {
        /* uct_nprdma_pager_populate() has left room for it */
        *uct_nprdma_pager_range(pager, pager->num_ranges++) = range;
    }
}

/* Sleep until a thread has to look again. The lock is held, but not
 * meanwhile. */
static void uct_nprdma_pager_watch(uct_nprdma_pager_t *pager)
{
    ++pager->num_idle;
    ++pager->num_watches;
    pthread_cond_timedwait(&pager->work, &pager->lock, &pager->stuck);
    --pager->num_watches;
    --pager->num_idle;
}

static void *uct_nprdma_pager_thread(void *arg)
{
    uct_nprdma_pager_thread_t *self = arg;
    uct_nprdma_pager_t *pager       = self->pager;
    int is_last;

    pthread_mutex_lock(&pager->lock);
    while (!pager->stop) {
        if ((pager->num_waiting == 0) && (pager->num_ranges > 0) &&
            !pager->is_populating) {
            uct_nprdma_pager_populate_first(pager);
        } else if (pager->num_waiting == 0) {
            ++pager->num_idle;
            pthread_cond_wait(&pager->work, &pager->lock);
            --pager->num_idle;
        } else if (pager->num_new > 0) {
            uct_nprdma_pager_read_ahead(pager);
        } else if ((pager->num_running == 0) ||
                   uct_nprdma_pager_is_stuck(pager)) {
            uct_nprdma_pager_run_first(pager);
        } else {
            uct_nprdma_pager_watch(pager);
        }
    }

    --pager->num_threads;
    self->has_left = 1;
    is_last        = pager->is_given_up && (pager->num_threads == 0);
    pthread_cond_signal(&pager->left);
    pthread_mutex_unlock(&pager->lock);
    if (is_last) {
        uct_nprdma_pager_free(pager);
    }
    return NULL;
}


/* ---- jobs ---- */

int uct_nprdma_pager_submit(uct_nprdma_pager_t *pager,
                            uct_nprdma_pager_job_t *job)
{
    int is_submitted;

    pthread_mutex_lock(&pager->lock);
    if (pager->num_threads == 0) {
        uct_nprdma_pager_start(pager);
    }

    is_submitted = (pager->num_threads > 0);
    if (is_submitted) {
        job->reader   = NULL;
        job->is_quick = 0;
        job->is_slow  = 0;
        ucs_list_add_tail(&pager->waiting, &job->list);
        ++pager->num_waiting;
        ++pager->num_new;
        ++pager->stats.jobs;
    }
    pthread_mutex_unlock(&pager->lock);
    return is_submitted;
}

void uct_nprdma_pager_kick(uct_nprdma_pager_t *pager)
{
    pthread_mutex_lock(&pager->lock);

    /* The disk reads a single page while a thread wakes. For more of them the
     * caller has no time, because other peers wait for it. */
    if ((pager->num_new == 1) && (pager->num_waiting == 1) &&
        (pager->num_running == 0)) {
        uct_nprdma_pager_read_ahead(pager);
    }

    /* A thread that waits for a page takes the next job then, and another one
     * watches it */
    if ((pager->num_waiting > 0) &&
        ((pager->num_watches == 0) || (pager->num_new > 0) ||
         (pager->num_running == 0))) {
        uct_nprdma_pager_unlock_and_wake(pager);
    } else {
        pthread_mutex_unlock(&pager->lock);
    }
}

int uct_nprdma_pager_cancel(uct_nprdma_pager_t *pager,
                            uct_nprdma_pager_job_t *job)
{
    uct_nprdma_pager_job_t *other;
    int is_waiting = 0;

    pthread_mutex_lock(&pager->lock);
    ucs_list_for_each(other, &pager->waiting, list) {
        if (other == job) {
            ucs_list_del(&job->list);
            --pager->num_waiting;
            pager->num_new -= (job->reader == NULL);
            is_waiting      = 1;
            break;
        }
    }
    pthread_mutex_unlock(&pager->lock);
    return is_waiting;
}

uct_nprdma_pager_job_t *uct_nprdma_pager_take_done(uct_nprdma_pager_t *pager)
{
    uct_nprdma_pager_job_t *job = NULL;

    pthread_mutex_lock(&pager->lock);
    if (!ucs_list_is_empty(&pager->done)) {
        job = ucs_list_extract_head(&pager->done, uct_nprdma_pager_job_t, list);
    }
    pthread_mutex_unlock(&pager->lock);
    return job;
}


/* ---- ranges to populate ---- */

/* Check whether a waiting range includes a new one; the lock is held */
static int uct_nprdma_pager_covers(uct_nprdma_pager_t *pager,
                                   const uct_nprdma_populate_t *range)
{
    const uct_nprdma_populate_t *other;
    unsigned i;

    for (i = 0; i < pager->num_ranges; ++i) {
        other = uct_nprdma_pager_range(pager, i);
        if ((other->key == range->key) && (other->flags == range->flags) &&
            (other->owner == range->owner) &&
            (other->address <= range->address) &&
            ((other->address + other->length) >=
             (range->address + range->length))) {
            return 1;
        }
    }

    return 0;
}

void uct_nprdma_pager_populate(uct_nprdma_pager_t *pager,
                               const uct_nprdma_populate_t *range)
{
    pthread_mutex_lock(&pager->lock);
    /* The range that a thread has may be queued again */
    if ((pager->num_ranges + pager->is_populating) == UCT_NPRDMA_PAGER_RANGES) {
        ++pager->stats.dropped;
    } else if ((range->length > 0) && !pager->stop &&
               !uct_nprdma_pager_covers(pager, range)) {
        *uct_nprdma_pager_range(pager, pager->num_ranges++) = *range;
        ++pager->stats.ranges;
        if (!pager->is_populating) {
            uct_nprdma_pager_unlock_and_wake(pager);
            return;
        }
    }
    pthread_mutex_unlock(&pager->lock);
}

void uct_nprdma_pager_populate_cancel(uct_nprdma_pager_t *pager,
                                      const void *owner)
{
    const uct_nprdma_populate_t *range;
    unsigned i, count;

    pthread_mutex_lock(&pager->lock);
    if (pager->is_populating && (pager->owner == owner)) {
        atomic_store(&pager->is_canceled, 1);
    }

    count             = pager->num_ranges;
    pager->num_ranges = 0;
    for (i = 0; i < count; ++i) {
        range = uct_nprdma_pager_range(pager, i);
        if (range->owner != owner) {
            *uct_nprdma_pager_range(pager, pager->num_ranges++) = *range;
        }
    }
    pthread_mutex_unlock(&pager->lock);
}

void uct_nprdma_pager_query(uct_nprdma_pager_t *pager,
                            uct_nprdma_pager_stats_t *stats)
{
    pthread_mutex_lock(&pager->lock);
    *stats            = pager->stats;
    stats->populating = pager->num_ranges + pager->is_populating;
    pthread_mutex_unlock(&pager->lock);
}


/* ---- start and end ---- */

ucs_status_t uct_nprdma_pager_create(unsigned max_threads, const char *name,
                                     const uct_nprdma_pager_ops_t *ops,
                                     void *arg, uct_nprdma_pager_t **pager_p)
{
    uct_nprdma_pager_t *pager;
    pthread_condattr_t attr;
    ucs_status_t status;

    status = nprdma_pagein_init();
    if (status != UCS_OK) {
        return status;
    }

    pager = ucs_calloc(1, sizeof(*pager) +
                          (max_threads * sizeof(*pager->threads)),
                       "nprdma_pager");
    if (pager == NULL) {
        ucs_error("failed to allocate the page-in threads of %s", name);
        nprdma_pagein_cleanup();
        return UCS_ERR_NO_MEMORY;
    }

    pager->name        = name;
    pager->ops         = ops;
    pager->arg         = arg;
    pager->max_threads = max_threads;
    pthread_mutex_init(&pager->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pager->work, &attr);
    pthread_cond_init(&pager->left, &attr);
    pthread_condattr_destroy(&attr);
    ucs_list_head_init(&pager->waiting);
    ucs_list_head_init(&pager->done);
    *pager_p = pager;
    return UCS_OK;
}

/* The lock is held */
static void uct_nprdma_pager_wait(uct_nprdma_pager_t *pager)
{
    struct timespec end;
    int ret = 0;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += UCT_NPRDMA_PAGER_PATIENCE;
    while ((pager->num_threads > 0) && (ret == 0)) {
        ret = pthread_cond_timedwait(&pager->left, &pager->lock, &end);
    }

    while (pager->num_calls > 0) {
        pthread_cond_wait(&pager->left, &pager->lock);
    }
}

/* The lock is held, and keeps threads that have not left from doing so. Those
 * that have left do not need the lock to end. */
static void uct_nprdma_pager_join(uct_nprdma_pager_t *pager)
{
    unsigned i;

    for (i = 0; i < pager->stats.threads; ++i) {
        if (pager->threads[i].has_left) {
            pthread_join(pager->threads[i].thread, NULL);
        } else {
            pthread_detach(pager->threads[i].thread);
        }
    }
}

void uct_nprdma_pager_destroy(uct_nprdma_pager_t *pager)
{
    const char *name = pager->name;
    unsigned num_threads;

    pthread_mutex_lock(&pager->lock);
    pager->stop        = 1;
    pager->num_waiting = 0;
    pager->num_new     = 0;
    pager->num_ranges  = 0;
    atomic_store(&pager->is_canceled, 1);
    ucs_list_head_init(&pager->waiting);
    pthread_cond_broadcast(&pager->work);
    uct_nprdma_pager_wait(pager);
    uct_nprdma_pager_join(pager);
    num_threads        = pager->num_threads;
    pager->is_given_up = 1;
    pthread_mutex_unlock(&pager->lock);
    if (num_threads == 0) {
        uct_nprdma_pager_free(pager);
    } else {
        ucs_warn("%s: %u threads still wait for pages that peers have asked "
                 "for: they end when these pages come", name, num_threads);
    }
}
