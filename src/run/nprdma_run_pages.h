/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Files with the counters of the job's processes (nprdma_record_file()), which
 * are there however a process has ended.
 */

#ifndef NPRDMA_RUN_PAGES_H_
#define NPRDMA_RUN_PAGES_H_

#include "nprdma_run_job.h"

/**
 * Make the folder of the files. Without it, as where there is no /dev/shm, a
 * process that is killed takes its counters along.
 *
 * @param [in] name  NAME of NPRDMA_RUN.
 */
void nprdma_run_pages_create(const char *name);


/**
 * Take all files, and remove them with the folder.
 *
 * @param [in] name  NAME of NPRDMA_RUN.
 * @param [in] job   Takes what the files have counted.
 */
void nprdma_run_pages_take(const char *name, nprdma_run_job_t *job);

#endif
