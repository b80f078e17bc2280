/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What nprdma-run knows of the processes of its job, and its verdict.
 */

#ifndef NPRDMA_RUN_JOB_H_
#define NPRDMA_RUN_JOB_H_

#include "nprdma_record.h"

typedef struct nprdma_run_job nprdma_run_job_t;


/** @return A job without processes, or NULL if there is no memory. */
nprdma_run_job_t *nprdma_run_job_create(void);


/** Release a job. */
void nprdma_run_job_destroy(nprdma_run_job_t *job);


/**
 * Take a record. Records of a process may come in any order. What is not
 * valid, and processes beyond the limit, are ignored.
 *
 * @param [in] job   Job.
 * @param [in] text  The record's lines, without its end; is modified.
 */
void nprdma_run_job_take(nprdma_run_job_t *job, char *text);


/**
 * Take what the file of an interface has counted.
 *
 * @param [in] job   Job.
 * @param [in] id    What the process is called in its records.
 * @param [in] sums  Numbers.
 */
void nprdma_run_job_take_page(nprdma_run_job_t *job, const char *id,
                              const nprdma_record_sums_t *sums);


/**
 * Report the verdict to another nprdma-run, of which this one is a part, as if
 * this process had done all that the processes of its job have done.
 *
 * @param [in] job      Job.
 * @param [in] is_good  What nprdma_run_job_judge() has returned.
 */
void nprdma_run_job_report(const nprdma_run_job_t *job, int is_good);


/**
 * Judge whether the job went over nprdma: some bytes did, and each rank that is
 * known of had an interface. If not, the reasons are written to standard error.
 *
 * @param [in] job    Job.
 * @param [in] level  Word before the reasons: "error" or "warning".
 *
 * @return Nonzero if it did.
 */
int nprdma_run_job_judge(const nprdma_run_job_t *job, const char *level);


/**
 * Write the sums of all processes to standard error, as one line.
 *
 * @param [in] job  Job.
 */
void nprdma_run_job_print(const nprdma_run_job_t *job);

#endif
