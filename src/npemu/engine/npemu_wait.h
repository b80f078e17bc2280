/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Send queues that wait for a retry, in groups by what they wait for: one
 * receive queue, or targets that do not answer. Whether a group has reason to
 * try again is seen from the group, so that thousands of queue pairs in front
 * of one empty receive queue cost no more than one.
 */

#ifndef NPEMU_WAIT_H
#define NPEMU_WAIT_H

#include "fabric/npemu_lock.h"
#include "fabric/npemu_proc.h"

struct npemu_qp;
struct npemu_wait_group;

#define NPEMU_WAIT_BUCKETS 64

/* Of a CQ: what waits in the send queues that complete there. */
typedef struct {
    npemu_spin_t     lock;
    _Atomic uint32_t count;    /* send queues */
    npemu_link_t     groups;   /* those in use, the next to be scanned first */
    npemu_link_t     buckets[NPEMU_WAIT_BUCKETS];
    npemu_link_t     spare;    /* one group per QP, less those in use */
    _Atomic uint64_t looks;    /* send queues looked at, ever */
    _Atomic uint64_t pauses;   /* of groups that had reason to try, ever */
} npemu_waits_t;

/* Of a QP. Written with sq_lock and the lock of the above held. */
typedef struct {
    struct npemu_wait_group *group;   /* NULL: does not wait */
    npemu_link_t            link;
    uint64_t                next_ns;  /* retry.next_ns when it was put here */
} npemu_wait_t;

/** No send queue waits, and there is no QP yet. */
void npemu_waits_init(npemu_waits_t *waits);

/** Make room for the group of one more QP. 0 or ENOMEM. */
int npemu_waits_reserve(npemu_waits_t *waits);

/** The opposite, when the QP does not wait any more. */
void npemu_waits_unreserve(npemu_waits_t *waits);

/**
 * The oldest request of a send queue could not be executed, and `retry` says
 * why: try again when there is reason to. sq_lock is held.
 */
void npemu_wait_enlist(struct npemu_qp *qp);

/** Forget that it waits, if it does. sq_lock is held. */
void npemu_wait_cancel(struct npemu_qp *qp);

/**
 * Try again what has reason to: a receive has been posted, the peer has died,
 * or time has passed. By pollers of the CQ; looks at some groups only, at the
 * next ones with the next call.
 */
void npemu_wait_progress(npemu_waits_t *waits);

/**
 * The same for all groups of all CQs, by the npemu thread.
 *
 * @return When to call again, UINT64_MAX if nothing waits.
 */
uint64_t npemu_wait_progress_all(npemu_proc_t *proc);

#endif
