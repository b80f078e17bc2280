/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Which threads are executing a work request, and in memory of which process.
 *
 * Initiators read the records of their targets without a lock. Each thread has
 * a sequence counter in the fabric segment that is odd from before the first
 * such read until after the last memory access. To free or reuse something, a
 * process first marks it invalid, then waits until every counter that was odd
 * has changed: a thread whose counter becomes odd later sees the mark.
 *
 * A second counter does the same for page states, chunk by chunk of a request,
 * so that an eviction waits for one chunk in flight and not for whole requests.
 *
 * A request touches the memory of two processes: the initiator's, and that of
 * the target. The target is part of the counter's value. One atomic operation
 * makes the counter odd and names the target, so that no thread can be in the
 * memory of a process that its counter does not name yet. A process waits for
 * its own threads, and for those of others whose counters name it.
 */

#ifndef NPEMU_EPOCH_H
#define NPEMU_EPOCH_H

#include "fabric/npemu_proc.h"

#include <sys/uio.h>

/* The next odd value. */
static inline uint64_t npemu_epoch_next(uint64_t word, uint64_t owner)
{
    return npemu_epoch_even(word) + NPEMU_EPOCH_OWNER_MASK + 1 + owner;
}

/* The counter of a thread. */
typedef struct {
    npemu_proc_t       *proc;
    uint64_t           attach_id;
    npemu_thread_seq_t *seq;
    /* Its users: 1: other threads, too, because all others are in use; 2: of
     * these this thread now, which holds the mutex. 0: this thread alone */
    int                shared;
} npemu_epoch_tls_t;

/* Memory hooks read it: the first access of a thread must not allocate it. */
extern __thread npemu_epoch_tls_t npemu_epoch_tls
        __attribute__((tls_model("initial-exec")));

/** Give the calling thread a counter of the process. */
void npemu_epoch_assign(npemu_proc_t *proc);

/**
 * Start executing. Must not be nested, and nothing between it and
 * npemu_epoch_exit may wait for another counter. `slot`: of the process whose
 * arena and memory may be touched until npemu_epoch_exit, beside this process'
 * own. `gen`: generation of that slot: a later process in it must not be
 * touched.
 */
static inline void npemu_epoch_enter(npemu_proc_t *proc, unsigned slot,
                                     uint32_t gen)
{
    npemu_epoch_tls_t *tls = &npemu_epoch_tls;
    uint64_t seq;

    if (npemu_unlikely((tls->proc != proc) ||
                       (tls->attach_id != proc->attach_id))) {
        npemu_epoch_assign(proc);
    }
    if (npemu_unlikely(tls->shared)) {
        pthread_mutex_lock(&proc->seq_lock);
        tls->shared = 2;
    }

    seq = atomic_load_explicit(&tls->seq->seq, memory_order_relaxed);
    /* The odd value, which names the target, is visible before any record is
     * read. On Arm an exchange would not be a barrier for all that is read. */
    atomic_store_explicit(&tls->seq->seq,
                          npemu_epoch_next(seq, npemu_epoch_owner(slot, gen)),
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

static inline void npemu_epoch_exit(npemu_proc_t *proc)
{
    npemu_epoch_tls_t *tls = &npemu_epoch_tls;
    uint64_t seq;

    seq = atomic_load_explicit(&tls->seq->seq, memory_order_relaxed);
    atomic_store_explicit(&tls->seq->seq, npemu_epoch_even(seq),
                          memory_order_release);
    if (npemu_unlikely(tls->shared)) {
        tls->shared = 1;
        pthread_mutex_unlock(&proc->seq_lock);
    }
}

/**
 * Start to access memory that an IOMMU table covers, within an epoch and of the
 * process that it names, or of this one: page states that are read from here to
 * @ref npemu_epoch_dma_exit are valid until then. Must not be nested.
 */
static inline void npemu_epoch_dma_enter(void)
{
    npemu_thread_seq_t *rec = npemu_epoch_tls.seq;
    uint64_t seq, dma;

    seq = atomic_load_explicit(&rec->seq, memory_order_relaxed);
    dma = atomic_load_explicit(&rec->dma, memory_order_relaxed);
    /* Odd before any state is read */
    atomic_store_explicit(&rec->dma,
                          npemu_epoch_next(dma, seq & NPEMU_EPOCH_OWNER_MASK),
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

static inline void npemu_epoch_dma_exit(void)
{
    npemu_thread_seq_t *rec = npemu_epoch_tls.seq;
    uint64_t dma;

    dma = atomic_load_explicit(&rec->dma, memory_order_relaxed);
    atomic_store_explicit(&rec->dma, npemu_epoch_even(dma),
                          memory_order_release);
}

/**
 * Copy between this process and another one, or this one by system call, within
 * an epoch that names it. Returns as process_vm_readv().
 */
static inline ssize_t
npemu_epoch_copy(int pid, const struct iovec *local, unsigned num_local,
                 const struct iovec *remote, unsigned num_remote, int to_remote)
{
    _Atomic uint64_t *calls = &npemu_epoch_tls.seq->calls;

    /* One writer */
    atomic_store_explicit(calls,
                          atomic_load_explicit(calls, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    return to_remote ? process_vm_writev(pid, local, num_local, remote,
                                         num_remote, 0) :
                       process_vm_readv(pid, local, num_local, remote,
                                        num_remote, 0);
}

/**
 * Calls of process_vm_readv() and process_vm_writev() by threads of this
 * process. Only differences mean something: a process continues the count of
 * the one that had its slot before.
 */
uint64_t npemu_epoch_calls(npemu_proc_t *proc);

typedef enum {
    NPEMU_QUIESCE_ALL,    /* every process that is in our arena */
    NPEMU_QUIESCE_LOCAL,  /* threads of this process only */
    NPEMU_QUIESCE_BRIEF   /* as ALL, but not longer than 100 ms */
} npemu_quiesce_t;

/**
 * Wait until every thread of this process that is executing a work request now,
 * and every thread of another one that is doing so in our arena or memory, has
 * finished it. Threads of dead processes do not count. A process that makes no
 * progress for a second, as one that is stopped, is logged and waited for.
 */
void npemu_epoch_quiesce(npemu_proc_t *proc, npemu_quiesce_t scope);

/**
 * The same for threads that are between @ref npemu_epoch_dma_enter and
 * @ref npemu_epoch_dma_exit, but for the calling one.
 */
void npemu_epoch_drain(npemu_proc_t *proc);

/** Set up and tear down the module's part of the process. */
void npemu_epoch_init(npemu_proc_t *proc);
void npemu_epoch_cleanup(npemu_proc_t *proc);

#endif
