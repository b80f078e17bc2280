/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_PARK_H_
#define UCT_NPRDMA_SERVICE_PARK_H_

#include "nprdma_service_types.h"

/* Which request of a connection is executed when: at once, when its pages have
 * come, after those before it, or never, because its requester is gone. The
 * executing thread calls these functions. */

/* Execute a request that has arrived, or park it. Zero if neither can be done
 * now. */
int uct_nprdma_service_arrived(uct_nprdma_service_t *service,
                               uct_nprdma_service_conn_t *conn,
                               const uct_nprdma_svc_request_t *request,
                               struct ibv_wc *wc);

/* Execute a few parked requests whose turn it is */
unsigned uct_nprdma_service_resume_some(uct_nprdma_service_t *service);

/* Probe connections, and end those that are closed and have no replies */
void uct_nprdma_service_reclaim(uct_nprdma_service_t *service);

#endif
