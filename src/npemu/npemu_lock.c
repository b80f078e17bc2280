/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "npemu_lock.h"
#include "npemu_log.h"
#include "npemu_proc.h"

#include <time.h>

/* Rounds of yielding before the owner is looked at, and of sleeping before a
 * waiter that must not wait for ever gives up. */
#define NPEMU_RLOCK_YIELDS 200
#define NPEMU_RLOCK_SLEEPS 100

int npemu_owner_is_gone(npemu_proc_t *proc, uint32_t owner)
{
    unsigned index = (owner >> 20) - 1;
    npemu_slot_t *slot;
    uint32_t gen;

    if (owner == proc->owner) {
        return 0;
    }

    if (index >= NPEMU_MAX_PROCS) {
        return 1; /* not a word any of us wrote */
    }

    slot = &proc->fabric->slots[index];
    gen  = atomic_load(&slot->gen);
    return ((gen & 0xfffff) != (owner & 0xfffff)) ||
           npemu_slot_is_gone(slot, gen);
}

npemu_lock_status_t npemu_rlock_slow(npemu_proc_t *proc, npemu_rlock_t *lock,
                                     int wait)
{
    const struct timespec pause = {.tv_nsec = 100000};
    unsigned count              = 0;
    unsigned sleeps             = 0;
    uint32_t owner;

    for (;;) {
        owner = atomic_load_explicit(lock, memory_order_relaxed);
        if (owner == 0) {
            if (npemu_rlock_try(lock, proc->owner)) {
                return NPEMU_LOCK_OK;
            }
            continue;
        }

        if (++count < NPEMU_SPIN_MAX) {
            npemu_cpu_relax();
            continue;
        } else if (count < NPEMU_SPIN_MAX + NPEMU_RLOCK_YIELDS) {
            sched_yield();
            continue;
        }

        if (npemu_owner_is_gone(proc, owner)) {
            /* Nobody else can release it now, only take it over as we do */
            if (atomic_compare_exchange_strong(lock, &owner, proc->owner)) {
                npemu_debug("took over a lock of dead process (slot %u)",
                            (owner >> 20) - 1);
                return NPEMU_LOCK_REPAIR;
            }
            count = 0;
            continue;
        }

        nanosleep(&pause, NULL);
        if ((++sleeps < NPEMU_RLOCK_SLEEPS) || (owner == proc->owner)) {
            continue;
        } else if (!wait) {
            return NPEMU_LOCK_BUSY;
        } else if (sleeps == NPEMU_RLOCK_SLEEPS) {
            npemu_warn("waiting for process %d, which holds a lock and does "
                       "not run (stopped?)",
                       proc->fabric->slots[(owner >> 20) - 1].pid);
        }
    }
}
