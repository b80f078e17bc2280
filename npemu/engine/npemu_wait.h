/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Send queues that wait for a retry, in groups by what they wait for: one
 * receive queue, or targets that do not answer. The group shows whether it has
 * a reason to retry, so thousands of queue pairs that wait for one empty
 * receive queue cost no more than one. A queue that waits for the wire of
 * NPEMU_LINK is a group of its own.
 */

#ifndef NPEMU_WAIT_H
#define NPEMU_WAIT_H

#include "base/npemu_link.h"
#include "fabric/npemu_peer.h"

struct npemu_wait;
struct npemu_wait_group;

/* An rnr_retry, IBA 11.6.2: not counted. */
#define NPEMU_RNR_FOREVER 7

/* Why the oldest request of a send queue could not be executed. */
typedef enum {
    NPEMU_RETRY_NONE,
    NPEMU_RETRY_RNR,       /* the target has no receive */
    NPEMU_RETRY_BUSY,      /* a stopped process has a lock of the target's */
    NPEMU_RETRY_TRANSPORT, /* the target does not answer */
    NPEMU_RETRY_WIRE       /* NPEMU_LINK: it is not due */
} npemu_retry_kind_t;

/* Of the oldest request. */
typedef struct {
    npemu_retry_kind_t kind;
    int                is_written; /* WRITE_WITH_IMM: its data is there */
    uint64_t           next_ns;    /* time of the next retry that counts */
    uint64_t           end_ns;     /* TRANSPORT: give up then */
    uint64_t           timer_ns;   /* from one retry to the next */
    uint32_t           left;       /* RNR: retries left, of the rnr_retry */
    npemu_peer_t       *peer;      /* RNR, WIRE: process of the target; NULL
                                    * if there is none */
    npemu_rq_shm_t     *rq;        /* RNR: the target's empty receive queue */
} npemu_retry_t;

/* Of a CQ: what waits in the send queues that complete there. */
typedef struct {
    npemu_spin_t     lock;
    _Atomic uint32_t count;    /* send queues */
    npemu_link_t     groups;   /* those in use, the next to be scanned first */
    npemu_link_t     spare;    /* one group per send queue, less those in use */
    _Atomic uint32_t is_polled; /* since the npemu thread was here */
    _Atomic uint64_t retries;  /* of send queues, ever */
    _Atomic uint64_t pauses;   /* of groups that had a reason, ever */
} npemu_waits_t;

/**
 * Execute what waits in a send queue, as far as possible. The lock of the send
 * queue is held, and the one of the `npemu_waits_t`. `retry` says afterwards
 * why the oldest request still waits.
 */
typedef void (*npemu_wait_run_t)(struct npemu_wait *wait);

/* Of a send queue. `group`, `link` and `listed_ns` are written with both locks
 * held, its own and that of `waits`; `retry` with its own. */
typedef struct npemu_wait {
    npemu_proc_t            *proc;
    npemu_waits_t           *waits;    /* of the CQ it completes in */
    npemu_spin_t            *lock;     /* its own */
    npemu_wait_run_t        run;
    npemu_retry_t           retry;
    struct npemu_wait_group *group;    /* NULL: does not wait */
    npemu_link_t            link;
    uint64_t                listed_ns; /* retry.next_ns when it was listed */
} npemu_wait_t;

/** No send queue waits, and there is none yet. */
void npemu_waits_init(npemu_waits_t *waits);

/** Reserve the group of one more send queue. Returns 0 or ENOMEM. */
int npemu_waits_reserve(npemu_waits_t *waits);

/** The opposite, when the send queue does not wait any more. */
void npemu_waits_unreserve(npemu_waits_t *waits);

/**
 * The oldest request of a send queue could not be executed, and `retry` says
 * why: list it, to be retried when there is a reason. Its lock is held.
 */
void npemu_wait_enlist(npemu_wait_t *wait);

/** Nobody will poll the CQ: let the npemu thread be exact. */
void npemu_waits_sleep(npemu_waits_t *waits, npemu_proc_t *proc);

/** Take a send queue off the list, if it is listed. Its lock is held. */
void npemu_wait_cancel(npemu_wait_t *wait);

/** Has the oldest request been begun, and not completed? The lock of the send
 * queue is held. */
static inline int npemu_wait_is_begun(const npemu_wait_t *wait)
{
    return wait->retry.kind != NPEMU_RETRY_NONE;
}

/**
 * Retry what has a reason: a receive has been posted, the peer has died, or
 * time has passed. Called by pollers of the CQ. One call scans some groups only
 * and the next call goes on behind them.
 */
void npemu_waits_progress(npemu_waits_t *waits);

/** The same for all groups, by the npemu thread. Returns when to call again,
 * UINT64_MAX if nothing waits. */
uint64_t npemu_waits_progress_all(npemu_waits_t *waits);

#endif
