/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_EXECUTE_H_
#define UCT_NPRDMA_SERVICE_EXECUTE_H_

#include "nprdma_service_types.h"

/* Execution of one request of a peer, and its reply. The executing thread calls
 * these functions. */

/* Execute a request of a connection, at most `limit` bytes of it, and reply.
 * Zero if it has to wait until earlier replies are done. */
int uct_nprdma_service_execute(uct_nprdma_service_t *service,
                               uct_nprdma_service_conn_t *conn,
                               const uct_nprdma_svc_request_t *request,
                               uint32_t limit);


/* Application memory is not accessed any more now */
void uct_nprdma_service_section_end(uct_nprdma_service_t *service);


/* Check a received request. Pure, so that it can be fuzzed. Returns it in
 * place, with its payload or operands directly behind it; NULL if it is
 * malformed. */
const uct_nprdma_svc_request_t *
uct_nprdma_svc_request_parse(const void *data, size_t length);


/* Execute a request that uct_nprdma_svc_request_parse() has checked, a NOP or
 * one that accesses memory. Memory is accessed only if one live registration
 * covers every byte and allows the access. A POPULATE populates `limit` bytes
 * at most. `result` is the payload of the reply: UCT_NPRDMA_SVC_MAX_PIECE bytes
 * for a FETCH, 8 for an ATOMIC, uct_nprdma_svc_populated_length() for a
 * POPULATE, else not used. ERR_VIEW: a POPULATE without a region. */
uct_nprdma_svc_status_t
uct_nprdma_svc_execute(uct_nprdma_mem_md_t *md,
                       const uct_nprdma_svc_request_t *request, uint32_t limit,
                       void *result, size_t *length_p);


/* Whether a live registration has all of the range of a request, and allows the
 * access; errors are those of nprdma_reg_get() */
ucs_status_t uct_nprdma_svc_check(uct_nprdma_mem_md_t *md,
                                  const uct_nprdma_svc_request_t *request);


/* Bring the first bytes of a range into the views of the NIC (ARCHITECTURE 5,
 * populate policy), in the caller's thread, and up to `ahead` bytes behind them
 * that the registration has. Returns the states of the first pages after that.
 * Errors are those of nprdma_reg_get() and nprdma_monitor_populate(), and
 * UCS_ERR_UNSUPPORTED if the NIC has no views to the range. */
ucs_status_t
uct_nprdma_service_populate_step(uct_nprdma_mem_md_t *md,
                                 const uct_nprdma_populate_t *range,
                                 uint64_t length, uint64_t ahead,
                                 uint32_t *states, size_t num_states);

#endif
