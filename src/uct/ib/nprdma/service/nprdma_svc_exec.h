/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SVC_EXEC_H_
#define UCT_NPRDMA_SVC_EXEC_H_

#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

/**
 * Execute a request against the registrations of this process. Nothing is
 * touched unless a live registration covers every byte and allows it.
 *
 * @param [in]  md        MD whose registrations are accessed.
 * @param [in]  request   From uct_nprdma_svc_request_parse(), of a type that
 *                        accesses memory or NOP.
 * @param [out] result    What the reply carries: UCT_NPRDMA_SVC_MAX_PIECE
 *                        bytes for a FETCH, 8 for an ATOMIC,
 *                        uct_nprdma_svc_populated_length() for a POPULATE,
 *                        else not used.
 * @param [out] length_p  Bytes put there; 0 after an error.
 *
 * @return How it ended.
 */
uct_nprdma_svc_status_t
uct_nprdma_svc_execute(uct_nprdma_mem_md_t *md,
                       const uct_nprdma_svc_request_t *request, void *result,
                       size_t *length_p);

#endif
