/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The sockets on which nprdma-run receives records.
 */

#ifndef NPRDMA_RUN_SERVER_H_
#define NPRDMA_RUN_SERVER_H_

#include "nprdma_run_job.h"

typedef struct nprdma_run_server nprdma_run_server_t;


/**
 * Listen on an abstract Unix socket and on a TCP port of all addresses. Neither
 * leaves anything behind when the process ends.
 *
 * @param [in] job  Job that takes the records; outlives the server.
 *
 * @return Server; NULL after an error, which is written to standard error.
 */
nprdma_run_server_t *nprdma_run_server_create(nprdma_run_job_t *job);


/** Close all sockets and release the server. */
void nprdma_run_server_destroy(nprdma_run_server_t *server);


/** @return NAME of NPRDMA_RUN; valid until the server is destroyed. */
const char *nprdma_run_server_name(const nprdma_run_server_t *server);


/** @return Value of NPRDMA_RUN; valid until the server is destroyed. */
const char *nprdma_run_server_value(const nprdma_run_server_t *server);


/**
 * Serve connections until a descriptor is readable.
 *
 * @param [in] server      Server.
 * @param [in] fd          Descriptor, or -1.
 * @param [in] timeout_ms  Time limit in milliseconds, or -1.
 *
 * @return 1 if the descriptor is readable, 0 if a connection was served, -1
 *         after the time limit.
 */
int nprdma_run_server_serve(nprdma_run_server_t *server, int fd,
                            int timeout_ms);

#endif
