/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_PAGER_H_
#define UCT_NPRDMA_PAGER_H_

#include <ucs/datastruct/list.h>
#include <ucs/sys/math.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

/*
 * The threads that help: they bring pages into memory, so that a disk reads
 * several at once and nothing else waits for them. They cause page faults, hold
 * no registration and no lock meanwhile, and change no page state. So memory
 * may be unmapped, and registrations may end, at any time. While no job waits,
 * one of them populates pages before peers need them (ARCHITECTURE 5, populate
 * policy), step by step.
 *
 * One thread is mostly enough: the reads of all jobs are started before it
 * waits for the first. A switch of threads for each page would cost more than
 * the page. Where pages do not come within a short time, because nothing can be
 * read ahead or a page never comes, further threads take the next jobs.
 * So a page of a file system or of a userfaultfd that never answers holds one
 * thread, not the others.
 */

/* Bytes of a step that may fault: others wait no longer than for one step */
#define UCT_NPRDMA_PAGER_STEP  (64 * UCS_KBYTE)

typedef struct uct_nprdma_pager uct_nprdma_pager_t;


/* Pages to bring in. The memory belongs to the caller, which fills the first
 * part and does not touch it while the job is submitted */
typedef struct uct_nprdma_pager_job {
    uint64_t                    address;  /* First byte, page aligned */
    size_t                      count;    /* Pages of 4 KiB, not zero */
    int                         is_write; /* So that a write does not fault */

    /* Results */
    size_t                      done;     /* Pages that are in memory; the next
                                           * one cannot be brought in, or was
                                           * left for lack of time */
    int                         is_slow;  /* A page had to be waited for */

    /* Of the pager: the call that reads it ahead, or the pager if it was read
     * ahead, or NULL */
    const void                  *reader;
    unsigned                    index;    /* Of the job, for the reader */
    int                         is_quick; /* That took no time */
    ucs_list_link_t             list;
} uct_nprdma_pager_job_t;


/* Pages to populate; the result is not reported */
typedef struct uct_nprdma_populate {
    uint64_t   key;     /* Of the registration */
    uint64_t   address;
    uint64_t   length;
    uint32_t   access;  /* That the registration must allow */
    unsigned   flags;   /* NPRDMA_POPULATE_xx */
    /* For uct_nprdma_pager_populate_cancel(); may be NULL */
    const void *owner;
} uct_nprdma_populate_t;


/* What a pager calls, in one of its threads and without a lock */
typedef struct uct_nprdma_pager_ops {
    /* A job has ended */
    void         (*notify)(void *arg);

    /* Populate the first bytes of a range; by one thread at a time. After an
     * error the rest is left out. */
    ucs_status_t (*populate)(void *arg, const uct_nprdma_populate_t *range,
                             uint64_t length);
} uct_nprdma_pager_ops_t;


typedef struct uct_nprdma_pager_stats {
    uint64_t jobs;       /* Submitted */
    uint64_t slow;       /* In which a page had to be waited for */
    uint64_t peak;       /* Most jobs that were executed at the same time */
    uint64_t threads;    /* That were started */
    uint64_t ranges;     /* Queued */
    uint64_t dropped;    /* Not queued, for lack of room */
    uint64_t populating; /* Ranges that have not ended */
} uct_nprdma_pager_stats_t;


/* Create a pager. Threads start when jobs wait, and sleep while none do. The
 * name is for messages; it and `ops` are valid until the pager is destroyed. An
 * error means no memory, or that the files of /proc cannot be opened that show
 * which pages are present; with a logged reason. */
ucs_status_t uct_nprdma_pager_create(unsigned max_threads, const char *name,
                                     const uct_nprdma_pager_ops_t *ops,
                                     void *arg, uct_nprdma_pager_t **pager_p);


/* Drop all jobs and stop the threads. Waits for the pages that they are
 * bringing in, but for at most a second: a thread that still waits then ends
 * when its page comes, and one line in the log says so. A step of a range is
 * waited for without a limit. No function of the caller is called afterwards,
 * and no job is accessed. */
void uct_nprdma_pager_destroy(uct_nprdma_pager_t *pager);


/* Submit a job, which stays until uct_nprdma_pager_take_done() returns it or
 * uct_nprdma_pager_cancel() removes it. Never waits for a page. A thread begins
 * with it after uct_nprdma_pager_kick() at the latest. Zero: there is no thread
 * and none can be started, which is logged once. */
int uct_nprdma_pager_submit(uct_nprdma_pager_t *pager,
                            uct_nprdma_pager_job_t *job);


/* Let a thread begin with the jobs that were submitted. Waits for no page: it
 * starts the read of a single one, and wakes a thread. Starts a thread if all
 * are busy and the maximum is not reached. */
void uct_nprdma_pager_kick(uct_nprdma_pager_t *pager);


/* Remove a job that no thread has begun. Zero: it is begun, and
 * uct_nprdma_pager_take_done() will return it. */
int uct_nprdma_pager_cancel(uct_nprdma_pager_t *pager,
                            uct_nprdma_pager_job_t *job);


/* A job that has ended, the first of them, or NULL */
uct_nprdma_pager_job_t *uct_nprdma_pager_take_done(uct_nprdma_pager_t *pager);


/* Populate a range in the background. It is dropped if too many wait, or if one
 * that waits includes it. Its registration may end at any time. If no thread
 * can be started, which is logged once, it waits for the next call. Never
 * waits; safe in any thread. */
void uct_nprdma_pager_populate(uct_nprdma_pager_t *pager,
                               const uct_nprdma_populate_t *range);


/* Drop the ranges of an owner; one that is being populated ends after its
 * step */
void uct_nprdma_pager_populate_cancel(uct_nprdma_pager_t *pager,
                                      const void *owner);


/* Copy the counters */
void uct_nprdma_pager_query(uct_nprdma_pager_t *pager,
                            uct_nprdma_pager_stats_t *stats);


/* Length of the step that begins at an address, so that the following steps
 * begin at multiples of the step size, a power of two */
static inline uint64_t
uct_nprdma_pager_step_length(uint64_t address, uint64_t length, uint64_t step)
{
    uint64_t left = step - (address & (step - 1));

    return ucs_min(left, length);
}

#endif
