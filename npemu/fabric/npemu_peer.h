/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Processes of the fabric that this process communicates with, and itself. */

#ifndef NPEMU_PEER_H
#define NPEMU_PEER_H

#include "fabric/npemu_proc.h"

struct npemu_table;

typedef struct npemu_peer {
    npemu_slot_t      *slot;
    npemu_arena_shm_t *shm;
    uint64_t          base;     /* of the arena in that process */
    size_t            size;     /* of the arena, bytes */
    unsigned          slot_index;
    uint32_t          gen;
    int               pid;
    int               is_self;
    unsigned          refcount; /* connected QPs, under peers_lock */
    npemu_link_t      link;     /* in proc->retired */
    _Atomic int       denied;   /* the kernel refuses us its memory */
    int               pidfd;    /* -1: pidfd_open() failed */

    npemu_spin_t      fd_lock;
    struct {
        uint32_t gen;
        int      fd;
    } *channels;                /* for its channels, by index; on demand */

    /* Its IOMMU tables by index; written under peers_lock, its own tables under
     * tables_lock */
    struct npemu_table *_Atomic tables;
    unsigned          tables_end; /* from here on none has been mapped */
    unsigned          num_tables;
} npemu_peer_t;

/**
 * The attached peer in a slot. Only inside an epoch, and valid until its end.
 * NULL if the process is not attached (yet).
 */
static inline npemu_peer_t *npemu_peer_find(npemu_proc_t *proc, unsigned slot)
{
    return atomic_load_explicit(&proc->peers[slot], memory_order_seq_cst);
}

/** This process. */
static inline npemu_peer_t *npemu_peer_self(npemu_proc_t *proc)
{
    return atomic_load_explicit(&proc->peers[proc->slot_index],
                                memory_order_relaxed);
}

static inline int npemu_peer_is_alive(npemu_peer_t *peer)
{
    return npemu_slot_is_alive(peer->slot, peer->gen);
}

/** Is memory of the peer in its arena, so that this process has it mapped? A
 * range that is not, or only in part, is reached by system calls. Returns 1 or
 * 0. */
static inline int npemu_peer_maps(const npemu_peer_t *peer, uint64_t va,
                                  uint64_t length)
{
    uint64_t offset = va - peer->base;

    return (offset < peer->size) && (length <= peer->size - offset);
}

/** What addresses of the arena in the peer are off in this process. */
static inline intptr_t npemu_peer_shift(const npemu_peer_t *peer)
{
    return (uintptr_t)peer->shm - peer->base;
}

/** Attach the process in a slot, if there is one and it is not attached yet.
 * Must be called outside of any epoch. Returns 0; ESRCH if the slot is empty;
 * or an errno value. */
int npemu_peer_attach(npemu_proc_t *proc, unsigned slot);

/**
 * The process in a slot has announced itself: attach it, or note that it is
 * gone. For the npemu thread, which calls npemu_peer_reap() afterwards.
 */
void npemu_peer_announced(npemu_proc_t *proc, unsigned slot);

/** As @ref npemu_peer_attach, and take a reference; NULL if there is none. */
npemu_peer_t *npemu_peer_get(npemu_proc_t *proc, unsigned slot);

/** Drop the reference of a QP. */
void npemu_peer_put(npemu_proc_t *proc, npemu_peer_t *peer);

/** Wake the peer's npemu thread, to handle events. */
void npemu_peer_wake(npemu_proc_t *proc, npemu_peer_t *peer);

/** Add one event to a completion channel of the peer. */
void npemu_peer_notify(npemu_peer_t *peer, unsigned channel);

/**
 * The file in memory of a descriptor of the peer: a duplicate, or opened once
 * more by /proc where duplicates are refused. Returns a descriptor that the
 * caller closes, or -1 with errno: EPERM if the kernel denies it, or it is no
 * such file and duplicates are refused; ESRCH if the peer has ended; or another
 * of pidfd_getfd() or open().
 */
int npemu_peer_get_file(npemu_peer_t *peer, int remote_fd);

/** Log, once per peer, that the kernel denies access to it. From then on work
 * requests to it fail. */
void npemu_peer_denied(npemu_peer_t *peer, const char *call, int error);

/** Detach those processes that are gone. By the npemu thread. */
void npemu_peer_reap(npemu_proc_t *proc);

/** Set up the table; detach everything. */
void npemu_peer_init(npemu_proc_t *proc);
void npemu_peer_cleanup(npemu_proc_t *proc);

#endif
