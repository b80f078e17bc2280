/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Spin locks between threads of one process. A critical section is short and
 * never blocks. */

#ifndef NPEMU_SPIN_H
#define NPEMU_SPIN_H

#include "base/npemu_util.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

/* Polls of a lock before the CPU is yielded: there may be more processes than
 * cores. */
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

#endif
