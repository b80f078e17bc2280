/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_rlock.h"
#include "base/npemu_log.h"

#include <time.h>

/* Rounds of yielding before a check whether the owner is dead, and of sleeping
 * before a check whether it is stopped. A caller that does not wait checks the
 * latter first: on a busy machine each round costs time slices. */
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
        return 1; /* no process writes such a word */
    }

    slot = &proc->fabric->slots[index];
    gen  = atomic_load(&slot->gen);
    return ((gen & 0xfffff) != (owner & 0xfffff)) ||
           npemu_slot_is_gone(slot, gen);
}

/* The pid of the owner if it is another process and stopped, else 0. On a busy
 * machine an owner that is not stopped may wait for a CPU. */
static int npemu_owner_stopped(npemu_proc_t *proc, uint32_t owner)
{
    unsigned index = (owner >> 20) - 1;
    int pid;

    if ((owner == proc->owner) || (index >= NPEMU_MAX_PROCS)) {
        return 0;
    }

    pid = proc->fabric->slots[index].pid;
    return npemu_pid_is_stopped(pid) ? pid : 0;
}

npemu_lock_status_t npemu_rlock_slow(npemu_proc_t *proc, npemu_rlock_t *lock,
                                     int wait)
{
    const struct timespec pause = {.tv_nsec = 100000};
    unsigned count              = 0;
    unsigned sleeps             = 0;
    int warned                  = 0;
    uint32_t owner;
    int pid;

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
        } else if (!wait && (count == NPEMU_SPIN_MAX) &&
                   npemu_owner_stopped(proc, owner)) {
            return NPEMU_LOCK_BUSY;
        } else if (count < NPEMU_SPIN_MAX + NPEMU_RLOCK_YIELDS) {
            sched_yield();
            continue;
        }

        if (npemu_owner_is_gone(proc, owner)) {
            /* A dead owner does not release it; others may take it over */
            if (atomic_compare_exchange_strong(lock, &owner, proc->owner)) {
                npemu_debug("took over a lock of a dead process (slot %u)",
                            (owner >> 20) - 1);
                return NPEMU_LOCK_REPAIR;
            }
            count = 0;
            continue;
        }

        nanosleep(&pause, NULL);
        if (++sleeps % NPEMU_RLOCK_SLEEPS != 0) {
            continue;
        }

        pid = npemu_owner_stopped(proc, owner);
        if (pid != 0) {
            if (!wait) {
                return NPEMU_LOCK_BUSY;
            } else if (!warned) {
                npemu_warn("waiting for process %d, which holds a lock and is "
                           "stopped", pid);
                warned = 1;
            }
        }
    }
}
