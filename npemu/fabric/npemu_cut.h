/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A process may be stopped in the middle of a work request on memory of this
 * process. Waiting for it has a limit, and after that it must not access the
 * memory when it continues.
 *
 * Memory of another process is accessed by process_vm_readv() and
 * process_vm_writev(), and the list of addresses there is in the fabric
 * segment, in the record of the calling thread. Its first element is the
 * *guard*: zero bytes long, it adds nothing. The owner of the memory can make
 * its length -1. The kernel then refuses the whole call with EINVAL, since it
 * takes no list with a negative length (readv(2)), and it reads the list when
 * the call begins, not before. The guard stays so until the thread begins
 * another request.
 *
 * A call may have read the list before. Signals and debuggers stop a thread on
 * its way into the kernel or out of it, and never within the copy of a call. So
 * a thread that is seen to be stopped *after* its guard was set has finished
 * its last copy, or will be refused.
 *
 * Buffers in the arena of the other process are accessed by the CPU, which no
 * one can refuse. The thread says so first (`copying`), and then looks at the
 * guard: the owner sees that it copies, or it sees the guard. A thread that is
 * stopped while it copies is not cut off.
 *
 * A thread that makes no progress and is not stopped is inside the kernel,
 * perhaps waiting for a page. The owner waits for it, and for one that copies,
 * ten times longer, and then logs that the thread may still write: nothing can
 * undo that.
 */

#ifndef NPEMU_CUT_H
#define NPEMU_CUT_H

#include "fabric/npemu_proc.h"

#include <errno.h>
#include <sys/uio.h>

/* The length of the guard that makes the kernel refuse the list. */
#define NPEMU_GUARD_SET SIZE_MAX

/** Let the calling thread access memory, from its next request on. */
static inline void npemu_guard_reset(npemu_thread_seq_t *rec)
{
    __atomic_store_n(&rec->remote[0].iov_len, 0, __ATOMIC_RELAXED);
}

/** Is the calling thread refused until its next request? */
static inline int npemu_guard_is_set(const npemu_thread_seq_t *rec)
{
    return __atomic_load_n(&rec->remote[0].iov_len, __ATOMIC_SEQ_CST) != 0;
}

/**
 * Copy between this process and another one, which can refuse it.
 *
 * @param [in] rec         Record of the calling thread.
 * @param [in] pid         The other process.
 * @param [in] local       Memory here.
 * @param [in] num_local   Elements of it.
 * @param [in] remote      Memory there.
 * @param [in] num_remote  Elements of it, NPEMU_MAX_SGE at most.
 * @param [in] to_remote   Direction.
 *
 * @return Bytes; -1 with errno of process_vm_readv(), or ECANCELED: the guard
 *         is set, and nothing was copied.
 */
static inline ssize_t
npemu_guard_copy(npemu_thread_seq_t *rec, int pid, const struct iovec *local,
                 unsigned num_local, const struct iovec *remote,
                 unsigned num_remote, int to_remote)
{
    ssize_t ret;
    unsigned i;

    for (i = 0; i < num_remote; ++i) {
        rec->remote[1 + i] = remote[i];
    }

    /* One writer */
    atomic_store_explicit(&rec->calls,
                          atomic_load_explicit(&rec->calls,
                                               memory_order_relaxed) + 1,
                          memory_order_relaxed);
    ret = to_remote ? process_vm_writev(pid, local, num_local, rec->remote,
                                        1 + num_remote, 0) :
                      process_vm_readv(pid, local, num_local, rec->remote,
                                       1 + num_remote, 0);
    if (npemu_unlikely(ret < 0) && (errno == EINVAL) &&
        npemu_guard_is_set(rec)) {
        errno = ECANCELED;
    }
    return ret;
}

/**
 * Before the CPU copies to or from the arena of the other process.
 *
 * @return 1: copy, then call @ref npemu_guard_end_copy. 0: the guard is set,
 *         and nothing may be copied.
 */
static inline int npemu_guard_begin_copy(npemu_thread_seq_t *rec)
{
    /* A full barrier: npemu_cut_off() stores and loads in the other order */
    atomic_exchange(&rec->copying, 1);
    if (npemu_likely(!npemu_guard_is_set(rec))) {
        return 1;
    }

    atomic_store_explicit(&rec->copying, 0, memory_order_relaxed);
    return 0;
}

/** The copy is complete. */
static inline void npemu_guard_end_copy(npemu_thread_seq_t *rec)
{
    atomic_store_explicit(&rec->copying, 0, memory_order_release);
}

/** Has the target cut off the request that the record names? */
NPEMU_HOOK_INLINE int npemu_cut_is_done(npemu_thread_seq_t *rec)
{
    return atomic_load(&rec->cut) == atomic_load(&rec->seq);
}

/** Time before @ref npemu_cut_off is called, nanoseconds; from
 * NPEMU_CUT_OFF_MS. UINT64_MAX: never. */
uint64_t npemu_cut_limit_ns(void);

/**
 * Cut off a process that has made no progress for @ref npemu_cut_limit_ns: the
 * queue pairs of this process that are connected to it go to ERR, and the
 * request that its thread has begun is refused. May be called in hooks.
 *
 * @param [in] index  Slot of that process.
 * @param [in] rec    The thread's record, whose counter names this process.
 * @param [in] force  Nonzero: also if the thread is not stopped, or is within
 *                    a copy by the CPU.
 *
 * @return 1 if the caller need not wait for it any more; 0 if it is not
 *         stopped, copies, or has made progress meanwhile.
 */
int npemu_cut_off(npemu_proc_t *proc, unsigned index, npemu_thread_seq_t *rec,
                  int force);

#endif
