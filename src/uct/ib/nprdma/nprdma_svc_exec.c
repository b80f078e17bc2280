/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_svc_exec.h"

#include "ucm/nprdma_access.h"

#include <sched.h>
#include <string.h>


static uct_nprdma_svc_status_t uct_nprdma_svc_wire_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return UCT_NPRDMA_SVC_OK;
    case UCS_ERR_NO_ELEM:
        return UCT_NPRDMA_SVC_ERR_KEY;
    case UCS_ERR_OUT_OF_RANGE:
        return UCT_NPRDMA_SVC_ERR_RANGE;
    case UCS_ERR_REJECTED:
        return UCT_NPRDMA_SVC_ERR_ACCESS;
    case UCS_ERR_INVALID_PARAM:
        return UCT_NPRDMA_SVC_ERR_ALIGN;
    default:
        return UCT_NPRDMA_SVC_ERR_FAULT;
    }
}

static uint32_t
uct_nprdma_svc_required_access(const uct_nprdma_svc_request_t *request)
{
    switch (request->type) {
    case UCT_NPRDMA_SVC_STORE:
        return NPRDMA_REG_ACCESS_PUT;
    case UCT_NPRDMA_SVC_FETCH:
        return NPRDMA_REG_ACCESS_GET;
    default:
        return NPRDMA_REG_ACCESS_ATOMIC;
    }
}

static ucs_status_t
uct_nprdma_svc_access(const uct_nprdma_svc_request_t *request, void *result,
                      size_t *length_p)
{
    uct_nprdma_svc_operands_t operands;
    ucs_status_t status;
    uint64_t old;

    switch (request->type) {
    case UCT_NPRDMA_SVC_STORE:
        return nprdma_access_store(request->address, request + 1,
                                   request->length);
    case UCT_NPRDMA_SVC_FETCH:
        status    = nprdma_access_fetch(result, request->address,
                                        request->length);
        *length_p = (status == UCS_OK) ? request->length : 0;
        return status;
    default:
        memcpy(&operands, request + 1, sizeof(operands));
        status = nprdma_access_atomic(request->op, request->length,
                                      request->address, operands.value,
                                      operands.compare, &old);
        if (status == UCS_OK) {
            memcpy(result, &old, request->length);
            *length_p = request->length;
        }
        return status;
    }
}

uct_nprdma_svc_status_t
uct_nprdma_svc_execute(nprdma_reg_table_t *table,
                       const uct_nprdma_svc_request_t *request, void *result,
                       size_t *length_p)
{
    uint32_t access = uct_nprdma_svc_required_access(request);
    ucs_status_t status;
    nprdma_reg_t *reg;

    *length_p = 0;
    if (request->type == UCT_NPRDMA_SVC_NOP) {
        return UCT_NPRDMA_SVC_OK;
    }

    if (request->type == UCT_NPRDMA_SVC_POPULATE) {
        return UCT_NPRDMA_SVC_ERR_WINDOW; /* No registration has one */
    }

    for (;;) {
        status = nprdma_reg_get(table, request->key, request->address,
                                request->length, access, &reg);
        if (status != UCS_OK) {
            break;
        }

        status = uct_nprdma_svc_access(request, result, length_p);

        /*
         * Before waiting for an unmapping thread to finish: it may itself wait
         * for somebody who deregisters this memory.
         */
        nprdma_reg_put(reg);
        if (status != UCS_ERR_BUSY) {
            break;
        }
        sched_yield();
    }

    return uct_nprdma_svc_wire_status(status);
}
