/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The process as a member of the fabric: attached by the first device that is
 * opened, detached by the last that is closed.
 */

#ifndef NPEMU_PROC_H
#define NPEMU_PROC_H

#include "fabric/npemu_arena.h"
#include "fabric/npemu_fabric.h"
#include "fabric/npemu_lock.h"
#include "fabric/npemu_shm.h"

#include <pthread.h>

struct npemu_qp;
struct npemu_cq;
struct npemu_srq;
struct npemu_peer;
struct npemu_mr_table;

/* Member of a doubly linked list of objects. */
typedef struct npemu_link {
    struct npemu_link *next;
    struct npemu_link *prev;
} npemu_link_t;

static inline void npemu_link_init(npemu_link_t *head)
{
    head->next = head->prev = head;
}

static inline int npemu_link_is_empty(const npemu_link_t *head)
{
    return head->next == head;
}

static inline void npemu_link_add(npemu_link_t *head, npemu_link_t *elem)
{
    elem->prev       = head->prev;
    elem->next       = head;
    head->prev->next = elem;
    head->prev       = elem;
}

static inline void npemu_link_del(npemu_link_t *elem)
{
    elem->prev->next = elem->next;
    elem->next->prev = elem->prev;
}

#define npemu_container_of(_ptr, _type, _member) \
    ((_type*)((char*)(_ptr) - offsetof(_type, _member)))

typedef struct npemu_proc {
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
    int                wake_fd;    /* wakes the thread */
    int                stop;       /* under lock */
    _Atomic uint64_t   timer_ns;   /* when the thread wakes, UINT64_MAX never */

    /* Peers by slot. Written under peers_lock, read inside an epoch */
    pthread_mutex_t    peers_lock;
    struct npemu_peer *_Atomic peers[NPEMU_MAX_PROCS];
    npemu_link_t       retired;    /* peers that are gone but referenced */
    uint32_t           dead[NPEMU_MAX_PROCS]; /* owner words to recover from */

    /* Objects; the lock is never taken on the data path */
    pthread_mutex_t    lock;
    npemu_link_t       cqs;
    npemu_link_t       srqs;
    struct npemu_qp *_Atomic qps[NPEMU_MAX_QPS];
    unsigned           qp_next;    /* where the search for a QPN starts */
    uint8_t            qpn_kept[NPEMU_MAX_QPS]; /* while the arena is held */
    uint32_t           pd_next;
    uint8_t            channel_used[NPEMU_MAX_CHANNELS];

    struct npemu_mr_table *mrs;
    pthread_mutex_t tables_lock;   /* of the tables of this process */
    uint32_t       table_refs[NPEMU_MAX_TABLES]; /* MRs, by index */
    pthread_mutex_t    seq_lock;   /* of the shared sequence counter */
    pthread_mutex_t    seq_alloc;  /* of seq_used */
    uint8_t            seq_used[NPEMU_MAX_THREADS];
    _Atomic int        unmapped_told; /* a peer's arena could not be mapped */
    uint64_t           cut_limit_ns; /* npemu_cut_limit_ns() */
} npemu_proc_t;

/*
 * Where the address of the process' npemu_proc_t is kept: a page that reads as
 * zero in a forked child. The child has none of the shared memory (it is not
 * inherited), so its calls on objects of its parent must be refused before they
 * touch any.
 */
extern npemu_proc_t *_Atomic *npemu_self_ptr;

NPEMU_HOOK_INLINE npemu_proc_t *npemu_self(void)
{
    return atomic_load_explicit(npemu_self_ptr, memory_order_relaxed);
}

/**
 * Attach the process to the fabric, or take one more reference.
 *
 * @return The process, or NULL with errno and an error line.
 */
npemu_proc_t *npemu_proc_get(void);

/** Drop a reference; the last one detaches. */
void npemu_proc_put(npemu_proc_t *proc);

/** Take an rlock; shared by all its users. */
static inline npemu_lock_status_t
npemu_rlock_take(npemu_proc_t *proc, npemu_rlock_t *lock, int wait)
{
    if (npemu_likely(npemu_rlock_try(lock, proc->owner))) {
        return NPEMU_LOCK_OK;
    }

    return npemu_rlock_slow(proc, lock, wait);
}

/** 1 if the process with this owner word (locks, claims) is gone for sure. */
int npemu_owner_is_gone(npemu_proc_t *proc, uint32_t owner);

/** CLOCK_MONOTONIC in nanoseconds. */
uint64_t npemu_time_ns(void);

#endif
