/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The fabric segment; slots of processes, and which processes are alive. */

#ifndef NPEMU_FABRIC_H
#define NPEMU_FABRIC_H

#include "fabric/npemu_shm.h"

#include <linux/futex.h>

/* Identity of a process in a fabric: in lock words and claims. Never 0. */
static inline uint32_t npemu_owner_word(unsigned slot, uint32_t gen)
{
    return ((slot + 1) << 20) | (gen & 0xfffff);
}

/**
 * Attach the fabric of this user in these user, IPC and PID namespaces; create
 * it if there is none. Reads no segment of another user. Returns the segment,
 * or NULL with errno ENODEV or ENOMEM and an error line: there is no System V
 * shared memory, the fabric is damaged or of another version, or the process
 * cannot distinguish its user from others.
 */
npemu_fabric_shm_t *npemu_fabric_attach(void);

/** Detach the segment; the kernel frees it with the last attachment. */
void npemu_fabric_detach(npemu_fabric_shm_t *fabric);

/**
 * 64 bits that name the fabric: equal in all its processes, different on other
 * hosts, for other users and in other namespaces. They are no secret. Works
 * without an attachment; with one, the id is that of the attached fabric, even
 * if the process has changed its user.
 */
uint64_t npemu_fabric_id(void);

/** GUID of the node, in host byte order, and the only GID of its port: all
 * processes of a fabric share it. */
uint64_t npemu_guid(void);
void npemu_gid(union ibv_gid *gid);

/** Take a free slot, or one whose process is gone. Must be called by the thread
 * that will live as long as the process uses the fabric, for that thread holds
 * the slot's robust mutex. Returns the index of the slot, -1 if all are
 * taken. */
int npemu_slot_claim(npemu_fabric_shm_t *fabric);

/** Give the slot back; by the thread that claimed it. */
void npemu_slot_release(npemu_slot_t *slot);

/** Returns the id of the thread that has the slot's mutex, with
 * FUTEX_OWNER_DIED if it has died; 0 if no thread has it. */
NPEMU_HOOK_INLINE uint32_t npemu_slot_owner(npemu_slot_t *slot)
{
    return __atomic_load_n((uint32_t*)&slot->life.__data.__lock,
                           __ATOMIC_ACQUIRE) &
           (FUTEX_TID_MASK | FUTEX_OWNER_DIED);
}

/** Is a live thread the owner that npemu_slot_owner() has returned? */
NPEMU_HOOK_INLINE int npemu_slot_owner_lives(uint32_t owner)
{
    return (owner & FUTEX_TID_MASK) && !(owner & FUTEX_OWNER_DIED);
}

/**
 * Is the process that took the slot as number @a gen still attached to it? One
 * load of a rarely written cache line. A negative answer is final; the process
 * may be alive under a new identity, after exec for instance.
 */
NPEMU_HOOK_INLINE int npemu_slot_is_alive(npemu_slot_t *slot, uint32_t gen)
{
    return npemu_slot_owner_lives(npemu_slot_owner(slot)) &&
           (atomic_load_explicit(&slot->ready, memory_order_acquire) == gen);
}

/** Like the negation of npemu_slot_is_alive, but also waits, a second at most,
 * until no thread of the dying process can run any more: after that it releases
 * no lock and accesses no memory. Returns 1 if it is gone, 0 if it is alive. */
int npemu_slot_is_gone(npemu_slot_t *slot, uint32_t gen);

/**
 * Is the process about to give the slot back? It is no longer alive to others,
 * but its threads are, and finish what they are doing.
 */
int npemu_slot_is_closing(npemu_slot_t *slot, uint32_t gen);

/** Read the beginning of a file of /proc as a string. `text`: the text, cut off
 * where it does not fit. Returns the length of the text, or -1 with errno. */
ssize_t npemu_read_proc(const char *path, char *text, size_t size);

/** 1 if /proc shows the process as stopped (SIGSTOP, debugger), else 0. */
int npemu_pid_is_stopped(int pid);

#endif
