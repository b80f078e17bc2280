/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Completion queues: producing (any process) and polling (the owner). */

#ifndef NPEMU_CQ_H
#define NPEMU_CQ_H

#include "verbs/npemu_async.h"
#include "verbs/npemu_channel.h"
#include "fabric/npemu_peer.h"
#include "engine/npemu_wait.h"

/* The ring as consumers see it; replaced as a whole by resizing. */
typedef struct npemu_cq_ring {
    npemu_cqe_t          *cqes;
    uint32_t             mask;
    uint64_t             offset;  /* in the arena */
    struct npemu_cq_ring *older;  /* kept, for somebody may be looking at it */
} npemu_cq_ring_t;

typedef struct npemu_cq {
    struct ibv_cq         super;
    npemu_proc_t          *proc;
    npemu_cq_shm_t        *shm;
    npemu_cq_ring_t *_Atomic ring;
    uint8_t               *data;
    _Atomic uint32_t      head;      /* next to poll */
    npemu_spin_t          lock;      /* of consumers */

    npemu_waits_t         waits;     /* send queues that wait for a retry */

    _Atomic uint32_t      refcount;  /* QPs, twice if they use it twice */
    uint32_t              taken;     /* events got by the user; channel lock */
    npemu_link_t          link;      /* in proc->cqs */
    npemu_link_t          channel_link;
    npemu_async_count_t   async;
} npemu_cq_t;

static inline npemu_cq_t *npemu_cq(struct ibv_cq *cq)
{
    return npemu_container_of(cq, npemu_cq_t, super);
}

/* --- consumer --------------------------------------------------------------*/

/** ibv_poll_cq and ibv_req_notify_cq of this device. */
int npemu_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
int npemu_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/**
 * Forget the completions of a QP that is destroyed or reset. Nobody may produce
 * any more for it.
 */
void npemu_cq_clean(npemu_cq_t *cq, uint32_t qpn);

/** 1 if a completion nobody has polled refers to a receive of this QP. */
int npemu_cq_refers(npemu_cq_t *cq, uint32_t qpn, uint32_t index);

/** Take the producers' lock, as owner; released by npemu_rlock_release(). */
void npemu_cq_lock(npemu_cq_t *cq);

/** Raise one event with no cause: the user will poll and find what is there. */
void npemu_cq_kick(npemu_cq_t *cq);

/* --- producer --------------------------------------------------------------*/

typedef enum {
    NPEMU_CQ_OK,
    NPEMU_CQ_FULL,    /* overrun: the completion is lost */
    NPEMU_CQ_NO_DATA, /* no room for the payload at this time */
    NPEMU_CQ_BUSY     /* a stopped process holds the lock */
} npemu_cq_status_t;

/**
 * Start a completion: takes the CQ's lock, if it returns NPEMU_CQ_OK.
 *
 * @param [in]  proc      The calling process.
 * @param [in]  arena     Arena of the CQ.
 * @param [in]  cq        The CQ.
 * @param [in]  kind      Of the entry.
 * @param [in]  wait      Nonzero: never NPEMU_CQ_BUSY.
 * @param [in]  data_len  Payload to ride along, bytes.
 * @param [out] cqe_p     To be filled in, but for `seq`, `kind`, `solicited`
 *                        and the data fields.
 * @param [out] data_p    Where the payload goes.
 */
npemu_cq_status_t npemu_cq_begin(npemu_proc_t *proc, npemu_arena_shm_t *arena,
                                 npemu_cq_shm_t *cq, npemu_cqe_kind_t kind,
                                 int wait, uint32_t data_len,
                                 npemu_cqe_t **cqe_p, uint8_t **data_p);

/**
 * Publish the completion and release the lock.
 *
 * @param [in] peer       Owner of the CQ, to be notified if it asked for it.
 * @param [in] solicited  The sender asked for a solicited event.
 */
void npemu_cq_end(npemu_peer_t *peer, npemu_cq_shm_t *cq, npemu_cqe_t *cqe,
                  int solicited);

#endif
