/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_EXECUTE_H_
#define UCT_NPRDMA_SERVICE_EXECUTE_H_

#include "nprdma_service_types.h"

/* Execution of one request of a peer, and its reply. The executing thread calls
 * these functions. */

/* Execute a request, at most `limit` bytes of it, and reply. Zero if it cannot
 * be executed now. */
int uct_nprdma_service_run_one(uct_nprdma_service_t *service,
                               uct_nprdma_service_conn_t *conn,
                               const uct_nprdma_svc_request_t *request,
                               uint32_t limit);

/* Application memory is not accessed any more now */
void uct_nprdma_service_section_end(uct_nprdma_service_t *service);

#endif
