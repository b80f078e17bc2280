/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "npemu_epoch.h"
#include "npemu_log.h"

#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NPEMU_QUIESCE_WARN_NS  1000000000ull
#define NPEMU_QUIESCE_BRIEF_NS 100000000ull

__thread npemu_epoch_tls_t npemu_epoch_tls;

static pthread_key_t npemu_epoch_key;

/* Thread exit: its counter goes to the next one that needs one. */
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

void npemu_epoch_shared_lock(npemu_proc_t *proc)
{
    pthread_mutex_lock(&proc->seq_lock);
}

void npemu_epoch_shared_unlock(npemu_proc_t *proc)
{
    pthread_mutex_unlock(&proc->seq_lock);
}

/* npemu_time_ns() in hooks. */
NPEMU_HOOK
static uint64_t npemu_epoch_time_ns(void)
{
    struct timespec ts;

    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/* What is waited for. */
typedef struct {
    npemu_quiesce_t scope;
    uint64_t        start;  /* when it got long, 0: it has not */
    int             warned;
} npemu_epoch_waiter_t;

/* One line about a process that does not get on. */
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

/* Wait for one counter that was seen odd. Returns 0 if the time is up. It is
 * part of its callers, one of which is for hooks: ThreadSanitizer must see what
 * the other one waits for. */
NPEMU_HOOK_INLINE int npemu_epoch_wait(npemu_epoch_waiter_t *waiter,
                                       npemu_slot_t *slot, uint32_t gen,
                                       _Atomic uint64_t *counter, uint64_t odd)
{
    const struct timespec pause = {.tv_nsec = 50000};
    unsigned count              = 0;
    uint64_t now;

    /* What dead processes leave behind must not cost the full spin */
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

        if (npemu_slot_is_gone(slot, gen)) {
            /* Once is enough; fails if the slot has a new process */
            atomic_compare_exchange_strong(counter, &odd, odd + 1);
            return 1;
        }

        now           = npemu_epoch_time_ns();
        waiter->start = (waiter->start == 0) ? now : waiter->start;
        if ((waiter->scope == NPEMU_QUIESCE_BRIEF) &&
            (now - waiter->start > NPEMU_QUIESCE_BRIEF_NS)) {
            return 0;
        }
        if (now - waiter->start > NPEMU_QUIESCE_WARN_NS) {
            npemu_epoch_warn(waiter, slot);
        }
        syscall(SYS_nanosleep, &pause, NULL);
    }

    return 1;
}

/* Wait for one of the two counters of everybody in the scope. */
NPEMU_HOOK_INLINE void npemu_epoch_wait_all(npemu_proc_t *proc,
                                            npemu_quiesce_t scope, int is_dma,
                                            const npemu_thread_seq_t *skip)
{
    npemu_epoch_waiter_t waiter = {.scope = scope};
    npemu_fabric_shm_t *fabric  = proc->fabric;
    unsigned i, t, first, last, nthreads;
    _Atomic uint64_t *counter;
    npemu_thread_seq_t *seq;
    npemu_slot_t *slot;
    uint32_t gen;
    uint64_t odd;

    first = (scope == NPEMU_QUIESCE_LOCAL) ? proc->slot_index : 0;
    last  = (scope == NPEMU_QUIESCE_LOCAL) ? proc->slot_index + 1 :
                                             atomic_load(&fabric->num_slots);
    for (i = first; i < last; ++i) {
        slot     = &fabric->slots[i];
        gen      = atomic_load(&slot->gen);
        nthreads = atomic_load(&slot->nthreads);
        for (t = 0; t < nthreads; ++t) {
            seq = &fabric->threads[i][t];
            if (seq == skip) {
                continue;
            }

            counter = is_dma ? &seq->dma : &seq->seq;
            /* Sequentially consistent, as the caller's mark and what the other
             * side does are: either we see odd, or it sees the mark */
            odd = atomic_load(counter);
            if ((odd & 1) &&
                !npemu_epoch_wait(&waiter, slot, gen, counter, odd)) {
                return;
            }
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

    /* A hook that runs within an access of its own thread cannot wait for it */
    if ((tls->proc == proc) && (tls->attach_id == proc->attach_id)) {
        skip = tls->seq;
    }
    npemu_epoch_wait_all(proc, NPEMU_QUIESCE_ALL, 1, skip);
}
