/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service_execute.h"
#include "nprdma_populator.h"
#include "nprdma_service_conn.h"
#include "nprdma_svc_exec.h"

#include "uct/ib/nprdma/mem/nprdma_mem.h"

#include "ucm/access/nprdma_fault.h"

#include <nprdma_assert.h>

#include <ucs/time/time.h>

/* Shortest FETCH in bytes whose time is measured. It is negligible there */
#define UCT_NPRDMA_SERVICE_TIMED        1024

static void uct_nprdma_service_count(uct_nprdma_service_t *service,
                                     const uct_nprdma_svc_request_t *request,
                                     uct_nprdma_svc_status_t status)
{
    uct_nprdma_mem_md_t *md = service->md;
    atomic_uint_fast64_t *counter;

    switch (request->type) {
    case UCT_NPRDMA_SVC_STORE:
        counter = &service->stats.stores;
        break;
    case UCT_NPRDMA_SVC_FETCH:
        counter = &service->stats.fetches;
        break;
    case UCT_NPRDMA_SVC_ATOMIC:
        counter = &service->stats.atomics;
        break;
    case UCT_NPRDMA_SVC_POPULATE:
        counter = &service->stats.populates;
        break;
    default:
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
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    if (ucs_unlikely(status != UCT_NPRDMA_SVC_OK)) {
        atomic_fetch_add_explicit(&service->stats.errors, 1,
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
    int is_write                  = request->op & UCT_NPRDMA_SVC_POPULATE_WRITE;
    uct_nprdma_populate_job_t job = {
        .key     = request->key,
        .address = request->address + populated->length,
        .length  = (uint64_t)request->length + request->prefetch -
                   populated->length,
        .access  = is_write ? NPRDMA_REG_ACCESS_PUT : NPRDMA_REG_ACCESS_GET,
        .flags   = is_write ? NPRDMA_POPULATE_WRITE : 0,
        .owner   = conn
    };

    uct_nprdma_populator_add(service->populator, &job);
}

/* Populate the pages of a FETCH for later RDMA READs. They are resident now, so
 * this is fast. */
static void
uct_nprdma_service_populate_fetched(uct_nprdma_service_t *service,
                                    const uct_nprdma_svc_request_t *request)
{
    if (service->md->monitor != NULL) {
        uct_nprdma_populate_step(service->md, request->key, request->address,
                                 request->length, NPRDMA_REG_ACCESS_GET, 0,
                                 NULL, 0);
    }
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

/* Zero if the request has to wait until earlier replies are done */
static int uct_nprdma_service_execute(uct_nprdma_service_t *service,
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
        uct_nprdma_service_populate_fetched(service, request);
    }
    return 1;
}

/* Whether the time that a request takes is worth to be known: longer ones that
 * the NIC could not serve. Others must not pay for two looks at the clock. */
static int
uct_nprdma_service_is_timed(const uct_nprdma_svc_request_t *request)
{
    return uct_nprdma_svc_is_repair(request) ||
           ((request->type == UCT_NPRDMA_SVC_FETCH) &&
            (request->length >= UCT_NPRDMA_SERVICE_TIMED));
}

int uct_nprdma_service_run_one(uct_nprdma_service_t *service,
                               uct_nprdma_service_conn_t *conn,
                               const uct_nprdma_svc_request_t *request,
                               uint32_t limit)
{
    ucs_time_t start;
    long waits;

    if (request->type == UCT_NPRDMA_SVC_FIN) {
        /* Only a conforming peer sends nothing after it, so the queue pair goes
         * to ERR */
        uct_nprdma_service_conn_stop(service, conn);
        return 1;
    }

    if (ucs_unlikely(uct_nprdma_service_is_timed(request))) {
        start = ucs_get_time();
        waits = uct_nprdma_svc_parking_num_waits(request);
        if (!uct_nprdma_service_execute(service, conn, request, limit)) {
            return 0;
        }
        uct_nprdma_svc_parking_learn(service->parking, request,
                                     ucs_time_to_usec(ucs_get_time() - start),
                                     waits);
    } else if (!uct_nprdma_service_execute(service, conn, request, limit)) {
        return 0;
    }

    conn->sn = request->sn;
    if (ucs_likely(conn->executed != NULL)) {
        uct_nprdma_executed_add(conn->executed);
    }
    return 1;
}
