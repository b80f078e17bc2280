/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Robust locks between processes, in shared memory. The lock word names the
 * owner, so that a waiter can find out that the owner is dead, take the lock
 * over and repair what it protects. Each user of an rlock documents why every
 * instant between lock and unlock can be repaired.
 */

#ifndef NPEMU_RLOCK_H
#define NPEMU_RLOCK_H

#include "fabric/npemu_proc.h"

typedef enum {
    NPEMU_LOCK_OK,     /* taken */
    NPEMU_LOCK_REPAIR, /* taken from a dead owner: repair, then go on */
    NPEMU_LOCK_BUSY    /* not taken: the owner is stopped */
} npemu_lock_status_t;

/** The slow path of @ref npemu_rlock_take. */
npemu_lock_status_t npemu_rlock_slow(npemu_proc_t *proc, npemu_rlock_t *lock,
                                     int wait);

static inline int npemu_rlock_try(npemu_rlock_t *lock, uint32_t owner)
{
    uint32_t zero = 0;

    return atomic_compare_exchange_strong_explicit(lock, &zero, owner,
                                                   memory_order_acquire,
                                                   memory_order_relaxed);
}

/** Take a lock; shared by all its users. Nonzero `wait`: never return
 * NPEMU_LOCK_BUSY. */
static inline npemu_lock_status_t
npemu_rlock_take(npemu_proc_t *proc, npemu_rlock_t *lock, int wait)
{
    if (npemu_likely(npemu_rlock_try(lock, proc->owner))) {
        return NPEMU_LOCK_OK;
    }

    return npemu_rlock_slow(proc, lock, wait);
}

static inline void npemu_rlock_release(npemu_rlock_t *lock)
{
    atomic_store_explicit(lock, 0, memory_order_release);
}

/** 1 if the process with this owner word (locks, claims) is dead for certain,
 * else 0. */
int npemu_owner_is_gone(npemu_proc_t *proc, uint32_t owner);

#endif
