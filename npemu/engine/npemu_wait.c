/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_wait.h"
#include "engine/npemu_rq.h"
#include "fabric/npemu_thread.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#define NPEMU_MSEC 1000000ull

/* How many groups one poll of a CQ scans. */
#define NPEMU_WAIT_GROUPS_MAX 64

/* With rnr_retry 7 retries are not counted. While the queue is empty, such a
 * retry can only find that its target is gone. The timer is a lower bound (IBA
 * 9.7.5.2.8), so all send queues that wait for one receive queue share one
 * retry per this time. */
#define NPEMU_WAIT_SHARED_NS 10000ull

/* How much later than due the npemu thread looks after what a poller of the CQ
 * will have executed. */
#define NPEMU_WAIT_LAX_NS NPEMU_MSEC

typedef struct {
    npemu_retry_kind_t kind;
    int                is_counted; /* RNR: the retries are numbered */
    npemu_peer_t       *peer;      /* RNR: of the target */
    npemu_rq_shm_t     *rq;        /* RNR: the target's receive queue */
    uint64_t           timer_ns;   /* between retries */
    const npemu_wait_t *wait;      /* WIRE: the only member */
} npemu_wait_key_t;

/* The timer is the same for all members, so the one that is added last is due
 * last. */
typedef struct npemu_wait_group {
    npemu_link_t     link;         /* in groups or spare */
    npemu_link_t     members;      /* by npemu_wait_t.listed_ns */
    uint32_t         count;
    int              is_skipped;   /* a member was locked in the last scan */
    npemu_wait_key_t key;
} npemu_wait_group_t;

/* --- room for groups -------------------------------------------------------*/

void npemu_waits_init(npemu_waits_t *waits)
{
    npemu_link_init(&waits->groups);
    npemu_link_init(&waits->spare);
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

/* A group in use has a member, and this send queue is none: one is spare. */
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

static npemu_wait_key_t npemu_wait_key(const npemu_wait_t *wait)
{
    const npemu_retry_t *retry = &wait->retry;
    npemu_wait_key_t key       = {.kind     = retry->kind,
                                  .timer_ns = retry->timer_ns};

    if (retry->kind == NPEMU_RETRY_RNR) {
        key.is_counted = (retry->left != NPEMU_RNR_FOREVER);
        key.peer       = retry->peer;
        key.rq         = retry->rq;
    } else if (retry->kind == NPEMU_RETRY_WIRE) {
        key.peer = retry->peer;
        key.wait = wait;
    }
    return key;
}

static int npemu_wait_key_is_equal(const npemu_wait_key_t *a,
                                   const npemu_wait_key_t *b)
{
    return (a->kind == b->kind) && (a->is_counted == b->is_counted) &&
           (a->peer == b->peer) && (a->rq == b->rq) &&
           (a->timer_ns == b->timer_ns) && (a->wait == b->wait);
}

/* The group with this key, which is a new one if there is none. */
static npemu_wait_group_t *npemu_wait_group(npemu_waits_t *waits,
                                            const npemu_wait_key_t *key)
{
    npemu_wait_group_t *group;
    npemu_link_t *link;

    for (link = waits->groups.next;
         (key->wait == NULL) && (link != &waits->groups); link = link->next) {
        group = npemu_container_of(link, npemu_wait_group_t, link);
        if (npemu_wait_key_is_equal(&group->key, key)) {
            return group;
        }
    }

    group = npemu_container_of(waits->spare.next, npemu_wait_group_t, link);
    npemu_link_del(&group->link);
    group->count      = 0;
    group->is_skipped = 0;
    group->key        = *key;
    npemu_link_init(&group->members);
    npemu_link_add(&waits->groups, &group->link);
    return group;
}

static void npemu_wait_unlink(npemu_wait_t *wait)
{
    npemu_wait_group_t *group = wait->group;

    npemu_link_del(&wait->link);
    wait->group = NULL;
    if (--group->count == 0) {
        npemu_link_del(&group->link);
        npemu_link_add(&wait->waits->spare, &group->link);
    }
}

static void npemu_wait_leave(npemu_wait_t *wait)
{
    if (wait->group != NULL) {
        npemu_wait_unlink(wait);
        atomic_fetch_sub(&wait->waits->count, 1);
    }
}

static void npemu_wait_join(npemu_wait_t *wait)
{
    npemu_wait_key_t key = npemu_wait_key(wait);
    npemu_wait_group_t *group;

    /* Unlinked first, so that its own group is spare if no other is. A member
     * that changes its group stays counted: the npemu thread reads the count
     * without the lock, and sleeps without a timer if it is 0. */
    if (wait->group != NULL) {
        npemu_wait_unlink(wait);
    } else {
        atomic_fetch_add(&wait->waits->count, 1);
    }

    group           = npemu_wait_group(wait->waits, &key);
    wait->group     = group;
    wait->listed_ns = wait->retry.next_ns;
    ++group->count;
    npemu_link_add(&group->members, &wait->link);
}

/* When the npemu thread looks after what is due at a time. */
static uint64_t npemu_wait_alarm_ns(const npemu_waits_t *waits,
                                    npemu_retry_kind_t kind, uint64_t when)
{
    return ((kind == NPEMU_RETRY_WIRE) &&
            atomic_load_explicit(&waits->is_polled, memory_order_relaxed)) ?
                   when + NPEMU_WAIT_LAX_NS : when;
}

void npemu_wait_enlist(npemu_wait_t *wait)
{
    npemu_spin_lock(&wait->waits->lock);
    npemu_wait_join(wait);
    npemu_spin_unlock(&wait->waits->lock);
    npemu_thread_set_timer(wait->proc,
                           npemu_wait_alarm_ns(wait->waits, wait->retry.kind,
                                               wait->retry.next_ns));
}

void npemu_waits_sleep(npemu_waits_t *waits, npemu_proc_t *proc)
{
    if ((atomic_load(&waits->count) != 0) &&
        atomic_exchange(&waits->is_polled, 0)) {
        npemu_thread_set_timer(proc, 0);
    }
}

void npemu_wait_cancel(npemu_wait_t *wait)
{
    npemu_spin_lock(&wait->waits->lock);
    npemu_wait_leave(wait);
    npemu_spin_unlock(&wait->waits->lock);
}

/* --- retries ---------------------------------------------------------------*/

static uint64_t npemu_wait_due_ns(const npemu_wait_group_t *group,
                                  const npemu_wait_t *wait)
{
    uint64_t round = group->count * NPEMU_WAIT_SHARED_NS;

    if ((group->key.kind != NPEMU_RETRY_RNR) || group->key.is_counted ||
        (round <= group->key.timer_ns)) {
        return wait->listed_ns;
    }

    return wait->listed_ns + round - group->key.timer_ns;
}

/* Is there a reason to retry that does not depend on time? */
static int npemu_wait_has_changed(const npemu_wait_group_t *group)
{
    if (group->key.kind == NPEMU_RETRY_WIRE) {
        return (group->key.peer != NULL) &&
               !npemu_peer_is_alive(group->key.peer);
    }

    return (group->key.kind == NPEMU_RETRY_RNR) &&
           (npemu_rq_has_receives(group->key.rq) ||
            !npemu_peer_is_alive(group->key.peer));
}

/* Retry. Returns 1 if the target has no receive. Both locks are held. */
static int npemu_wait_retry(npemu_wait_t *wait)
{
    npemu_wait_key_t key;

    if (wait->retry.kind != NPEMU_RETRY_WIRE) { /* tried before */
        atomic_fetch_add_explicit(&wait->waits->retries, 1,
                                  memory_order_relaxed);
    }
    wait->run(wait);
    if (!npemu_wait_is_begun(wait)) {
        npemu_wait_leave(wait); /* nothing is left, or it is drained */
        return 0;
    }

    key = npemu_wait_key(wait);
    if ((wait->listed_ns != wait->retry.next_ns) ||
        !npemu_wait_key_is_equal(&key, &wait->group->key)) {
        npemu_wait_join(wait);
    }
    return key.kind == NPEMU_RETRY_RNR;
}

/*
 * The lock of the `npemu_waits_t` is held. Owners of a send queue take it with
 * the lock of the send queue held, so here that one is tried only. The scan
 * ends: a retry that fails moves the member to the end of its group with a
 * later time, and shows that the receive queue is empty.
 */
static void npemu_wait_scan_group(npemu_wait_group_t *group, uint64_t now)
{
    int has_changed    = npemu_wait_has_changed(group);
    npemu_link_t *link = group->members.next;
    npemu_wait_t *wait;

    group->is_skipped = 0;
    while (link != &group->members) {
        wait = npemu_container_of(link, npemu_wait_t, link);
        if (!has_changed && (now < npemu_wait_due_ns(group, wait))) {
            break;
        }

        link = link->next;
        if (!npemu_spin_trylock(wait->lock)) {
            group->is_skipped = 1;
            continue;
        }
        if (npemu_wait_retry(wait)) {
            has_changed = 0; /* the receives that were there have been taken */
        }
        npemu_spin_unlock(wait->lock);
    }
}

/* Scan up to `max` groups; the next scan goes on behind them. */
static void npemu_waits_scan(npemu_waits_t *waits, unsigned max)
{
    uint64_t now       = npemu_time_ns();
    npemu_link_t *link = waits->groups.next;
    npemu_link_t *next;

    for (; (link != &waits->groups) && (max > 0); link = next, --max) {
        next = link->next;
        npemu_wait_scan_group(npemu_container_of(link, npemu_wait_group_t,
                                                 link), now);
    }
    if (link != &waits->groups) {
        npemu_link_del(&waits->groups);
        npemu_link_add(link, &waits->groups);
    }
}

void npemu_waits_progress(npemu_waits_t *waits)
{
    if (!atomic_load_explicit(&waits->is_polled, memory_order_relaxed)) {
        atomic_store_explicit(&waits->is_polled, 1, memory_order_relaxed);
    }
    if (npemu_spin_trylock(&waits->lock)) {
        npemu_waits_scan(waits, NPEMU_WAIT_GROUPS_MAX);
        npemu_spin_unlock(&waits->lock);
    }
}

/* When a group must be scanned again. */
static uint64_t npemu_wait_group_next(npemu_waits_t *waits,
                                      const npemu_wait_group_t *group,
                                      uint64_t now)
{
    uint64_t timer     = group->key.timer_ns;
    npemu_wait_t *wait = npemu_container_of(group->members.next, npemu_wait_t,
                                            link);
    uint64_t next      = npemu_wait_due_ns(group, wait);

    if ((next <= now) || npemu_wait_has_changed(group)) {
        if (!group->is_skipped) {
            return now; /* news since the scan: do not wait */
        }

        /* The owner of a locked send queue appends a request, and does not
         * retry the older ones */
        atomic_fetch_add_explicit(&waits->pauses, 1, memory_order_relaxed);
        return now + ((timer < NPEMU_MSEC) ? timer : NPEMU_MSEC);
    }

    /* A receive that is posted is seen after the timer, even where a round of
     * shared retries takes longer */
    return ((group->key.kind == NPEMU_RETRY_RNR) && (next - now > timer)) ?
                   now + timer : next;
}

static uint64_t npemu_waits_next(npemu_waits_t *waits)
{
    uint64_t now   = npemu_time_ns();
    uint64_t first = UINT64_MAX;
    npemu_wait_group_t *group;
    npemu_link_t *link;
    uint64_t when;

    for (link = waits->groups.next; link != &waits->groups;
         link = link->next) {
        group = npemu_container_of(link, npemu_wait_group_t, link);
        when  = npemu_wait_alarm_ns(waits, group->key.kind,
                                    npemu_wait_group_next(waits, group, now));
        first = (when < first) ? when : first;
    }
    atomic_store_explicit(&waits->is_polled, 0, memory_order_relaxed);
    return first;
}

uint64_t npemu_waits_progress_all(npemu_waits_t *waits)
{
    uint64_t next;

    if (atomic_load(&waits->count) == 0) {
        return UINT64_MAX;
    }

    npemu_spin_lock(&waits->lock);
    npemu_waits_scan(waits, UINT_MAX);
    next = npemu_waits_next(waits);
    npemu_spin_unlock(&waits->lock);
    return next;
}
