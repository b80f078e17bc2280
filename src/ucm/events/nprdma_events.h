/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_EVENTS_H_
#define NPRDMA_EVENTS_H_

#include "nprdma_hook.h"

#include <ucm/api/ucm.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/*
 * Changes of the address space of this process, as UCM reports them: one pair
 * of UCM handlers for all listeners, which run before memory is taken away.
 *
 * A range that a call takes away is *blocked* from before the call until it has
 * returned. A thread that is about to use memory first publishes that, in a
 * variable of its own, and then calls nprdma_events_blocked(). A handler first
 * blocks the range, and then checks for threads that use it. So at least one of
 * the two sees the other.
 *
 * No function that runs in a hook allocates, logs, or takes a lock.
 */


/* Functions that are called for events. Any may be NULL. */
typedef struct nprdma_listener {
    /* In the hook, before a call. Pages of `taken` are unmapped or replaced; it
     * may be larger than that if the event is not exact. `gone`, a part of it,
     * is not mapped after the call, and never too large. */
    void (*before)(void *arg, nprdma_span_t taken, nprdma_span_t gone);

    /* In the hook, after a call, while the range is still blocked. `mapped` is
     * the result of the call, or the range that a failed call did not unmap. */
    void (*after)(void *arg, nprdma_span_t mapped);

    /* In the parent, before fork() and again after it */
    void (*fork)(void *arg);

    void *arg; /* Passed to the functions above */
} nprdma_listener_t;


/* Add a listener; the first one installs the UCM handlers. UCS_ERR_UNSUPPORTED:
 * UCM cannot deliver the events (switched off by UCX_MEM_EVENTS=n, hooks cannot
 * be installed, or another library that patches libc has disconnected them). */
ucs_status_t nprdma_events_add(const nprdma_listener_t *listener);


/* None of the listener's functions runs any more when this returns. One that
 * was added before fork(), in the parent, is ignored. */
void nprdma_events_remove(const nprdma_listener_t *listener);


/* The first address of [start, end) that a call in progress takes away; `end`
 * if there is none; `start` if more calls are in progress than are recorded
 * separately */
uintptr_t nprdma_events_blocked(uintptr_t start, uintptr_t end);


/* Block a range as a call that takes it away does, without calling listeners.
 * The same thread undoes it, the last block first. */
void nprdma_events_block(nprdma_span_t span);


/* As nprdma_events_block(), and call the listeners: nothing uses the memory
 * when this returns. For calls that bypass UCM, and for memory hooks. */
void nprdma_events_take(nprdma_span_t taken, nprdma_span_t gone);


/* Undo the last of these two calls of this thread */
void nprdma_events_unblock(void);


/* The lock of what is opened once per process, and of what adds handlers of
 * UCM. It is held during fork(), so a child never waits for a thread of its
 * parent. Not for memory hooks. */
void nprdma_events_lock(void);
void nprdma_events_unlock(void);


/* Allocate zeroed memory that is all zeros in a forked child, too. So a child
 * can tell the objects of its parent from its own. */
void *nprdma_events_alloc_wiped(size_t size);


void nprdma_events_free_wiped(void *ptr, size_t size);

END_C_DECLS

#endif
