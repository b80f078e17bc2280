/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_RUN_H_
#define UCT_NPRDMA_SERVICE_RUN_H_

#include "nprdma_service_types.h"

/*
 * Which request of a connection is executed when: at once, when its pages have
 * come, after those before it, or never, because its requester is gone. The
 * executing thread calls these functions.
 *
 * A request that meets absent pages is parked while threads bring them in
 * (nprdma_pager.h), and the service executes the requests of other connections.
 * Requests of one connection stay in order: what arrives behind a parked
 * request is parked as well, but its pages are brought in at the same time.
 * Each request is executed once, when its turn comes.
 */

/* Post a receive into each free slot. The service may not have started yet. */
ucs_status_t uct_nprdma_service_fill_srq(uct_nprdma_service_t *service);

/* Execute some requests, and return their number. *blocked_p: others wait until
 * earlier replies are done. */
unsigned uct_nprdma_service_run(uct_nprdma_service_t *service, int *blocked_p);

#endif
