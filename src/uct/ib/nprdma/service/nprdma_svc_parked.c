/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_svc_parked.h"
#include "nprdma_svc_exec.h"

#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/mem/nprdma_populate_step.h"

#include "ucm/access/nprdma_pagein.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

#include <string.h>

/* Hints, one for each chunk of addresses; a power of two */
#define UCT_NPRDMA_SVC_HINTS       1024
#define UCT_NPRDMA_SVC_HINT_SHIFT  21

/* A request that takes longer than this, in microseconds, may have waited for a
 * page. A POPULATE may also have had many of them to clear. */
#define UCT_NPRDMA_SVC_SLOW_USEC  30

/* Requests in a row that find their pages in memory, until other requests than
 * repairs are executed without looking */
#define UCT_NPRDMA_SVC_HINT_RUN  64


/* The kernel does not tell whether an absent page was never touched, so that
 * the CPU only has to clear one, or has to be read from a disk. Two switches of
 * threads cost more than the first and less than the second. Memory nearby is
 * mostly of the same kind, so what the last page-in took is remembered. Where
 * it was quick nothing is asked, until a request waits. */
typedef enum uct_nprdma_svc_hint_kind {
    UCT_NPRDMA_SVC_HINT_NONE,  /* A thread has to find out */
    UCT_NPRDMA_SVC_HINT_QUICK, /* The kernel did not wait */
    UCT_NPRDMA_SVC_HINT_SLOW   /* It did */
} uct_nprdma_svc_hint_kind_t;

typedef struct uct_nprdma_svc_hint {
    uint64_t chunk;
    uint32_t kind;
    uint16_t run;      /* Requests since the last absent page */
    uint16_t in_doubt; /* The last page-in was quick, those before were not */
} uct_nprdma_svc_hint_t;


struct uct_nprdma_svc_parking {
    uct_nprdma_mem_md_t     *md;
    uct_nprdma_pager_t      *pager;
    uct_nprdma_pager_job_t  *done;      /* Taken from the pager */
    ucs_queue_head_t        free;
    unsigned                num_used;   /* Elements that were used once */
    unsigned                num_parked; /* Elements in use */
    unsigned                num_slots;  /* Slots in use */
    int                     is_kick_due;
    uct_nprdma_svc_hint_t   hints[UCT_NPRDMA_SVC_HINTS];
    uct_nprdma_svc_parked_t parked[UCT_NPRDMA_SVC_MAX_PARKED];
};


/* ---- hints ---- */

static uct_nprdma_svc_hint_t *
uct_nprdma_svc_hint(uct_nprdma_svc_parking_t *parking, uint64_t address)
{
    uint64_t chunk = address >> UCT_NPRDMA_SVC_HINT_SHIFT;

    return &parking->hints[chunk % UCT_NPRDMA_SVC_HINTS];
}

static uct_nprdma_svc_hint_kind_t
uct_nprdma_svc_hint_get(uct_nprdma_svc_parking_t *parking, uint64_t address)
{
    const uct_nprdma_svc_hint_t *hint = uct_nprdma_svc_hint(parking, address);

    return (hint->chunk == (address >> UCT_NPRDMA_SVC_HINT_SHIFT)) ?
           hint->kind : UCT_NPRDMA_SVC_HINT_NONE;
}

static void uct_nprdma_svc_hint_set(uct_nprdma_svc_parking_t *parking,
                                    uint64_t address,
                                    uct_nprdma_svc_hint_kind_t kind)
{
    uct_nprdma_svc_hint_t *hint = uct_nprdma_svc_hint(parking, address);

    hint->chunk    = address >> UCT_NPRDMA_SVC_HINT_SHIFT;
    hint->kind     = kind;
    hint->run      = 0;
    hint->in_doubt = 0;
}

/* A page from the disk that arrives just before the thread looks seems to be
 * quick. Two such ones in a row are rare. */
static void uct_nprdma_svc_hint_quick(uct_nprdma_svc_parking_t *parking,
                                      uint64_t address)
{
    uct_nprdma_svc_hint_t *hint = uct_nprdma_svc_hint(parking, address);

    if ((uct_nprdma_svc_hint_get(parking, address) ==
         UCT_NPRDMA_SVC_HINT_SLOW) && !hint->in_doubt) {
        hint->in_doubt = 1;
    } else {
        uct_nprdma_svc_hint_set(parking, address, UCT_NPRDMA_SVC_HINT_QUICK);
    }
}

/* All pages of a request were in memory */
static void
uct_nprdma_svc_hint_ready(uct_nprdma_svc_parking_t *parking, uint64_t address)
{
    uct_nprdma_svc_hint_t *hint = uct_nprdma_svc_hint(parking, address);

    if ((hint->kind == UCT_NPRDMA_SVC_HINT_SLOW) &&
        (++hint->run == UCT_NPRDMA_SVC_HINT_RUN)) {
        hint->kind = UCT_NPRDMA_SVC_HINT_NONE;
    }
}


/* ---- requests ---- */

/* Rule "reach of a key": a page-in does not go beyond the registration */
static int
uct_nprdma_svc_is_registered(uct_nprdma_svc_parking_t *parking,
                             const uct_nprdma_svc_request_t *request)
{
    nprdma_reg_t *reg;

    if (nprdma_reg_get(parking->md->regs, request->key, request->address,
                       (uint64_t)request->length + request->prefetch,
                       uct_nprdma_svc_required_access(request),
                       &reg) != UCS_OK) {
        return 0; /* The execution reports it */
    }

    nprdma_reg_put(reg);
    return 1;
}

/* Bytes of a request in the first pages of its range */
static uint32_t uct_nprdma_svc_bytes(const uct_nprdma_svc_request_t *request,
                                     size_t num_pages)
{
    uint64_t bytes = num_pages * NPRDMA_PAGE_SIZE;
    uint64_t head  = request->address % NPRDMA_PAGE_SIZE;

    return (bytes <= head) ? 0 :
           (uint32_t)ucs_min(bytes - head, (uint64_t)request->length);
}

void uct_nprdma_svc_parking_need(uct_nprdma_svc_parking_t *parking,
                                 const uct_nprdma_svc_request_t *request,
                                 uct_nprdma_svc_need_t *need)
{
    int is_repair = uct_nprdma_svc_is_repair(request);
    uct_nprdma_svc_hint_kind_t kind;
    size_t ready, count;

    need->pages.count = 0;
    need->limit       = UINT32_MAX;
    if ((request->length == 0) ||
        ((request->type == UCT_NPRDMA_SVC_POPULATE) &&
         (parking->md->monitor == NULL))) {
        return; /* No memory, or an error */
    }

    kind = uct_nprdma_svc_hint_get(parking, request->address);
    if ((!is_repair && (kind != UCT_NPRDMA_SVC_HINT_SLOW)) ||
        (kind == UCT_NPRDMA_SVC_HINT_QUICK) ||
        !uct_nprdma_svc_is_registered(parking, request)) {
        return;
    }

    need->pages.address = request->address & ~(NPRDMA_PAGE_SIZE - 1);
    count = ucs_min(nprdma_region_num_pages(request->address, request->length),
                    (size_t)NPRDMA_PAGEIN_PROBE_MAX);
    ready = nprdma_pagein_in_memory(need->pages.address, count);
    if (ready == count) {
        uct_nprdma_svc_hint_ready(parking, request->address);
    }

    /* The initiator asks again for the rest of a POPULATE */
    need->limit = uct_nprdma_svc_bytes(request, ready);
    if ((ready == count) || ((request->type == UCT_NPRDMA_SVC_POPULATE) &&
                             (need->limit >= UCT_NPRDMA_POPULATE_STEP))) {
        return;
    }

    need->pages.count    = count;
    need->pages.is_write = (request->type != UCT_NPRDMA_SVC_FETCH) &&
                           ((request->type != UCT_NPRDMA_SVC_POPULATE) ||
                            (request->op & UCT_NPRDMA_SVC_POPULATE_WRITE));
}

/* Place for a request of a certain size, or NULL */
static uct_nprdma_svc_parked_t *
uct_nprdma_svc_parking_get(uct_nprdma_svc_parking_t *parking,
                           const uct_nprdma_svc_parked_queue_t *queue,
                           const uct_nprdma_slot_t *slot, size_t size)
{
    /* Half of the slots are for requests of other peers */
    if (!uct_nprdma_credits_has_share(queue->count,
                                      UCT_NPRDMA_SVC_MAX_PARKED -
                                      parking->num_parked, 0) ||
        ((size > UCT_NPRDMA_SVC_PARKED_COPY) &&
         (2 * parking->num_slots >= slot->pool->num_slots))) {
        return NULL;
    }

    ++parking->num_parked;
    if (!ucs_queue_is_empty(&parking->free)) {
        return ucs_queue_pull_elem_non_empty(&parking->free,
                                             uct_nprdma_svc_parked_t, queue);
    }
    return &parking->parked[parking->num_used++];
}

uct_nprdma_svc_parked_t *
uct_nprdma_svc_parking_add(uct_nprdma_svc_parking_t *parking,
                           uct_nprdma_svc_parked_queue_t *queue, void *conn,
                           uct_nprdma_slot_t *slot,
                           const uct_nprdma_svc_request_t *request,
                           size_t size, const uct_nprdma_svc_need_t *need)
{
    uct_nprdma_svc_parked_t *parked;

    parked = uct_nprdma_svc_parking_get(parking, queue, slot, size);
    if (parked == NULL) {
        return NULL;
    }

    parked->conn = conn;
    if (size <= UCT_NPRDMA_SVC_PARKED_COPY) {
        memcpy(parked->copy, request, size);
        parked->request = (void*)parked->copy;
        parked->slot    = NULL;
    } else {
        parked->request = request;
        parked->slot    = slot;
        ++parking->num_slots;
    }

    parked->job        = need->pages;
    parked->limit      = need->limit;
    parked->is_waiting = (need->pages.count > 0) &&
                         uct_nprdma_pager_submit(parking->pager, &parked->job);
    if ((need->pages.count > 0) && !parked->is_waiting) {
        parked->limit = UINT32_MAX; /* The service takes the faults */
    }
    parking->is_kick_due |= parked->is_waiting;
    ucs_queue_push(&queue->queue, &parked->queue);
    ++queue->count;
    return parked;
}

void uct_nprdma_svc_parking_kick(uct_nprdma_svc_parking_t *parking)
{
    if (parking->is_kick_due) {
        parking->is_kick_due = 0;
        uct_nprdma_pager_kick(parking->pager);
    }
}

uct_nprdma_svc_parked_t *
uct_nprdma_svc_parking_take(uct_nprdma_svc_parking_t *parking)
{
    uct_nprdma_svc_parked_t *parked;
    uint32_t bytes;

    if (parking->done == NULL) {
        parking->done = uct_nprdma_pager_take_done(parking->pager);
        if (parking->done == NULL) {
            return NULL;
        }
    }

    parked        = ucs_container_of(parking->done, uct_nprdma_svc_parked_t,
                                     job);
    parking->done = parking->done->next;
    bytes         = uct_nprdma_svc_bytes(parked->request, parked->job.done);

    /* The execution reports what cannot be brought in */
    parked->is_waiting = 0;
    parked->limit      = (bytes == 0) ? UINT32_MAX : bytes;
    if (parked->job.is_slow) {
        uct_nprdma_svc_hint_set(parking, parked->request->address,
                                UCT_NPRDMA_SVC_HINT_SLOW);
    } else {
        uct_nprdma_svc_hint_quick(parking, parked->request->address);
    }
    return parked;
}

uct_nprdma_slot_t *
uct_nprdma_svc_parking_release(uct_nprdma_svc_parking_t *parking,
                               uct_nprdma_svc_parked_t *parked)
{
    uct_nprdma_slot_t *slot = parked->slot;

    if (slot != NULL) {
        --parking->num_slots;
    }
    ucs_queue_push(&parking->free, &parked->queue);
    --parking->num_parked;
    return slot;
}

static uct_nprdma_svc_parked_t *
uct_nprdma_svc_parking_pull(uct_nprdma_svc_parked_queue_t *queue)
{
    --queue->count;
    return ucs_queue_pull_elem_non_empty(&queue->queue, uct_nprdma_svc_parked_t,
                                         queue);
}

uct_nprdma_slot_t *
uct_nprdma_svc_parking_pop(uct_nprdma_svc_parking_t *parking,
                           uct_nprdma_svc_parked_queue_t *queue)
{
    return uct_nprdma_svc_parking_release(parking,
                                          uct_nprdma_svc_parking_pull(queue));
}

uct_nprdma_slot_t *
uct_nprdma_svc_parking_drop(uct_nprdma_svc_parking_t *parking,
                            uct_nprdma_svc_parked_queue_t *queue)
{
    uct_nprdma_svc_parked_t *parked = uct_nprdma_svc_parking_pull(queue);

    if (parked->is_waiting &&
        !uct_nprdma_pager_cancel(parking->pager, &parked->job)) {
        parked->conn = NULL;
        return NULL;
    }

    return uct_nprdma_svc_parking_release(parking, parked);
}

/* Other requests are short, so their time tells, without a system call */
long uct_nprdma_svc_parking_num_waits(const uct_nprdma_svc_request_t *request)
{
    return (request->type == UCT_NPRDMA_SVC_POPULATE) ?
           nprdma_pagein_num_waits() : -1;
}

void uct_nprdma_svc_parking_learn(uct_nprdma_svc_parking_t *parking,
                                  const uct_nprdma_svc_request_t *request,
                                  double usec, long num_waits)
{
    if ((usec > UCT_NPRDMA_SVC_SLOW_USEC) &&
        ((num_waits < 0) || (nprdma_pagein_num_waits() != num_waits))) {
        uct_nprdma_svc_hint_set(parking, request->address,
                                UCT_NPRDMA_SVC_HINT_SLOW);
    }
}

void uct_nprdma_svc_parking_query(uct_nprdma_svc_parking_t *parking,
                                  uct_nprdma_mem_stats_t *stats)
{
    uct_nprdma_pager_stats_t pager;

    uct_nprdma_pager_query(parking->pager, &pager);
    stats->pagein_jobs    = pager.jobs;
    stats->pagein_slow    = pager.slow;
    stats->pagein_peak    = pager.peak;
    stats->pagein_threads = pager.threads;
}


/* ---- start and end ---- */

ucs_status_t
uct_nprdma_svc_parking_create(uct_nprdma_mem_md_t *md,
                              uct_nprdma_pager_t *pager,
                              uct_nprdma_svc_parking_t **parking_p)
{
    uct_nprdma_svc_parking_t *parking;

    parking = ucs_calloc(1, sizeof(*parking), "nprdma_svc_parking");
    if (parking == NULL) {
        ucs_error("failed to allocate requests that wait for pages");
        return UCS_ERR_NO_MEMORY;
    }

    parking->md    = md;
    parking->pager = pager;
    ucs_queue_head_init(&parking->free);
    *parking_p = parking;
    return UCS_OK;
}

void uct_nprdma_svc_parking_destroy(uct_nprdma_svc_parking_t *parking)
{
    ucs_free(parking);
}
