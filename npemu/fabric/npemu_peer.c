/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_peer.h"
#include "base/npemu_log.h"
#include "base/npemu_remote_fd.h"
#include "fabric/npemu_epoch.h"
#include "fabric/npemu_event_fd.h"
#include "fabric/npemu_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define NPEMU_PEER_CHANNELS_SIZE \
    (NPEMU_MAX_CHANNELS * sizeof(*((npemu_peer_t*)NULL)->channels))

void npemu_peer_denied(npemu_peer_t *peer, const char *call, int error)
{
    if (atomic_exchange(&peer->denied, 1)) {
        return;
    }

    npemu_error("the kernel denies access to process %d (%s: %s): is it setuid "
                "or not dumpable, is Yama's ptrace_scope above 1, or does a "
                "seccomp filter forbid the call, as those of containers do "
                "without CAP_SYS_PTRACE?", peer->pid, call, strerror(error));
}

/* Read the magic of the peer's arena at the peer's own address of it. This
 * shows that we may access its memory, and that the pid is the peer's. */
static void npemu_peer_probe(npemu_peer_t *peer)
{
    uint64_t magic      = 0;
    struct iovec local  = {&magic, sizeof(magic)};
    struct iovec remote = {(void*)(uintptr_t)peer->shm->self, sizeof(magic)};
    ssize_t ret;

    ret = process_vm_readv(peer->pid, &local, 1, &remote, 1, 0);
    if ((ret < 0) && (errno != ESRCH) && (errno != EFAULT)) {
        npemu_peer_denied(peer, "process_vm_readv", errno);
    }
}

/* One line for all peers, since programs repeat an attempt to connect. */
static void npemu_peer_unmapped(npemu_proc_t *proc, int pid, int error)
{
    npemu_log(atomic_exchange(&proc->unmapped_logged, 1) ? NPEMU_LOG_DEBUG :
                                                         NPEMU_LOG_ERROR,
              "cannot map the shared memory of process %d: %s%s", pid,
              strerror(error),
              (error == ENOMEM) ? " (each peer needs address space, 8 GiB or a "
                                  "64th of its ulimit -v)" : "");
    errno = error;
}

static npemu_peer_t *npemu_peer_open(npemu_proc_t *proc, unsigned index)
{
    npemu_slot_t *slot = &proc->fabric->slots[index];
    uint32_t gen       = atomic_load(&slot->ready);
    npemu_peer_t *peer;
    size_t size;

    if ((gen == 0) || !npemu_slot_is_alive(slot, gen)) {
        errno = ESRCH;
        return NULL;
    }

    peer = calloc(1, sizeof(*peer));
    if (peer == NULL) {
        return NULL;
    }

    peer->slot       = slot;
    peer->slot_index = index;
    peer->gen        = gen;
    peer->pid        = slot->pid;
    peer->is_self    = (index == proc->slot_index);
    peer->pidfd      = -1;
    if (peer->is_self) {
        peer->shm  = proc->shm;
        peer->base = proc->shm->self;
        peer->size = proc->arena.size;
        return peer;
    }

    peer->shm = npemu_segment_attach(NPEMU_SEGMENT_ARENA, slot->arena_id,
                                     &size);
    if (peer->shm == NULL) {
        if (npemu_slot_is_alive(slot, gen)) {
            npemu_peer_unmapped(proc, peer->pid, errno);
        }
        free(peer);
        return NULL;
    }

    if ((size < NPEMU_ARENA_MIN_SIZE) || (size > NPEMU_ARENA_SIZE) ||
        (atomic_load(&peer->shm->magic) != NPEMU_ARENA_MAGIC) ||
        (peer->shm->version != NPEMU_SHM_VERSION) ||
        (peer->shm->slot != index) || (peer->shm->gen != gen)) {
        if (npemu_slot_is_alive(slot, gen)) {
            npemu_error("the shared memory of process %d is damaged",
                        peer->pid);
        }
        npemu_segment_detach(peer->shm);
        free(peer);
        errno = ESRCH;
        return NULL;
    }

    peer->base  = peer->shm->self;
    peer->size  = size;
    peer->pidfd = syscall(SYS_pidfd_open, peer->pid, 0);
    npemu_peer_probe(peer);
    return peer;
}

static void npemu_peer_close(npemu_proc_t *proc, npemu_peer_t *peer)
{
    unsigned i;

    if (peer->channels != NULL) {
        for (i = 0; i < NPEMU_MAX_CHANNELS; ++i) {
            if (peer->channels[i].gen != 0) {
                close(peer->channels[i].fd);
            }
        }
        syscall(SYS_munmap, peer->channels, NPEMU_PEER_CHANNELS_SIZE);
    }
    proc->ops->peer_closed(peer);
    if (peer->pidfd >= 0) {
        close(peer->pidfd);
    }
    if (!peer->is_self) {
        npemu_segment_detach(peer->shm);
    }
    free(peer);
}

/* Remove a peer that is gone from the table, and let the npemu thread take back
 * what it held. Returns the peer if there is no reference to it: the caller
 * frees it outside of peers_lock. */
static npemu_peer_t *npemu_peer_retire(npemu_proc_t *proc, npemu_peer_t *peer)
{
    atomic_store(&proc->peers[peer->slot_index], NULL);
    proc->has_gone = 1;
    if (peer->refcount == 0) {
        return peer;
    }

    npemu_link_add(&proc->retired, &peer->link);
    return NULL;
}

static void npemu_peer_free(npemu_proc_t *proc, npemu_peer_t *peer)
{
    if (peer != NULL) {
        npemu_epoch_quiesce(proc, NPEMU_QUIESCE_LOCAL);
        npemu_peer_close(proc, peer);
    }
}

/* Announce this process to the peer: from now on it may hold receives of the
 * peer, whose npemu thread must notice when this process dies. */
static void npemu_peer_introduce(npemu_proc_t *proc, npemu_peer_t *peer)
{
    atomic_fetch_or(&peer->shm->new_peers[proc->slot_index / 64],
                    1ull << (proc->slot_index % 64));
    npemu_peer_wake(proc, peer);
}

static int npemu_peer_lookup(npemu_proc_t *proc, unsigned slot, int ref,
                             npemu_peer_t **peer_p)
{
    npemu_peer_t *peer, *dead = NULL;
    int ret                   = 0;
    int fresh                 = 0;

    pthread_mutex_lock(&proc->peers_lock);
    peer = atomic_load(&proc->peers[slot]);
    if ((peer != NULL) && !npemu_peer_is_alive(peer)) {
        dead = npemu_peer_retire(proc, peer);
        peer = NULL;
    }
    if (peer == NULL) {
        peer = npemu_peer_open(proc, slot);
        if (peer == NULL) {
            ret = errno ? errno : ESRCH;
        } else {
            atomic_store(&proc->peers[slot], peer);
            fresh = !peer->is_self;
        }
    }
    if (peer != NULL) {
        peer->refcount += ref;
        if (fresh) {
            npemu_peer_introduce(proc, peer);
        }
    }
    pthread_mutex_unlock(&proc->peers_lock);

    npemu_peer_free(proc, dead);
    if (fresh && !pthread_equal(pthread_self(), proc->thread)) {
        /* One more pidfd to wait for */
        npemu_event_fd_signal(&proc->wake, proc->wake.signal_fd);
    }
    *peer_p = peer;
    return ret;
}

int npemu_peer_attach(npemu_proc_t *proc, unsigned slot)
{
    npemu_peer_t *peer;

    return npemu_peer_lookup(proc, slot, 0, &peer);
}

npemu_peer_t *npemu_peer_get(npemu_proc_t *proc, unsigned slot)
{
    npemu_peer_t *peer;

    npemu_peer_lookup(proc, slot, 1, &peer);
    return peer;
}

void npemu_peer_put(npemu_proc_t *proc, npemu_peer_t *peer)
{
    int last;

    pthread_mutex_lock(&proc->peers_lock);
    last = (--peer->refcount == 0) &&
           (atomic_load(&proc->peers[peer->slot_index]) != peer);
    if (last) {
        npemu_link_del(&peer->link);
    }
    pthread_mutex_unlock(&proc->peers_lock);

    if (last) {
        npemu_peer_free(proc, peer);
    }
}

void npemu_peer_announced(npemu_proc_t *proc, unsigned slot)
{
    /* With a reference: another thread may find that it is gone, and free it */
    npemu_peer_t *peer = npemu_peer_get(proc, slot);
    int is_first       = 0;

    if (peer != NULL) {
        is_first = (peer->gen == 1);
        npemu_peer_put(proc, peer);
    }
    if (is_first) {
        return;
    }

    /* One that was in the slot before may have announced itself as well. It has
     * ended before this thread could watch its life, and may hold receives. */
    pthread_mutex_lock(&proc->peers_lock);
    proc->has_gone = 1;
    pthread_mutex_unlock(&proc->peers_lock);
}

void npemu_peer_reap(npemu_proc_t *proc)
{
    unsigned i, num_slots = atomic_load(&proc->fabric->num_slots);
    npemu_peer_t *peer, *dead;
    int has_gone;

    for (i = 0; i < num_slots; ++i) {
        dead = NULL;
        pthread_mutex_lock(&proc->peers_lock);
        peer = atomic_load(&proc->peers[i]);
        if ((peer != NULL) && !peer->is_self && !npemu_peer_is_alive(peer)) {
            npemu_debug("process %d has ended", peer->pid);
            dead = npemu_peer_retire(proc, peer);
        }
        pthread_mutex_unlock(&proc->peers_lock);

        npemu_peer_free(proc, dead);
    }

    pthread_mutex_lock(&proc->peers_lock);
    has_gone       = proc->has_gone || !npemu_link_is_empty(&proc->retired);
    proc->has_gone = 0;
    pthread_mutex_unlock(&proc->peers_lock);
    if (has_gone) {
        proc->ops->peer_died(proc);
    }
}

int npemu_peer_get_file(npemu_peer_t *peer, int remote_fd)
{
    int fd = npemu_remote_fd_get(peer->pidfd, peer->pid, remote_fd);
    int error;

    if ((fd >= 0) || ((errno != EPERM) && (errno != ENOSYS))) {
        return fd;
    }

    error = errno;
    fd    = npemu_remote_fd_reopen(peer->pid, remote_fd, 0, 0);
    if ((fd < 0) && ((errno == ESTALE) || (errno == EACCES))) {
        errno = error;
    } else if ((fd >= 0) && !npemu_peer_is_alive(peer)) {
        close(fd);
        fd    = -1;
        errno = ESRCH;
    }
    return fd;
}

/* Say why a counter of a peer cannot be reached. */
static void npemu_peer_unreached(npemu_peer_t *peer,
                                 const npemu_event_fd_t *event, int error)
{
    if ((error == EPERM) || (error == EACCES)) {
        npemu_peer_denied(peer, "open of its /proc/PID/fd", error);
    } else if (!npemu_peer_is_alive(peer)) {
        return;
    } else if (error == ESTALE) {
        npemu_warn("cannot wake process %d: it closed descriptor %d, which "
                   "belongs to its emulated RNIC, or /proc shows another PID "
                   "namespace", peer->pid, event->fd);
    } else {
        npemu_warn("cannot wake process %d (descriptor %d): %s%s", peer->pid,
                   event->fd, strerror(error),
                   (error == EMFILE) ? " in this process, see ulimit -n" : "");
    }
}

/* A descriptor for a counter of the peer; -1 if that fails. */
static int npemu_peer_open_event(npemu_peer_t *peer,
                                 const npemu_event_fd_t *event)
{
    int fd = npemu_event_fd_open(event, peer->pid);

    if (fd < 0) {
        npemu_peer_unreached(peer, event, errno);
    } else if (!npemu_peer_is_alive(peer)) {
        close(fd); /* the pid may have been another process' */
        fd = -1;
    }
    return fd;
}

void npemu_peer_wake(npemu_proc_t *proc, npemu_peer_t *peer)
{
    int fd;

    if (peer->is_self) {
        npemu_event_fd_signal(&proc->wake, proc->wake.signal_fd);
        return;
    }

    /* Rare, so it is not kept: a process with many peers has few to spare */
    fd = npemu_peer_open_event(peer, &peer->slot->wake);
    if (fd >= 0) {
        npemu_event_fd_signal(&peer->slot->wake, fd);
        close(fd);
    }
}

/* The array of descriptors. This is within an epoch and a lock is held, so the
 * mapping must not call memory hooks. */
static int npemu_peer_channels(npemu_peer_t *peer)
{
    long addr;

    if (peer->channels == NULL) {
        addr = syscall(SYS_mmap, NULL, NPEMU_PEER_CHANNELS_SIZE,
                       PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                       0);
        if (addr != -1) {
            peer->channels = (void*)addr;
        }
    }
    return peer->channels != NULL;
}

void npemu_peer_notify(npemu_peer_t *peer, unsigned channel)
{
    npemu_channel_shm_t *shm = &peer->shm->channels[channel];
    uint32_t gen             = atomic_load(&shm->gen);
    int fd                   = -1;

    if (!(gen & 1)) {
        return;
    }

    if (peer->is_self) {
        npemu_event_fd_signal(&shm->event, shm->event.signal_fd);
        return;
    }

    npemu_spin_lock(&peer->fd_lock);
    if (npemu_peer_channels(peer)) {
        if ((peer->channels[channel].gen != 0) &&
            (peer->channels[channel].gen != gen)) {
            close(peer->channels[channel].fd);
            peer->channels[channel].gen = 0;
        }
        if (peer->channels[channel].gen == 0) {
            fd = npemu_peer_open_event(peer, &shm->event);
            if (fd >= 0) {
                peer->channels[channel].gen = gen;
                peer->channels[channel].fd  = fd;
            }
        }
        fd = (peer->channels[channel].gen == gen) ?
                     peer->channels[channel].fd : -1;
    }
    if (fd >= 0) {
        npemu_event_fd_signal(&shm->event, fd);
    }
    npemu_spin_unlock(&peer->fd_lock);
}

void npemu_peer_init(npemu_proc_t *proc)
{
    pthread_mutex_init(&proc->peers_lock, NULL);
    npemu_link_init(&proc->retired);
}

void npemu_peer_cleanup(npemu_proc_t *proc)
{
    npemu_peer_t *peer;
    unsigned i;

    for (i = 0; i < NPEMU_MAX_PROCS; ++i) {
        peer = atomic_load(&proc->peers[i]);
        if (peer != NULL) {
            atomic_store(&proc->peers[i], NULL);
            npemu_peer_close(proc, peer);
        }
    }
    while (!npemu_link_is_empty(&proc->retired)) {
        peer = npemu_container_of(proc->retired.next, npemu_peer_t, link);
        npemu_link_del(&peer->link);
        npemu_peer_close(proc, peer);
    }
    pthread_mutex_destroy(&proc->peers_lock);
}
