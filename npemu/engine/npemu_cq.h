/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Completion queues of this process, and polling them. */

#ifndef NPEMU_CQ_H
#define NPEMU_CQ_H

#include "engine/npemu_wait.h"
#include "fabric/npemu_proc.h"

typedef struct npemu_cq {
    struct ibv_cq         super;
    npemu_proc_t          *proc;
    npemu_cq_shm_t        *shm;
    npemu_cqe_t           *cqes;     /* as in `shm`, whose first cache line is
                                      * the producers' */
    uint32_t              mask;
    uint8_t               *data;
    _Atomic uint32_t      head;      /* next to poll */
    npemu_spin_t          lock;      /* of consumers */

    npemu_waits_t         waits;     /* send queues that wait for a retry */

    _Atomic uint32_t      refcount;  /* QPs, twice if they use it twice */
    uint32_t              taken;     /* events delivered; channel lock */
    npemu_link_t          link;      /* in proc->cqs */
    npemu_link_t          channel_link;
    uint32_t              async_delivered; /* events, under events_lock */
} npemu_cq_t;

static inline npemu_cq_t *npemu_cq(struct ibv_cq *cq)
{
    return npemu_container_of(cq, npemu_cq_t, super);
}

/** ibv_poll_cq and ibv_req_notify_cq of this device. */
int npemu_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
int npemu_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/**
 * Discard the completions of a QP that is destroyed or reset. No thread may
 * produce completions of it any more.
 */
void npemu_cq_clean(npemu_cq_t *cq, uint32_t qpn);

/** 1 if a completion that has not been polled refers to this receive of the QP,
 * else 0. */
int npemu_cq_refers(npemu_cq_t *cq, uint32_t qpn, uint32_t index);

/** Retry what waits in the send queues of all CQs. By the npemu thread. Returns
 * when to call again, UINT64_MAX if nothing waits. */
uint64_t npemu_cq_retry_all(npemu_proc_t *proc);

#endif
