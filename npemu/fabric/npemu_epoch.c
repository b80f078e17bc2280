/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_epoch.h"
#include "base/npemu_log.h"

#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NPEMU_QUIESCE_WARN_NS  1000000000ull
#define NPEMU_QUIESCE_BRIEF_NS 100000000ull

/* Longest time between two polls that counts: in a longer one this process did
 * not run, as in a job that is suspended and resumed. */
#define NPEMU_EPOCH_POLL_NS 10000000ull

__thread npemu_epoch_tls_t npemu_epoch_tls;

static pthread_key_t npemu_epoch_key;

/* Thread exit: another thread may use the counter. */
static void npemu_epoch_thread_exit(void *arg)
{
    npemu_epoch_tls_t *tls = arg;
    npemu_proc_t *proc     = npemu_self();
    unsigned index;

    if ((proc == NULL) || (tls->proc != proc) ||
        (tls->attach_id != proc->attach_id) || tls->shared) {
        return;
    }

    index = tls->seq - proc->fabric->threads[proc->slot_index];
    pthread_mutex_lock(&proc->seq_alloc);
    proc->seq_used[index] = 0;
    pthread_mutex_unlock(&proc->seq_alloc);
    tls->proc = NULL;
}

void npemu_epoch_init(npemu_proc_t *proc)
{
    pthread_mutex_init(&proc->seq_lock, NULL);
    pthread_mutex_init(&proc->seq_alloc, NULL);
    memset(proc->seq_used, 0, sizeof(proc->seq_used));
    pthread_key_create(&npemu_epoch_key, npemu_epoch_thread_exit);
}

void npemu_epoch_cleanup(npemu_proc_t *proc)
{
    pthread_key_delete(npemu_epoch_key);
    pthread_mutex_destroy(&proc->seq_alloc);
    pthread_mutex_destroy(&proc->seq_lock);
}

void npemu_epoch_assign(npemu_proc_t *proc)
{
    npemu_epoch_tls_t *tls = &npemu_epoch_tls;
    unsigned i;

    pthread_mutex_lock(&proc->seq_alloc);
    for (i = 0; (i < NPEMU_MAX_THREADS - 1) && proc->seq_used[i]; ++i) {
    }
    tls->shared       = (i == NPEMU_MAX_THREADS - 1);
    proc->seq_used[i] = 1;
    if (atomic_load(&proc->slot->nthreads) <= i) {
        atomic_store(&proc->slot->nthreads, i + 1);
    }
    pthread_mutex_unlock(&proc->seq_alloc);

    tls->proc      = proc;
    tls->attach_id = proc->attach_id;
    tls->seq       = &proc->fabric->threads[proc->slot_index][i];
    pthread_setspecific(npemu_epoch_key, tls);
}

uint64_t npemu_epoch_calls(npemu_proc_t *proc)
{
    unsigned t, nthreads = atomic_load(&proc->slot->nthreads);
    uint64_t calls       = 0;

    for (t = 0; t < nthreads; ++t) {
        calls += atomic_load_explicit(
                &proc->fabric->threads[proc->slot_index][t].calls,
                memory_order_relaxed);
    }
    return calls;
}

/* npemu_time_ns() in hooks. */
NPEMU_HOOK
static uint64_t npemu_epoch_time_ns(void)
{
    struct timespec ts;

    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/* State of a wait. */
typedef struct {
    npemu_proc_t    *proc;
    npemu_quiesce_t scope;
    uint64_t        seen;   /* time of the last poll, 0: there was none */
    uint64_t        waited; /* nanoseconds in all */
    int             warned;
} npemu_epoch_waiter_t;

/* One line about a process that makes no progress. */
NPEMU_HOOK
static void npemu_epoch_warn(npemu_epoch_waiter_t *waiter,
                             const npemu_slot_t *slot)
{
    if (!waiter->warned) {
        npemu_warn("waiting for process %d, which has not finished a work "
                   "request for a second%s", slot->pid,
                   npemu_pid_is_stopped(slot->pid) ? " and is stopped" : "");
        waiter->warned = 1;
    }
}

/* Count the time since the last poll. */
NPEMU_HOOK_INLINE void npemu_epoch_count_time(npemu_epoch_waiter_t *waiter)
{
    uint64_t now  = npemu_epoch_time_ns();
    uint64_t time = (waiter->seen == 0) ? 0 : now - waiter->seen;

    waiter->seen    = now;
    waiter->waited += (time < NPEMU_EPOCH_POLL_NS) ? time :
                                                     NPEMU_EPOCH_POLL_NS;
}

/* Wait for one counter that was seen odd. Returns 0 if the time is up. Merged
 * into its callers: one of them runs in hooks and is not instrumented, and
 * ThreadSanitizer must see the atomics of the other one. */
NPEMU_HOOK_INLINE int npemu_epoch_wait(npemu_epoch_waiter_t *waiter,
                                       unsigned index, uint32_t gen,
                                       _Atomic uint64_t *counter, uint64_t odd)
{
    const struct timespec pause = {.tv_nsec = 50000};
    npemu_slot_t *slot          = &waiter->proc->fabric->slots[index];
    unsigned count              = 0;

    /* Counters of dead processes must not cost the full spin */
    if (npemu_unlikely(!npemu_slot_is_alive(slot, gen))) {
        count = 2 * NPEMU_SPIN_MAX;
    }

    while (atomic_load(counter) == odd) {
        if (++count < NPEMU_SPIN_MAX) {
            npemu_cpu_relax();
            continue;
        } else if (count < 2 * NPEMU_SPIN_MAX) {
            sched_yield();
            continue;
        }

        if (!npemu_slot_is_closing(slot, gen) &&
            npemu_slot_is_gone(slot, gen)) {
            /* Later waits need not check it; fails if the slot is taken anew */
            atomic_compare_exchange_strong(counter, &odd,
                                           npemu_epoch_even(odd));
            return 1;
        }

        npemu_epoch_count_time(waiter);
        if ((waiter->scope == NPEMU_QUIESCE_BRIEF) &&
            (waiter->waited > NPEMU_QUIESCE_BRIEF_NS)) {
            return 0;
        }
        if (waiter->waited > NPEMU_QUIESCE_WARN_NS) {
            npemu_epoch_warn(waiter, slot);
        }
        syscall(SYS_nanosleep, &pause, NULL);
    }

    return 1;
}

/* Wait for the counters of one kind of a process: of all its threads that are
 * executing if it is this one, else of those in memory of this one. Returns 0
 * if the time is up. */
NPEMU_HOOK_INLINE int npemu_epoch_wait_slot(npemu_epoch_waiter_t *waiter,
                                            unsigned index, int is_dma,
                                            const npemu_thread_seq_t *skip)
{
    npemu_proc_t *proc         = waiter->proc;
    npemu_fabric_shm_t *fabric = proc->fabric;
    uint64_t owner             = npemu_epoch_owner(proc->slot_index,
                                                   proc->gen);
    unsigned t, nthreads       = atomic_load(&fabric->slots[index].nthreads);
    uint32_t gen               = atomic_load(&fabric->slots[index].gen);
    _Atomic uint64_t *counter;
    npemu_thread_seq_t *rec;
    uint64_t word;

    for (t = 0; t < nthreads; ++t) {
        rec = &fabric->threads[index][t];
        if (rec == skip) {
            continue;
        }

        counter = is_dma ? &rec->dma : &rec->seq;
        /* Sequentially consistent, as the caller's mark and the initiator's
         * accesses: either this sees that the initiator is in our memory, or
         * the initiator sees the mark */
        word = atomic_load(counter);
        if ((word != npemu_epoch_even(word) + owner) &&
            ((index != proc->slot_index) || !(word & 1))) {
            continue;
        }

        if (!npemu_epoch_wait(waiter, index, gen, counter, word)) {
            return 0;
        }
    }
    return 1;
}

NPEMU_HOOK_INLINE void npemu_epoch_wait_all(npemu_proc_t *proc,
                                            npemu_quiesce_t scope, int is_dma,
                                            const npemu_thread_seq_t *skip)
{
    npemu_epoch_waiter_t waiter = {.proc = proc, .scope = scope};
    unsigned i, first = 0, last = atomic_load(&proc->fabric->num_slots);

    if (scope == NPEMU_QUIESCE_LOCAL) {
        first = proc->slot_index;
        last  = first + 1;
    }
    for (i = first; i < last; ++i) {
        if (!npemu_epoch_wait_slot(&waiter, i, is_dma, skip)) {
            break;
        }
    }
}

void npemu_epoch_quiesce(npemu_proc_t *proc, npemu_quiesce_t scope)
{
    npemu_epoch_wait_all(proc, scope, 0, NULL);
}

NPEMU_HOOK
void npemu_epoch_drain(npemu_proc_t *proc)
{
    const npemu_epoch_tls_t *tls   = &npemu_epoch_tls;
    const npemu_thread_seq_t *skip = NULL;

    /* A hook may run within an access of its own thread, and cannot wait for
     * that; but it waits for another thread that uses the shared counter */
    if ((tls->proc == proc) && (tls->attach_id == proc->attach_id) &&
        (tls->shared != 1)) {
        skip = tls->seq;
    }
    npemu_epoch_wait_all(proc, NPEMU_QUIESCE_ALL, 1, skip);
}
