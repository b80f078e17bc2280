/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_HOOK_H_
#define NPRDMA_HOOK_H_

#include <ucs/sys/compiler_def.h>

#include <stddef.h>
#include <stdint.h>
#include <time.h>

BEGIN_C_DECLS

/** Attributes of functions that run in hooks, ranges of addresses, and time. */


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
 * Functions that run in hooks. ThreadSanitizer must not instrument them: at the
 * very end of a thread, when ThreadSanitizer has freed its data, the C library
 * frees the stack by madvise() or munmap().
 */
#define NPRDMA_HOOK NPRDMA_UNINSTRUMENTED


/** A range of addresses, empty unless start < end. */
typedef struct nprdma_span {
    uintptr_t start;
    uintptr_t end; /* First byte behind it; UINTPTR_MAX: up to the end */
} nprdma_span_t;


NPRDMA_HOOK
static inline nprdma_span_t nprdma_span(uintptr_t start, uintptr_t end)
{
    nprdma_span_t span = { start, end };

    return span;
}

/** @return Nonzero if two spans have a common byte. */
NPRDMA_HOOK
static inline int nprdma_span_overlaps(nprdma_span_t a, nprdma_span_t b)
{
    return (a.start < b.end) && (b.start < a.end);
}


/** @return Milliseconds since some moment. No system call; some 4 ms exact. */
NPRDMA_HOOK
static inline uint64_t nprdma_hook_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return ((uint64_t)now.tv_sec * 1000) + ((uint64_t)now.tv_nsec / 1000000);
}


/**
 * @param [inout] last_p    Atomic: time when this was true last; 0 at first.
 * @param [in]    interval  Milliseconds.
 *
 * @return Nonzero, for one thread, if that much time has passed.
 */
NPRDMA_HOOK
static inline int nprdma_hook_is_due(uint64_t *last_p, uint64_t interval)
{
    uint64_t last = __atomic_load_n(last_p, __ATOMIC_RELAXED);
    uint64_t now  = nprdma_hook_now();

    return (now - last >= interval) &&
           __atomic_compare_exchange_n(last_p, &last, now, 0, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

END_C_DECLS

#endif
