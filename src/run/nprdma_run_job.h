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
