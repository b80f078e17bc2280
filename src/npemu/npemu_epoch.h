/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Who is executing a work request right now.
 *
 * Initiators read the records of their targets without taking a lock for it.
 * Each thread has a sequence counter in the fabric segment that is odd from
 * before the first such read until after the last memory access. Who wants to
 * free or reuse something first marks it invalid, then waits until every
 * counter that was odd has changed: whoever is odd later has seen the mark.
 *
 * A second counter does the same for page states, chunk by chunk of a request,
 * so that an eviction waits for one chunk in flight and not for whole requests.
 */

#ifndef NPEMU_EPOCH_H
#define NPEMU_EPOCH_H

#include "npemu_proc.h"

/* A thread's claim on a counter. */
typedef struct {
    npemu_proc_t       *proc;
    uint64_t           attach_id;
    npemu_thread_seq_t *seq;
    int                shared; /* the counter of last resort */
} npemu_epoch_tls_t;

/* Memory hooks look at it: the first access of a thread may not allocate it. */
extern __thread npemu_epoch_tls_t npemu_epoch_tls
        __attribute__((tls_model("initial-exec")));

/** Give the calling thread a counter of the process. */
void npemu_epoch_assign(npemu_proc_t *proc);

/** Take the mutex of the shared counter, and release it. */
void npemu_epoch_shared_lock(npemu_proc_t *proc);
void npemu_epoch_shared_unlock(npemu_proc_t *proc);

/**
 * Start executing. Must not be nested, and nothing between it and
 * @ref npemu_epoch_exit may wait for another counter.
 */
static inline void npemu_epoch_enter(npemu_proc_t *proc)
{
    npemu_epoch_tls_t *tls = &npemu_epoch_tls;

    if (npemu_unlikely((tls->proc != proc) ||
                       (tls->attach_id != proc->attach_id))) {
        npemu_epoch_assign(proc);
    }
    if (npemu_unlikely(tls->shared)) {
        npemu_epoch_shared_lock(proc);
    }

    /* A full barrier: the odd value is out before anything is looked at */
    atomic_fetch_add(&tls->seq->seq, 1);
}

static inline void npemu_epoch_exit(npemu_proc_t *proc)
{
    npemu_epoch_tls_t *tls = &npemu_epoch_tls;
    uint64_t seq;

    seq = atomic_load_explicit(&tls->seq->seq, memory_order_relaxed);
    atomic_store_explicit(&tls->seq->seq, seq + 1, memory_order_release);
    if (npemu_unlikely(tls->shared)) {
        npemu_epoch_shared_unlock(proc);
    }
}

/**
 * Start to access memory that an IOMMU table covers, within an epoch: page
 * states that are looked at until @ref npemu_epoch_dma_exit hold until then.
 * Must not be nested.
 */
static inline void npemu_epoch_dma_enter(void)
{
    /* A full barrier: odd before any state is looked at */
    atomic_fetch_add(&npemu_epoch_tls.seq->dma, 1);
}

static inline void npemu_epoch_dma_exit(void)
{
    npemu_thread_seq_t *seq = npemu_epoch_tls.seq;
    uint64_t dma;

    dma = atomic_load_explicit(&seq->dma, memory_order_relaxed);
    atomic_store_explicit(&seq->dma, dma + 1, memory_order_release);
}

typedef enum {
    NPEMU_QUIESCE_ALL,   /* every process of the fabric */
    NPEMU_QUIESCE_LOCAL, /* threads of this process only */
    NPEMU_QUIESCE_BRIEF  /* every process, but not longer than 100 ms */
} npemu_quiesce_t;

/**
 * Wait until every thread that is executing a work request now has finished it.
 * Threads of dead processes do not count; a stopped process is waited for,
 * after one line that names it.
 */
void npemu_epoch_quiesce(npemu_proc_t *proc, npemu_quiesce_t scope);

/**
 * Wait until every thread of every process that is between
 * @ref npemu_epoch_dma_enter and @ref npemu_epoch_dma_exit has left, but for
 * the calling one. Dead and stopped processes as above.
 */
void npemu_epoch_drain(npemu_proc_t *proc);

/** Set up and tear down what the module keeps for the process. */
void npemu_epoch_init(npemu_proc_t *proc);
void npemu_epoch_cleanup(npemu_proc_t *proc);

#endif
