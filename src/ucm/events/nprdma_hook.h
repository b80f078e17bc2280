/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_HOOK_H_
#define NPRDMA_HOOK_H_

#include <ucs/sys/compiler_def.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/* Attributes of functions that run in hooks, ranges of addresses, and time. */


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

/* Functions that run in hooks. ThreadSanitizer must not instrument them: at the
 * very end of a thread, when ThreadSanitizer has freed its data, the C library
 * frees the stack by madvise() or munmap(). */
#define NPRDMA_HOOK NPRDMA_UNINSTRUMENTED


/* A range of addresses, empty unless start < end */
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

NPRDMA_HOOK
static inline int nprdma_span_overlaps(nprdma_span_t a, nprdma_span_t b)
{
    return (a.start < b.end) && (b.start < a.end);
}


END_C_DECLS

#endif
