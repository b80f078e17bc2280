/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SVC_EXEC_H_
#define UCT_NPRDMA_SVC_EXEC_H_

#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

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


/* NPRDMA_REG_ACCESS_xx that the registration of a request must allow */
uint32_t
uct_nprdma_svc_required_access(const uct_nprdma_svc_request_t *request);

#endif
