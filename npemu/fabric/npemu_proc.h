/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The process as a member of the fabric (npemu_attach.h), and what the floors
 * above do for the fabric.
 */

#ifndef NPEMU_PROC_H
#define NPEMU_PROC_H

#include "base/npemu_link.h"
#include "fabric/npemu_arena.h"
#include "fabric/npemu_fabric.h"
#include "fabric/npemu_shm.h"

#include <errno.h>
#include <pthread.h>

struct npemu_qp;
struct npemu_cq;
struct npemu_srq;
struct npemu_peer;
struct npemu_mr_table;

struct npemu_proc;

/*
 * Events of the fabric, as the floors above handle them. All are called by the
 * npemu thread; `peer_closed` by any thread that drops the last reference.
 */
typedef struct npemu_proc_ops {
    /** At least one process is gone. No lock is held. Takes back what such
     * processes held of this one. */
    void (*peer_died)(struct npemu_proc *proc);

    /** A peer is about to be freed, and not used any more: free what is
     * attached to it. */
    void (*peer_closed)(struct npemu_peer *peer);

    /** Peers, or this process, have set bits in the arena: `qp_events` or
     * `other_events`. */
    void (*handle_events)(struct npemu_proc *proc);

    /** Retry what waits for a retry.
     *
     * @return When to call again (CLOCK_MONOTONIC, ns); UINT64_MAX if nothing
     *         waits. */
    uint64_t (*progress)(struct npemu_proc *proc);
} npemu_proc_ops_t;

typedef struct npemu_proc {
    const npemu_proc_ops_t *ops;
    npemu_fabric_shm_t *fabric;
    npemu_slot_t       *slot;
    npemu_arena_t      arena;
    npemu_arena_shm_t  *shm;       /* == arena.shm */
    unsigned           slot_index;
    uint32_t           gen;
    uint32_t           owner;      /* word in locks and claims */
    int                pid;
    uint64_t           attach_id;  /* differs with each attachment */
    unsigned           refcount;   /* open devices */

    pthread_t          thread;
    npemu_event_fd_t   wake;       /* wakes the thread */
    int                stop;       /* under lock */
    _Atomic uint64_t   timer_ns;   /* when the thread wakes, UINT64_MAX never */

    /* Peers by slot. Written under peers_lock, read inside an epoch */
    pthread_mutex_t    peers_lock;
    struct npemu_peer *_Atomic peers[NPEMU_MAX_PROCS];
    npemu_link_t       retired;    /* peers that are gone but referenced */
    int                has_gone;   /* a peer is, since the last recovery */

    /* Objects; the lock is never taken on the data path */
    pthread_mutex_t    lock;
    npemu_link_t       cqs;
    npemu_link_t       srqs;
    struct npemu_qp *_Atomic qps[NPEMU_MAX_QPS];
    unsigned           qp_next;    /* where the search for a QPN starts */
    uint32_t           pd_next;
    uint8_t            channel_used[NPEMU_MAX_CHANNELS];

    struct npemu_mr_table *mrs;
    pthread_mutex_t tables_lock;   /* of the tables of this process */
    uint32_t       table_refs[NPEMU_MAX_TABLES]; /* MRs, by index */
    pthread_mutex_t    seq_lock;   /* of the shared sequence counter */
    pthread_mutex_t    seq_alloc;  /* of seq_used */
    uint8_t            seq_used[NPEMU_MAX_THREADS];
    _Atomic int        unmapped_logged; /* a peer's arena cannot be mapped */

    npemu_link_spec_t  link;       /* NPEMU_LINK */
    _Atomic uint64_t   link_bytes; /* of the sample of npemu_port_account() */
    _Atomic uint64_t   link_wire_ns;
    _Atomic uint64_t   link_cpu_ns;
    _Atomic int        link_slow_logged;
} npemu_proc_t;

/*
 * Location of the address of the process' npemu_proc_t: a page that reads as
 * zero in a forked child. The child does not inherit the shared memory, so its
 * calls on objects of its parent must be refused before they access any.
 */
extern npemu_proc_t *_Atomic *npemu_self_ptr;

NPEMU_HOOK_INLINE npemu_proc_t *npemu_self(void)
{
    return atomic_load_explicit(npemu_self_ptr, memory_order_relaxed);
}

/** Map the page of npemu_self_ptr, once. Returns 0; ENOMEM; or ENOSYS where the
 * kernel has no MADV_WIPEONFORK. */
int npemu_self_init(void);

/* What calls of a forked child on objects of its parent return. */
#define NPEMU_ERR_FORKED EPERM

#endif
