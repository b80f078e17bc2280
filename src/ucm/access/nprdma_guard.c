/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_guard.h"
#include "ucm/events/nprdma_events.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>


/* The caller holds the service lock of an MD: few accesses at a time */
#define NPRDMA_GUARD_NUM_ACCESSES 16

/* Polls of an access in progress before the processor is yielded */
#define NPRDMA_GUARD_SPIN 200


/* States of an element of the table of accesses */
enum {
    NPRDMA_GUARD_FREE   = 0,
    NPRDMA_GUARD_CLAIM  = 1, /* Range not yet valid */
    NPRDMA_GUARD_ACTIVE = 2
};


typedef struct nprdma_guard_access {
    _Atomic uint32_t  owner;
    _Atomic uintptr_t start;
    _Atomic uintptr_t end;    /* First byte after the range */
    _Atomic pthread_t thread; /* Thread that accesses it */
} nprdma_guard_access_t;


/* In memory that is all zeros in a forked child, which must not wait for
 * accesses of threads that exist only in the parent */
typedef struct nprdma_guard_state {
    _Atomic uint32_t      live; /* Listens to events, and is not a child */
    nprdma_guard_access_t accesses[NPRDMA_GUARD_NUM_ACCESSES];
} nprdma_guard_state_t;


static void nprdma_guard_before(void *arg, nprdma_span_t taken,
                                nprdma_span_t gone);

static struct {
    nprdma_guard_state_t *state; /* Kept until the process ends */
    nprdma_listener_t     listener;
} nprdma_guard = {
    .listener = {
        .before = nprdma_guard_before
    }
};


NPRDMA_HOOK
static int nprdma_guard_in_progress(const nprdma_guard_access_t *access,
                                    nprdma_span_t span)
{
    return (atomic_load(&access->owner) == NPRDMA_GUARD_ACTIVE) &&
           (atomic_load(&access->start) < span.end) &&
           (atomic_load(&access->end) > span.start);
}

/*
 * In the hook. An access that begins later finds the range blocked, and fails
 * with UCS_ERR_BUSY: it publishes its access before it checks for blocked
 * ranges.
 *
 * A signal handler may unmap memory that its own thread is accessing. The
 * access cannot end before the handler returns, so the handler does not wait
 * for it. If the access faults then, it returns an error (nprdma_fault.h).
 */
NPRDMA_HOOK
static void nprdma_guard_before(void *arg, nprdma_span_t taken,
                                nprdma_span_t gone)
{
    nprdma_guard_state_t *state = nprdma_guard.state;
    pthread_t self              = pthread_self();
    nprdma_guard_access_t *access;
    unsigned i, spin;

    for (i = 0; i < NPRDMA_GUARD_NUM_ACCESSES; ++i) {
        access = &state->accesses[i];
        spin = 0;
        while (nprdma_guard_in_progress(access, taken) &&
               (atomic_load(&access->thread) != self)) {
            if (++spin > NPRDMA_GUARD_SPIN) {
                sched_yield();
            }
        }
    }
}

ucs_status_t nprdma_guard_init(void)
{
    ucs_status_t status;

    if (nprdma_guard.state == NULL) {
        nprdma_guard.state =
                nprdma_events_alloc_wiped(sizeof(*nprdma_guard.state));
        if (nprdma_guard.state == NULL) {
            return UCS_ERR_NO_MEMORY;
        }
    }

    status = nprdma_events_add(&nprdma_guard.listener);
    if (status == UCS_OK) {
        atomic_store(&nprdma_guard.state->live, 1);
    }

    return status;
}

void nprdma_guard_cleanup(void)
{
    atomic_store(&nprdma_guard.state->live, 0);
    nprdma_events_remove(&nprdma_guard.listener);
}

ucs_status_t nprdma_guard_enter(uintptr_t address, size_t length,
                                nprdma_guard_ticket_t *ticket_p)
{
    nprdma_guard_state_t *state = nprdma_guard.state;
    nprdma_guard_access_t *access;
    uint32_t expected;
    unsigned i;

    if ((state == NULL) || !atomic_load(&state->live)) {
        return UCS_ERR_UNSUPPORTED;
    }

    for (i = 0; i < NPRDMA_GUARD_NUM_ACCESSES; ++i) {
        access   = &state->accesses[i];
        expected = NPRDMA_GUARD_FREE;
        if (atomic_compare_exchange_strong(&access->owner, &expected,
                                           NPRDMA_GUARD_CLAIM)) {
            break;
        }
    }

    if (i == NPRDMA_GUARD_NUM_ACCESSES) {
        return UCS_ERR_BUSY;
    }

    atomic_store_explicit(&access->start, address, memory_order_relaxed);
    atomic_store_explicit(&access->end, address + length, memory_order_relaxed);
    atomic_store_explicit(&access->thread, pthread_self(),
                          memory_order_relaxed);
    atomic_store(&access->owner, NPRDMA_GUARD_ACTIVE);

    if (nprdma_events_blocked(address, address + length) <
        address + length) {
        atomic_store(&access->owner, NPRDMA_GUARD_FREE);
        return UCS_ERR_BUSY;
    }

    ticket_p->index = i;
    return UCS_OK;
}

void nprdma_guard_wait(uintptr_t address, size_t length)
{
    nprdma_guard_before(NULL, nprdma_span(address, address + length),
                        nprdma_span(0, 0));
}

void nprdma_guard_leave(const nprdma_guard_ticket_t *ticket)
{
    atomic_store(&nprdma_guard.state->accesses[ticket->index].owner,
                 NPRDMA_GUARD_FREE);
}
