/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "npemu.h"
#include "engine/npemu_cq.h"
#include "engine/npemu_sq.h"
#include "fabric/npemu_thread.h"
#include "engine/npemu_wait.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#define NPEMU_MSEC 1000000ull

/* How many groups one poll of a CQ looks at. */
#define NPEMU_WAIT_GROUPS_MAX 64

/* Retries for ever are not counted, and in front of an empty queue they find
 * no more than that a target has gone. The timer is the least to wait, IBA
 * 9.7.5.2.8: so who waits for the same queue shares one retry per so much. */
#define NPEMU_WAIT_LOOK_NS 10000ull

typedef struct {
    npemu_retry_kind_t kind;
    int                is_counted; /* RNR: the retries are numbered */
    npemu_peer_t       *peer;      /* RNR: of the target */
    npemu_rq_shm_t     *rq;        /* RNR: the target's receive queue */
    uint64_t           timer_ns;   /* between retries */
} npemu_wait_key_t;

/* As the timer is the same for all, who comes last is due last. */
typedef struct npemu_wait_group {
    npemu_link_t     link;         /* in groups or spare */
    npemu_link_t     bucket_link;
    npemu_link_t     qps;          /* by npemu_wait_t.next_ns */
    uint32_t         count;
    int              is_skipped;   /* the last scan met one that was locked */
    npemu_wait_key_t key;
} npemu_wait_group_t;

/* --- room for groups -------------------------------------------------------*/

void npemu_waits_init(npemu_waits_t *waits)
{
    unsigned i;

    npemu_link_init(&waits->groups);
    npemu_link_init(&waits->spare);
    for (i = 0; i < NPEMU_WAIT_BUCKETS; ++i) {
        npemu_link_init(&waits->buckets[i]);
    }
}

int npemu_waits_reserve(npemu_waits_t *waits)
{
    npemu_wait_group_t *group = malloc(sizeof(*group));

    if (group == NULL) {
        return ENOMEM;
    }

    npemu_spin_lock(&waits->lock);
    npemu_link_add(&waits->spare, &group->link);
    npemu_spin_unlock(&waits->lock);
    return 0;
}

/* A group in use has a member, and the QP is none: one is spare. */
void npemu_waits_unreserve(npemu_waits_t *waits)
{
    npemu_wait_group_t *group;

    npemu_spin_lock(&waits->lock);
    group = npemu_container_of(waits->spare.next, npemu_wait_group_t, link);
    npemu_link_del(&group->link);
    npemu_spin_unlock(&waits->lock);
    free(group);
}

/* --- membership ------------------------------------------------------------*/

static npemu_wait_key_t npemu_wait_key(const npemu_qp_t *qp)
{
    const npemu_retry_t *retry = &qp->retry;
    npemu_wait_key_t key       = {.kind     = retry->kind,
                                  .timer_ns = retry->timer_ns};

    if (retry->kind == NPEMU_RETRY_RNR) {
        key.is_counted = (retry->left != NPEMU_RNR_FOREVER);
        key.peer       = qp->peer;
        key.rq         = retry->rq;
    }
    return key;
}

static int npemu_wait_key_is_equal(const npemu_wait_key_t *a,
                                   const npemu_wait_key_t *b)
{
    return (a->kind == b->kind) && (a->is_counted == b->is_counted) &&
           (a->peer == b->peer) && (a->rq == b->rq) &&
           (a->timer_ns == b->timer_ns);
}

static npemu_link_t *npemu_wait_bucket(npemu_waits_t *waits,
                                       const npemu_wait_key_t *key)
{
    uint64_t hash = (uintptr_t)key->rq / NPEMU_CACHE_LINE;

    return &waits->buckets[((hash * 0x9e3779b97f4a7c15ull) >> 32) %
                           NPEMU_WAIT_BUCKETS];
}

/* The group with this key, which is a new one if there is none. */
static npemu_wait_group_t *npemu_wait_group(npemu_waits_t *waits,
                                            const npemu_wait_key_t *key)
{
    npemu_link_t *bucket = npemu_wait_bucket(waits, key);
    npemu_wait_group_t *group;
    npemu_link_t *link;

    for (link = bucket->next; link != bucket; link = link->next) {
        group = npemu_container_of(link, npemu_wait_group_t, bucket_link);
        if (npemu_wait_key_is_equal(&group->key, key)) {
            return group;
        }
    }

    group = npemu_container_of(waits->spare.next, npemu_wait_group_t, link);
    npemu_link_del(&group->link);
    group->count      = 0;
    group->is_skipped = 0;
    group->key        = *key;
    npemu_link_init(&group->qps);
    npemu_link_add(bucket, &group->bucket_link);
    npemu_link_add(&waits->groups, &group->link);
    return group;
}

static void npemu_wait_unlink(npemu_waits_t *waits, npemu_qp_t *qp)
{
    npemu_wait_group_t *group = qp->wait.group;

    npemu_link_del(&qp->wait.link);
    qp->wait.group = NULL;
    if (--group->count == 0) {
        npemu_link_del(&group->bucket_link);
        npemu_link_del(&group->link);
        npemu_link_add(&waits->spare, &group->link);
    }
}

static void npemu_wait_leave(npemu_waits_t *waits, npemu_qp_t *qp)
{
    if (qp->wait.group != NULL) {
        npemu_wait_unlink(waits, qp);
        atomic_fetch_sub(&waits->count, 1);
    }
}

static void npemu_wait_join(npemu_waits_t *waits, npemu_qp_t *qp)
{
    npemu_wait_key_t key = npemu_wait_key(qp);
    npemu_wait_group_t *group;

    /* Unlinked first, so that its own group is spare if no other is. Who only
     * changes places is counted all the time: the thread reads the count
     * without the lock, and sleeps without a timer if nobody waits. */
    if (qp->wait.group != NULL) {
        npemu_wait_unlink(waits, qp);
    } else {
        atomic_fetch_add(&waits->count, 1);
    }

    group            = npemu_wait_group(waits, &key);
    qp->wait.group   = group;
    qp->wait.next_ns = qp->retry.next_ns;
    ++group->count;
    npemu_link_add(&group->qps, &qp->wait.link);
}

void npemu_wait_enlist(npemu_qp_t *qp)
{
    npemu_waits_t *waits = &qp->send_cq->waits;

    npemu_spin_lock(&waits->lock);
    npemu_wait_join(waits, qp);
    npemu_spin_unlock(&waits->lock);
    npemu_thread_set_timer(qp->proc, qp->retry.next_ns);
}

void npemu_wait_cancel(npemu_qp_t *qp)
{
    npemu_waits_t *waits = &qp->send_cq->waits;

    npemu_spin_lock(&waits->lock);
    npemu_wait_leave(waits, qp);
    npemu_spin_unlock(&waits->lock);
}

/* --- retries ---------------------------------------------------------------*/

static uint64_t npemu_wait_due_ns(const npemu_wait_group_t *group,
                                  const npemu_qp_t *qp)
{
    uint64_t round = group->count * NPEMU_WAIT_LOOK_NS;

    if ((group->key.kind != NPEMU_RETRY_RNR) || group->key.is_counted ||
        (round <= group->key.timer_ns)) {
        return qp->wait.next_ns;
    }

    return qp->wait.next_ns + round - group->key.timer_ns;
}

/* Is there something for the group that does not depend on time? */
static int npemu_wait_has_news(const npemu_wait_group_t *group)
{
    return (group->key.kind == NPEMU_RETRY_RNR) &&
           (npemu_rq_has_receives(group->key.rq) ||
            !npemu_peer_is_alive(group->key.peer));
}

/* Try again. Returns 1 if the target has no receive. sq_lock is held. */
static int npemu_wait_try(npemu_waits_t *waits, npemu_qp_t *qp)
{
    npemu_wait_key_t key;

    atomic_fetch_add_explicit(&waits->looks, 1, memory_order_relaxed);
    npemu_sq_run(qp);
    if (!npemu_sq_is_begun(qp)) {
        npemu_wait_leave(waits, qp); /* nothing is left, or it is drained */
        return 0;
    }

    key = npemu_wait_key(qp);
    if ((qp->wait.next_ns != qp->retry.next_ns) ||
        !npemu_wait_key_is_equal(&key, &qp->wait.group->key)) {
        npemu_wait_join(waits, qp);
    }
    return key.kind == NPEMU_RETRY_RNR;
}

/*
 * The CQ's lock is held; send queues are only tried for, since their owners
 * take that lock with theirs held. The scan ends: who is tried in vain finds
 * the queue empty, goes to the end and is not due there.
 */
static void npemu_wait_scan_group(npemu_waits_t *waits,
                                  npemu_wait_group_t *group, uint64_t now)
{
    int has_news       = npemu_wait_has_news(group);
    npemu_link_t *link = group->qps.next;
    npemu_qp_t *qp;

    group->is_skipped = 0;
    while (link != &group->qps) {
        qp = npemu_container_of(link, npemu_qp_t, wait.link);
        if (!has_news && (now < npemu_wait_due_ns(group, qp))) {
            break;
        }

        link = link->next;
        if (!npemu_spin_trylock(&qp->sq_lock)) {
            group->is_skipped = 1;
            continue;
        }
        if (npemu_wait_try(waits, qp)) {
            has_news = 0; /* what was there has been taken */
        }
        npemu_spin_unlock(&qp->sq_lock);
    }
}

/* Scan up to `max` groups; the next time goes on behind them. */
static void npemu_wait_scan(npemu_waits_t *waits, unsigned max)
{
    uint64_t now       = npemu_time_ns();
    npemu_link_t *link = waits->groups.next;
    npemu_link_t *next;

    for (; (link != &waits->groups) && (max > 0); link = next, --max) {
        next = link->next;
        npemu_wait_scan_group(waits,
                              npemu_container_of(link, npemu_wait_group_t,
                                                 link), now);
    }
    if (link != &waits->groups) {
        npemu_link_del(&waits->groups);
        npemu_link_add(link, &waits->groups);
    }
}

void npemu_wait_progress(npemu_waits_t *waits)
{
    if (npemu_spin_trylock(&waits->lock)) {
        npemu_wait_scan(waits, NPEMU_WAIT_GROUPS_MAX);
        npemu_spin_unlock(&waits->lock);
    }
}

/* When a group must be looked at again. */
static uint64_t npemu_wait_group_next(npemu_waits_t *waits,
                                      const npemu_wait_group_t *group,
                                      uint64_t now)
{
    uint64_t timer = group->key.timer_ns;
    npemu_qp_t *qp = npemu_container_of(group->qps.next, npemu_qp_t, wait.link);
    uint64_t next  = npemu_wait_due_ns(group, qp);

    if ((next <= now) || npemu_wait_has_news(group)) {
        if (!group->is_skipped) {
            return now; /* since the scan; it is no reason to wait */
        }

        /* Who has it locked puts a request behind the others, without a try */
        atomic_fetch_add_explicit(&waits->pauses, 1, memory_order_relaxed);
        return now + ((timer < NPEMU_MSEC) ? timer : NPEMU_MSEC);
    }

    /* A receive that was posted shows after the timer, however long a round of
     * the retries is */
    return ((group->key.kind == NPEMU_RETRY_RNR) && (next - now > timer)) ?
                   now + timer : next;
}

static uint64_t npemu_wait_next(npemu_waits_t *waits)
{
    uint64_t now   = npemu_time_ns();
    uint64_t first = UINT64_MAX;
    npemu_link_t *link;
    uint64_t when;

    for (link = waits->groups.next; link != &waits->groups;
         link = link->next) {
        when  = npemu_wait_group_next(waits,
                                      npemu_container_of(link,
                                                         npemu_wait_group_t,
                                                         link), now);
        first = (when < first) ? when : first;
    }
    return first;
}

uint64_t npemu_wait_progress_all(npemu_proc_t *proc)
{
    uint64_t first = UINT64_MAX;
    uint64_t when;
    npemu_link_t *link;
    npemu_cq_t *cq;

    pthread_mutex_lock(&proc->lock);
    for (link = proc->cqs.next; link != &proc->cqs; link = link->next) {
        cq = npemu_container_of(link, npemu_cq_t, link);
        if (atomic_load(&cq->waits.count) == 0) {
            continue;
        }

        npemu_spin_lock(&cq->waits.lock);
        npemu_wait_scan(&cq->waits, UINT_MAX);
        when = npemu_wait_next(&cq->waits);
        npemu_spin_unlock(&cq->waits.lock);
        first = (when < first) ? when : first;
    }
    pthread_mutex_unlock(&proc->lock);
    return first;
}

uint64_t npemu_cq_looks(struct ibv_cq *cq)
{
    return atomic_load_explicit(&npemu_cq(cq)->waits.looks,
                                memory_order_relaxed);
}

uint64_t npemu_cq_pauses(struct ibv_cq *cq)
{
    return atomic_load_explicit(&npemu_cq(cq)->waits.pauses,
                                memory_order_relaxed);
}
