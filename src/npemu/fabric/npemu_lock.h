/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Locks of the emulated NIC.
 *
 * npemu_spin: between threads of one process; critical sections are short and
 * never block.
 *
 * npemu_rlock: between processes, in shared memory, robust: the word names its
 * owner, so that a waiter can find out that the owner is gone, take the lock
 * over and repair what it protects. Each user of an rlock documents why every
 * instant between lock and unlock can be repaired.
 */

#ifndef NPEMU_LOCK_H
#define NPEMU_LOCK_H

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#define npemu_likely(_x)   __builtin_expect(!!(_x), 1)
#define npemu_unlikely(_x) __builtin_expect(!!(_x), 0)

/*
 * Memory hooks also run in threads that ThreadSanitizer has closed its books
 * on: the C library gives the stack of a thread back, by madvise() or munmap(),
 * at its very end. What such hooks call is not instrumented, therefore, and
 * uses system calls directly: the sanitizer watches the C library's functions.
 * Inline functions of theirs must be merged into them.
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

#if defined(__x86_64__) || defined(__i386__)
#define npemu_cpu_relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define npemu_cpu_relax() __asm__ __volatile__("yield" ::: "memory")
#else
#define npemu_cpu_relax() __asm__ __volatile__("" ::: "memory")
#endif

/* Spins before the CPU is given away: there may be more ranks than cores. */
#define NPEMU_SPIN_MAX 200

typedef struct {
    _Atomic uint32_t word;
} npemu_spin_t;

static inline int npemu_spin_trylock(npemu_spin_t *lock)
{
    uint32_t zero = 0;

    return atomic_compare_exchange_strong_explicit(&lock->word, &zero, 1,
                                                   memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void npemu_spin_lock(npemu_spin_t *lock)
{
    unsigned count = 0;

    while (npemu_unlikely(!npemu_spin_trylock(lock))) {
        do {
            if (++count < NPEMU_SPIN_MAX) {
                npemu_cpu_relax();
            } else {
                sched_yield();
            }
        } while (atomic_load_explicit(&lock->word, memory_order_relaxed));
    }
}

static inline void npemu_spin_unlock(npemu_spin_t *lock)
{
    atomic_store_explicit(&lock->word, 0, memory_order_release);
}

typedef _Atomic uint32_t npemu_rlock_t;

typedef enum {
    NPEMU_LOCK_OK,     /* taken */
    NPEMU_LOCK_REPAIR, /* taken from a dead owner: repair, then go on */
    NPEMU_LOCK_BUSY    /* not taken: the owner is alive and does not run */
} npemu_lock_status_t;

struct npemu_proc;

/**
 * The slow path of @ref npemu_rlock_take.
 *
 * @param [in] proc  The calling process.
 * @param [in] lock  Lock to take.
 * @param [in] wait  Nonzero: never return NPEMU_LOCK_BUSY.
 */
npemu_lock_status_t npemu_rlock_slow(struct npemu_proc *proc,
                                     npemu_rlock_t *lock, int wait);

static inline int npemu_rlock_try(npemu_rlock_t *lock, uint32_t owner)
{
    uint32_t zero = 0;

    return atomic_compare_exchange_strong_explicit(lock, &zero, owner,
                                                   memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void npemu_rlock_release(npemu_rlock_t *lock)
{
    atomic_store_explicit(lock, 0, memory_order_release);
}

#endif
