/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Branch hints, pauses, containers, and code that memory hooks run. */

#ifndef NPEMU_UTIL_H
#define NPEMU_UTIL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define npemu_likely(_x)   __builtin_expect(!!(_x), 1)
#define npemu_unlikely(_x) __builtin_expect(!!(_x), 0)

#define npemu_container_of(_ptr, _type, _member) \
    ((_type*)((char*)(_ptr) - offsetof(_type, _member)))

/*
 * The C library frees the stack of a thread, by madvise() or munmap(), after
 * ThreadSanitizer has dropped its state of that thread. Memory hooks run there,
 * too. So functions that hooks call are not instrumented, and make system calls
 * directly: the sanitizer intercepts those of the C library. Inline functions
 * that they call must be merged into them.
 */
#if defined(__has_attribute)
#  if __has_attribute(disable_sanitizer_instrumentation)
#    define NPEMU_HOOK __attribute__((disable_sanitizer_instrumentation))
#  endif
#endif
#ifndef NPEMU_HOOK
#  define NPEMU_HOOK __attribute__((no_sanitize("thread")))
#endif
#define NPEMU_HOOK_INLINE static inline __attribute__((always_inline))

/*
 * Threads that the program does not know of change memory at any time. They
 * call no hook: if another thread forked meanwhile, the lock of the hooks would
 * be held in the child for ever.
 */
static inline int npemu_madvise(void *address, size_t size, int advice)
{
    return (int)syscall(SYS_madvise, address, size, advice);
}

/** CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t npemu_time_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

#if defined(__x86_64__) || defined(__i386__)
#define npemu_cpu_relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define npemu_cpu_relax() __asm__ __volatile__("yield" ::: "memory")
#else
#define npemu_cpu_relax() __asm__ __volatile__("" ::: "memory")
#endif

#endif
