/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SVC_EXEC_H_
#define UCT_NPRDMA_SVC_EXEC_H_

#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

/**
 * Execute a request on the registrations of this process. Memory is accessed
 * only if one live registration covers every byte and allows the access.
 *
 * @param [in]  md        MD of the registrations.
 * @param [in]  request   Request that uct_nprdma_svc_request_parse() has
 *                        checked; NOP or a type that accesses memory.
 * @param [in]  limit     Most bytes that a POPULATE populates, not zero. Other
 *                        requests have no limit.
 * @param [out] result    Payload of the reply: UCT_NPRDMA_SVC_MAX_PIECE bytes
 *                        for a FETCH, 8 for an ATOMIC,
 *                        uct_nprdma_svc_populated_length() for a POPULATE, else
 *                        not used.
 * @param [out] length_p  Bytes of @a result that were written; 0 after an
 *                        error.
 *
 * @return UCT_NPRDMA_SVC_OK; ERR_KEY without a live registration, ERR_RANGE
 *         beyond it, ERR_ACCESS if it does not allow the access, ERR_FAULT for
 *         memory that is not accessible, ERR_ALIGN for an unaligned ATOMIC,
 *         ERR_WINDOW for a POPULATE without a region.
 */
uct_nprdma_svc_status_t
uct_nprdma_svc_execute(uct_nprdma_mem_md_t *md,
                       const uct_nprdma_svc_request_t *request, uint32_t limit,
                       void *result, size_t *length_p);


/**
 * @param [in] request  Valid request that accesses memory.
 *
 * @return The access that its registration must allow, NPRDMA_REG_ACCESS_xx.
 */
uint32_t
uct_nprdma_svc_required_access(const uct_nprdma_svc_request_t *request);

#endif
