/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service_execute.h"
#include "nprdma_service_conn.h"

#include "uct/ib/nprdma/mem/nprdma_mem.h"

#include "ucm/access/nprdma_access.h"
#include "ucm/access/nprdma_fault.h"

#include <nprdma_assert.h>

#include <ucs/debug/log.h>
#include <ucs/time/time.h>

#include <sched.h>
#include <string.h>

/* Longest time in microseconds that a POPULATE delays the requests of other
 * peers */
#define UCT_NPRDMA_SERVICE_POPULATE_USEC  200

/* Bytes behind those of a FETCH whose resident pages are populated as well: the
 * next gets are mostly of these, and it takes less time than one of them */
#define UCT_NPRDMA_SERVICE_FETCH_AHEAD  (256 * UCS_KBYTE)


/* ---- the form of a request ---- */

const uct_nprdma_svc_request_t *
uct_nprdma_svc_request_parse(const void *data, size_t length)
{
    const uct_nprdma_svc_request_t *request = data;
    uint64_t range;
    size_t payload;
    int valid;

    if (length < sizeof(*request)) {
        return NULL;
    }

    payload = length - sizeof(*request);
    if ((request->flags & ~UCT_NPRDMA_SVC_FLAG_REPLY) ||
        (request->reserved != 0) ||
        ((request->prefetch != 0) &&
         (request->type != UCT_NPRDMA_SVC_POPULATE))) {
        return NULL;
    }

    switch (request->type) {
    case UCT_NPRDMA_SVC_STORE:
        valid = (request->op == 0) && (payload == request->length) &&
                (payload > 0) && (payload <= UCT_NPRDMA_SVC_MAX_PIECE);
        break;
    case UCT_NPRDMA_SVC_FETCH:
        valid = !(request->op & ~UCT_NPRDMA_SVC_FETCH_POPULATE) &&
                (payload == 0) && (request->length > 0) &&
                (request->length <= UCT_NPRDMA_SVC_MAX_PIECE) &&
                (request->flags & UCT_NPRDMA_SVC_FLAG_REPLY);
        break;
    case UCT_NPRDMA_SVC_ATOMIC:
        valid = (request->op < NPRDMA_ATOMIC_LAST) &&
                (payload == sizeof(uct_nprdma_svc_operands_t)) &&
                ((request->length == 4) || (request->length == 8));
        break;
    case UCT_NPRDMA_SVC_POPULATE:
        range = (uint64_t)request->length + request->prefetch;
        valid = !(request->op & ~UCT_NPRDMA_SVC_POPULATE_WRITE) &&
                (payload == 0) && (request->length > 0) &&
                (range <= (UINT64_MAX - request->address)) &&
                (request->flags & UCT_NPRDMA_SVC_FLAG_REPLY);
        break;
    case UCT_NPRDMA_SVC_NOP:
    case UCT_NPRDMA_SVC_FIN:
        valid = (request->op == 0) && (payload == 0) && (request->key == 0) &&
                (request->address == 0) && (request->length == 0);
        break;
    default:
        valid = 0;
        break;
    }

    return valid ? request : NULL;
}


/* ---- what a request does to memory ---- */

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

/* NPRDMA_REG_ACCESS_xx that the registration of a request must allow */
static uint32_t
uct_nprdma_svc_required_access(const uct_nprdma_svc_request_t *request)
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

/* Each step looks the registration up by its key and holds it for that step
 * only. Therefore a thread that deregisters waits for the pages of at most one
 * step, and a thread that unmaps memory for none. A step for an ended
 * registration fails, so nothing has to be cancelled. */
ucs_status_t
uct_nprdma_service_populate_step(uct_nprdma_mem_md_t *md,
                                 const uct_nprdma_populate_t *range,
                                 uint64_t length, uint64_t ahead,
                                 uint32_t *states, size_t num_states)
{
    const nprdma_region_t *region;
    uct_nprdma_mem_t *mem;
    ucs_status_t status;
    nprdma_reg_t *reg;
    size_t page, i;

    status = nprdma_reg_get(md->regs, range->key, range->address, length,
                            range->access, &reg);
    if (status != UCS_OK) {
        return status;
    }

    mem = nprdma_reg_extra(reg);
    if (!mem->has_region) {
        status = UCS_ERR_UNSUPPORTED;
        goto out;
    }

    length = ucs_min(length + ahead,
                     nprdma_reg_address(reg) + nprdma_reg_length(reg) -
                             range->address);
    status = nprdma_monitor_populate(md->monitor, &mem->range, range->address,
                                     length, range->flags);
    if (status != UCS_OK) {
        goto out;
    }

    region     = mem->range.region;
    page       = nprdma_region_page_index(region, range->address);
    num_states = ucs_min(num_states,
                         nprdma_region_num_pages(range->address, length));
    for (i = 0; i < num_states; ++i) {
        states[i] = atomic_load_explicit(&region->states[page + i],
                                         memory_order_acquire);
    }

out:
    nprdma_reg_put(reg);
    return status;
}

/* The pages of a request */
static uct_nprdma_populate_t
uct_nprdma_svc_range(const uct_nprdma_svc_request_t *request)
{
    uint32_t access             = uct_nprdma_svc_required_access(request);
    uct_nprdma_populate_t range = {
        .key     = request->key,
        .address = request->address,
        .length  = request->length,
        .access  = access,
        .flags   = (access == NPRDMA_REG_ACCESS_PUT) ? NPRDMA_POPULATE_WRITE : 0
    };

    return range;
}

ucs_status_t uct_nprdma_svc_check(uct_nprdma_mem_md_t *md,
                                  const uct_nprdma_svc_request_t *request)
{
    ucs_status_t status;
    nprdma_reg_t *reg;

    status = nprdma_reg_get(md->regs, request->key, request->address,
                            (uint64_t)request->length + request->prefetch,
                            uct_nprdma_svc_required_access(request), &reg);
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
    uct_nprdma_populate_t range = uct_nprdma_svc_range(request);
    uint64_t first              = request->address / NPRDMA_PAGE_SIZE;
    size_t num_states           = uct_nprdma_svc_num_states(request->address,
                                                            request->length);
    ucs_time_t deadline         =
            ucs_get_time() +
            ucs_time_from_usec(UCT_NPRDMA_SERVICE_POPULATE_USEC);
    uint64_t step, page;
    ucs_status_t status;

    /* A request beyond the registration populates nothing */
    status = uct_nprdma_svc_check(md, request);
    if (status != UCS_OK) {
        return uct_nprdma_svc_wire_status(status);
    }

    memset(populated->states, 0, num_states * sizeof(uint32_t));
    range.length = ucs_min(request->length, limit);
    do {
        step   = uct_nprdma_pager_step_length(range.address, range.length,
                                              UCT_NPRDMA_PAGER_STEP);
        page   = ucs_min((range.address / NPRDMA_PAGE_SIZE) - first,
                         num_states);
        status = uct_nprdma_service_populate_step(md, &range, step, 0,
                                                  &populated->states[page],
                                                  num_states - page);
        if (status == UCS_OK) {
            range.address += step;
            range.length  -= step;
        } else if (status == UCS_ERR_BUSY) {
            sched_yield(); /* The registration is released meanwhile */
        } else if (range.address == request->address) {
            return uct_nprdma_svc_wire_status(status);
        } else {
            break;
        }
    } while ((range.length > 0) && (ucs_get_time() < deadline));

    populated->length = range.address - request->address;
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

    status = nprdma_reg_get(md->regs, request->key, request->address,
                            request->length, access, &reg);
    if (status == UCS_OK) {
        /* Rule "reach of a key" */
        nprdma_assert((request->address >= nprdma_reg_address(reg)) &&
                      (request->address - nprdma_reg_address(reg) +
                       request->length <= nprdma_reg_length(reg)));
        status = uct_nprdma_svc_access(request, result, length_p);
        nprdma_reg_put(reg);
    }

    return uct_nprdma_svc_wire_status(status);
}


/* ---- requests and replies ---- */

static void uct_nprdma_service_count(uct_nprdma_service_t *service,
                                     const uct_nprdma_svc_request_t *request,
                                     uct_nprdma_svc_status_t status)
{
    uct_nprdma_mem_md_t *md = service->md;

    if (request->type == UCT_NPRDMA_SVC_NOP) {
        return;
    }

    if ((request->type != UCT_NPRDMA_SVC_POPULATE) &&
        (request->length <= UCT_NPRDMA_SVC_MAX_PAYLOAD)) {
        /* Not an atomic increment: only the executing thread writes it */
        atomic_store_explicit(&md->num_served,
                              atomic_load_explicit(&md->num_served,
                                                   memory_order_relaxed) + 1,
                              memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&service->served[request->type], 1,
                              memory_order_relaxed);
    if (ucs_unlikely(status != UCT_NPRDMA_SVC_OK)) {
        atomic_fetch_add_explicit(&service->served_errors, 1,
                                  memory_order_relaxed);
    }
}

/* Populate the rest of a POPULATE in the background */
static void
uct_nprdma_service_prefetch(uct_nprdma_service_t *service,
                            uct_nprdma_service_conn_t *conn,
                            const uct_nprdma_svc_request_t *request,
                            const uct_nprdma_svc_populated_t *populated)
{
    uct_nprdma_populate_t range = uct_nprdma_svc_range(request);

    range.address += populated->length;
    range.length  += request->prefetch - (uint64_t)populated->length;
    range.owner    = conn;
    uct_nprdma_pager_populate(service->pager, &range);
}

/* Before requests access memory of the application, make sure that faults are
 * reported (ARCHITECTURE 4). That takes one system call for all requests of a
 * batch. The service's own thread, which does not poll, takes two, to check
 * that the handler is installed. */
static inline void
uct_nprdma_service_section_begin(uct_nprdma_service_t *service,
                                 const uct_nprdma_svc_request_t *request)
{
    if (!service->in_section && (request->type != UCT_NPRDMA_SVC_NOP) &&
        (request->type != UCT_NPRDMA_SVC_POPULATE)) {
        if (service->by_thread) {
            nprdma_fault_check();
            service->section.blocked = 0;
        } else {
            nprdma_fault_enter(&service->section);
        }
        service->in_section = 1;
    }
}

void uct_nprdma_service_section_end(uct_nprdma_service_t *service)
{
    if (service->in_section) {
        nprdma_fault_leave(&service->section);
        service->in_section = 0;
    }
}

/* A reply also reports the first failure of the requests without one */
static void
uct_nprdma_service_fill_reply(uct_nprdma_service_conn_t *conn,
                              const uct_nprdma_svc_request_t *request,
                              uct_nprdma_svc_status_t status, size_t length,
                              uct_nprdma_svc_reply_t *reply)
{
    reply->type          = UCT_NPRDMA_SVC_REPLY;
    reply->status        = status;
    reply->failed_status = conn->failed_status;
    reply->reserved      = 0;
    reply->sn            = request->sn;
    reply->failed_sn     = conn->failed_sn;
    reply->length        = length;
    conn->failed_status  = 0;
    conn->failed_sn      = 0;
}

/* Whether a reply can be posted now, and has its slot */
static int uct_nprdma_service_can_reply(uct_nprdma_service_t *service,
                                        const uct_nprdma_service_conn_t *conn,
                                        int needs_slot)
{
    return uct_nprdma_service_can_send(service, conn) &&
           (!needs_slot || (service->tx_pool.free != NULL) ||
            uct_nprdma_bounce_grow(&service->tx_pool));
}

/* Post a reply, for which uct_nprdma_service_can_reply() is true */
static void uct_nprdma_service_reply(uct_nprdma_service_t *service,
                                     uct_nprdma_service_conn_t *conn,
                                     void *data, size_t length,
                                     uct_nprdma_slot_t *slot)
{
    struct ibv_send_wr *bad_wr;
    struct ibv_send_wr wr = {};
    struct ibv_sge sge;
    int ret;

    sge.addr      = (uintptr_t)data;
    sge.length    = length;
    sge.lkey      = (slot == NULL) ? 0 : slot->lkey;
    wr.wr_id      = (uintptr_t)slot;
    wr.sg_list    = &sge;
    wr.num_sge    = 1;
    wr.opcode     = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED | ((slot == NULL) ? IBV_SEND_INLINE : 0);
    ret           = ibv_post_send(conn->qp, &wr, &bad_wr);
    if (ret != 0) {
        ucs_error("service: ibv_post_send() on qp 0x%x failed: %s", conn->qpn,
                  strerror(ret));
        if (slot != NULL) {
            uct_nprdma_bounce_put(slot);
        }
        uct_nprdma_service_conn_stop(service, conn);
        return;
    }

    --service->send_cq_avail;
    ++conn->outstanding;
}

int uct_nprdma_service_execute(uct_nprdma_service_t *service,
                               uct_nprdma_service_conn_t *conn,
                               const uct_nprdma_svc_request_t *request,
                               uint32_t limit)
{
    int has_reply           = request->flags & UCT_NPRDMA_SVC_FLAG_REPLY;
    size_t max_length       = sizeof(uct_nprdma_svc_reply_t) +
                              uct_nprdma_svc_reply_length(request);
    uct_nprdma_slot_t *slot = NULL;
    uct_nprdma_svc_reply_t *reply;
    uct_nprdma_svc_status_t status;
    uct_nprdma_populate_t range;
    char inline_reply[UCT_NPRDMA_SERVICE_INLINE] UCS_V_ALIGNED(8);
    uint64_t result;
    size_t length;

    if (has_reply) {
        if (!uct_nprdma_service_can_reply(service, conn,
                                          max_length > conn->max_inline)) {
            return 0;
        }
        if (max_length > conn->max_inline) {
            slot = uct_nprdma_bounce_get(&service->tx_pool);
        }
    }

    /* Rule "exactly once": a request that waited is executed only now */
    nprdma_assert(request->sn == (conn->sn + 1));
    uct_nprdma_service_section_begin(service, request);
    reply  = (slot == NULL) ? (void*)inline_reply : (void*)slot->data;
    status = uct_nprdma_svc_execute(service->md, request, limit,
                                    has_reply ? (void*)(reply + 1) : &result,
                                    &length);
    uct_nprdma_service_count(service, request, status);
    /* Before the reply, behind which the peer need not bound its messages */
    uct_nprdma_executed_add(conn->executed);
    if (!has_reply) {
        if ((status != UCT_NPRDMA_SVC_OK) && (conn->failed_status == 0)) {
            conn->failed_status = status;
            conn->failed_sn     = request->sn;
        }
        return 1;
    }

    if ((request->type == UCT_NPRDMA_SVC_POPULATE) &&
        (status == UCT_NPRDMA_SVC_OK)) {
        uct_nprdma_service_prefetch(service, conn, request,
                                    (void*)(reply + 1));
    }

    uct_nprdma_service_fill_reply(conn, request, status, length, reply);
    uct_nprdma_service_reply(service, conn, reply, sizeof(*reply) + length,
                             slot);
    if ((request->type == UCT_NPRDMA_SVC_FETCH) &&
        (request->op & UCT_NPRDMA_SVC_FETCH_POPULATE) &&
        (status == UCT_NPRDMA_SVC_OK)) {
        /* For RDMA READs to come: what is resident now */
        range        = uct_nprdma_svc_range(request);
        range.flags |= NPRDMA_POPULATE_RESIDENT;
        uct_nprdma_service_populate_step(service->md, &range, range.length,
                                         UCT_NPRDMA_SERVICE_FETCH_AHEAD, NULL,
                                         0);
    }
    return 1;
}
