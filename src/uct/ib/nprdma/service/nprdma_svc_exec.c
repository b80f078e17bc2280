/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_svc_exec.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/mem/nprdma_populate_step.h"

#include "ucm/access/nprdma_access.h"

#include "nprdma_assert.h"

#include <ucs/time/time.h>

#include <sched.h>
#include <string.h>

/* Longest time in microseconds that a POPULATE delays the requests of other
 * peers */
#define UCT_NPRDMA_SVC_POPULATE_USEC  200


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
    case UCS_ERR_UNSUPPORTED:
        return UCT_NPRDMA_SVC_ERR_VIEW;
    default:
        return UCT_NPRDMA_SVC_ERR_FAULT;
    }
}

uint32_t uct_nprdma_svc_required_access(const uct_nprdma_svc_request_t *request)
{
    switch (request->type) {
    case UCT_NPRDMA_SVC_POPULATE:
        return (request->op & UCT_NPRDMA_SVC_POPULATE_WRITE) ?
               NPRDMA_REG_ACCESS_PUT : NPRDMA_REG_ACCESS_GET;
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

/* The whole range is checked first: a request beyond the registration populates
 * nothing */
static ucs_status_t
uct_nprdma_svc_populate_check(uct_nprdma_mem_md_t *md,
                              const uct_nprdma_svc_request_t *request,
                              uint32_t access)
{
    ucs_status_t status;
    nprdma_reg_t *reg;

    status = nprdma_reg_get(md->regs, request->key, request->address,
                            (uint64_t)request->length + request->prefetch,
                            access, &reg);
    if (status == UCS_OK) {
        nprdma_reg_put(reg);
    }
    return status;
}

static uct_nprdma_svc_status_t
uct_nprdma_svc_populate(uct_nprdma_mem_md_t *md,
                        const uct_nprdma_svc_request_t *request,
                        uint32_t limit, uct_nprdma_svc_populated_t *populated,
                        size_t *length_p)
{
    int is_write        = request->op & UCT_NPRDMA_SVC_POPULATE_WRITE;
    uint32_t access     = uct_nprdma_svc_required_access(request);
    uint32_t length     = ucs_min(request->length, limit);
    uint64_t first      = request->address / NPRDMA_PAGE_SIZE;
    size_t num_states   = uct_nprdma_svc_num_states(request->address,
                                                    request->length);
    ucs_time_t deadline = ucs_get_time() +
                          ucs_time_from_usec(UCT_NPRDMA_SVC_POPULATE_USEC);
    uint64_t done       = 0;
    uint64_t address, step, page;
    ucs_status_t status;

    status = uct_nprdma_svc_populate_check(md, request, access);
    if (status != UCS_OK) {
        return uct_nprdma_svc_wire_status(status);
    }

    memset(populated->states, 0, num_states * sizeof(uint32_t));
    do {
        address = request->address + done;
        step    = uct_nprdma_populate_step_length(address,
                                                  length - done,
                                                  UCT_NPRDMA_POPULATE_STEP);
        page    = ucs_min((address / NPRDMA_PAGE_SIZE) - first,
                          num_states);
        status  = uct_nprdma_populate_step(
                md, request->key, address, step, access,
                is_write ? NPRDMA_POPULATE_WRITE : 0, &populated->states[page],
                num_states - page);
        if (status == UCS_OK) {
            done += step;
        } else if (status == UCS_ERR_BUSY) {
            sched_yield(); /* as in uct_nprdma_svc_execute() */
        } else if (done == 0) {
            return uct_nprdma_svc_wire_status(status);
        } else {
            break;
        }
    } while ((done < length) && (ucs_get_time() < deadline));

    populated->length = done;
    *length_p         = uct_nprdma_svc_populated_length(request->address,
                                                        request->length);
    return UCT_NPRDMA_SVC_OK;
}

uct_nprdma_svc_status_t
uct_nprdma_svc_execute(uct_nprdma_mem_md_t *md,
                       const uct_nprdma_svc_request_t *request, uint32_t limit,
                       void *result, size_t *length_p)
{
    uint32_t access = uct_nprdma_svc_required_access(request);
    ucs_status_t status;
    nprdma_reg_t *reg;

    *length_p = 0;
    if (request->type == UCT_NPRDMA_SVC_NOP) {
        return UCT_NPRDMA_SVC_OK;
    }

    if (request->type == UCT_NPRDMA_SVC_POPULATE) {
        return uct_nprdma_svc_populate(md, request, limit, result, length_p);
    }

    for (;;) {
        status = nprdma_reg_get(md->regs, request->key, request->address,
                                request->length, access, &reg);
        if (status != UCS_OK) {
            break;
        }

        /* Rule "reach of a key" */
        nprdma_assert((request->address >= nprdma_reg_address(reg)) &&
                      (request->address - nprdma_reg_address(reg) +
                       request->length <= nprdma_reg_length(reg)));
        status = uct_nprdma_svc_access(request, result, length_p);

        /* Release the registration before waiting for a thread that unmaps
         * memory: that thread may itself wait for one that deregisters this
         * memory */
        nprdma_reg_put(reg);
        if (status != UCS_ERR_BUSY) {
            break;
        }
        sched_yield();
    }

    return uct_nprdma_svc_wire_status(status);
}
