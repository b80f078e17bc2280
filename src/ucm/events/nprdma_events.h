/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_EVENTS_H_
#define NPRDMA_EVENTS_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
 * Changes of this process's address space, as UCM sees them: one pair of
 * handlers for everybody in the process who must know before memory goes.
 *
 * A range that a call takes away is *blocked* from before the call until it has
 * returned. Who is about to use memory says so first (in a variable of his own)
 * and then asks nprdma_events_blocked(); a handler blocks first and then looks
 * at who uses memory. So at least one of the two sees the other.
 *
 * Everything that runs in a hook neither allocates nor logs nor takes a lock.
 */


/* Not instrumented by ThreadSanitizer */
#if defined(__has_attribute)
#  if __has_attribute(disable_sanitizer_instrumentation)
#    define NPRDMA_UNINSTRUMENTED \
        __attribute__((disable_sanitizer_instrumentation))
#  endif
#endif
#ifndef NPRDMA_UNINSTRUMENTED
#  define NPRDMA_UNINSTRUMENTED __attribute__((no_sanitize("thread")))
#endif

/*
 * Hooks also run in threads that ThreadSanitizer has closed its books on: the C
 * library gives the stack of a thread back, by madvise() or munmap(), at its
 * very end.
 */
#define NPRDMA_HOOK NPRDMA_UNINSTRUMENTED


/** A range of addresses, empty unless start < end. */
typedef struct nprdma_span {
    uintptr_t start;
    uintptr_t end; /* First byte behind it; UINTPTR_MAX: all there is */
} nprdma_span_t;


NPRDMA_HOOK
static inline nprdma_span_t nprdma_span(uintptr_t start, uintptr_t end)
{
    nprdma_span_t span = { start, end };

    return span;
}


/** Who wants to know. Any function may be NULL. */
typedef struct nprdma_listener {
    /**
     * In the hook, before a call.
     *
     * @param [in] taken  Whose pages go away or are replaced. May be more than
     *                    that where the event does not tell it exactly.
     * @param [in] gone   Of these what is not mapped any more afterwards, never
     *                    too much.
     */
    void (*before)(void *arg, nprdma_span_t taken, nprdma_span_t gone);

    /**
     * In the hook, after a call, while what it took is still blocked.
     *
     * @param [in] mapped  What is mapped now: the result of the call, or what a
     *                     call that failed did not unmap.
     * @param [in] fresh   Nonzero: it is a new mapping.
     */
    void (*after)(void *arg, nprdma_span_t mapped, int fresh);

    /** In the parent, before fork() and again after it. */
    void (*fork)(void *arg);

    void *arg; /* Passed to the functions above */
} nprdma_listener_t;


/**
 * Add a listener; the first one has the UCM handlers installed.
 *
 * @param [in] listener  Stays in place until it is removed.
 *
 * @return UCS_OK; UCS_ERR_UNSUPPORTED when UCM cannot deliver the events
 *         (switched off by UCX_MEM_EVENTS=n, hooks refused, or cut off by
 *         somebody who patches libc, too);
 *         UCS_ERR_NO_MEMORY; UCS_ERR_EXCEEDS_LIMIT for too many of them.
 */
ucs_status_t nprdma_events_add(const nprdma_listener_t *listener);


/**
 * Remove a listener. None of its functions runs any more when this returns.
 *
 * @param [in] listener  As added. One that a parent added and that fork() left
 *                       behind is ignored.
 */
void nprdma_events_remove(const nprdma_listener_t *listener);


/**
 * @return The first address of the range [start, end) that a call is taking
 *         away right now: @a start if more calls are in progress than can be
 *         told apart, @a end if there is none.
 */
uintptr_t nprdma_events_blocked(uintptr_t start, uintptr_t end);


/**
 * Block a range as a call that takes it away does; the listeners are not told.
 * To be undone by the same thread, the last one first.
 */
void nprdma_events_block(nprdma_span_t span);


/** Undo the last @ref nprdma_events_block of this thread. */
void nprdma_events_unblock(void);


/**
 * Memory that a forked child finds wiped, so that it sees what its parent had.
 *
 * @param [in] size  Bytes.
 *
 * @return Zeroed memory, or NULL.
 */
void *nprdma_events_alloc_wiped(size_t size);


/** Free what @ref nprdma_events_alloc_wiped returned. */
void nprdma_events_free_wiped(void *ptr, size_t size);

END_C_DECLS

#endif
