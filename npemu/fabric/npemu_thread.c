/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_thread.h"
#include "base/npemu_log.h"
#include "fabric/npemu_event_fd.h"
#include "fabric/npemu_peer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Interval of checks whether peers without a pidfd are alive. */
#define NPEMU_NO_PIDFD_MS 1000

/* Handshake between the npemu thread and the thread that starts it. */
typedef struct {
    npemu_proc_t    *proc;
    pthread_mutex_t lock;
    pthread_cond_t  cond;
    int             done;
    int             slot; /* -1: none is free, or no memory */
} npemu_thread_start_t;

static void npemu_thread_wake(npemu_proc_t *proc)
{
    npemu_event_fd_signal(&proc->wake, proc->wake.signal_fd);
}

/* Returns 1 if the timer was later. */
static int npemu_thread_lower_timer(npemu_proc_t *proc, uint64_t when_ns)
{
    uint64_t timer = atomic_load(&proc->timer_ns);

    do {
        if (timer <= when_ns) {
            return 0;
        }
    } while (!atomic_compare_exchange_weak(&proc->timer_ns, &timer, when_ns));
    return 1;
}

void npemu_thread_set_timer(npemu_proc_t *proc, uint64_t when_ns)
{
    if (npemu_thread_lower_timer(proc, when_ns)) {
        npemu_thread_wake(proc);
    }
}

/* Attach the processes that have announced themselves. */
static void npemu_thread_new_peers(npemu_proc_t *proc)
{
    uint64_t bits;
    unsigned i;

    for (i = 0; i < NPEMU_MAX_PROCS / 64; ++i) {
        if (atomic_load(&proc->shm->new_peers[i]) == 0) {
            continue;
        }

        bits = atomic_exchange(&proc->shm->new_peers[i], 0);
        while (bits != 0) {
            npemu_peer_announced(proc, i * 64 + __builtin_ctzll(bits));
            bits &= bits - 1;
        }
    }
}

/* The descriptors to wait for. Returns their number; sets *no_pidfd_p if there
 * is a peer without a pidfd. */
static unsigned npemu_thread_collect(npemu_proc_t *proc, struct pollfd *fds,
                                     int *no_pidfd_p)
{
    unsigned count = 1;
    npemu_peer_t *peer;
    unsigned i, num_slots;

    *no_pidfd_p = 0;
    fds[0]      = (struct pollfd){.fd = proc->wake.fd, .events = POLLIN};
    num_slots   = atomic_load(&proc->fabric->num_slots);
    pthread_mutex_lock(&proc->peers_lock);
    for (i = 0; i < num_slots; ++i) {
        peer = atomic_load(&proc->peers[i]);
        if ((peer == NULL) || peer->is_self) {
            continue;
        } else if ((peer->pidfd < 0) || !npemu_peer_is_alive(peer)) {
            *no_pidfd_p = 1; /* one that has died since the last reaping */
        } else {
            fds[count++] = (struct pollfd){.fd     = peer->pidfd,
                                           .events = POLLIN};
        }
    }
    pthread_mutex_unlock(&proc->peers_lock);
    return count;
}

static void npemu_thread_sleep(npemu_proc_t *proc, struct pollfd *fds)
{
    uint64_t when = atomic_load(&proc->timer_ns);
    struct timespec timeout;
    uint64_t now, delay;
    unsigned count;
    int no_pidfd;

    count = npemu_thread_collect(proc, fds, &no_pidfd);
    delay = UINT64_MAX;
    if (when != UINT64_MAX) {
        now   = npemu_time_ns();
        delay = (when > now) ? when - now : 0;
    }
    if (no_pidfd && (delay > NPEMU_NO_PIDFD_MS * 1000000ull)) {
        delay = NPEMU_NO_PIDFD_MS * 1000000ull;
    }

    timeout.tv_sec  = delay / 1000000000ull;
    timeout.tv_nsec = delay % 1000000000ull;
    ppoll(fds, count, (delay == UINT64_MAX) ? NULL : &timeout, NULL);
}

static void npemu_thread_loop(npemu_proc_t *proc, struct pollfd *fds)
{
    uint64_t next;

    while (!__atomic_load_n(&proc->stop, __ATOMIC_ACQUIRE)) {
        npemu_thread_sleep(proc, fds);
        npemu_event_fd_drain(&proc->wake);

        npemu_thread_new_peers(proc);
        proc->ops->handle_events(proc);
        npemu_peer_reap(proc);

        /* A thread that posts after this lowers the timer and wakes this one */
        atomic_store(&proc->timer_ns, UINT64_MAX);
        next = proc->ops->progress(proc);
        npemu_thread_lower_timer(proc, next);
    }
}

static void *npemu_thread_main(void *arg)
{
    npemu_thread_start_t *start = arg;
    npemu_proc_t *proc          = start->proc;
    struct pollfd *fds;
    int slot;

    pthread_setname_np(pthread_self(), "npemu");
    fds  = malloc((NPEMU_MAX_PROCS + 1) * sizeof(*fds));
    slot = (fds == NULL) ? -1 : npemu_slot_claim(proc->fabric);

    pthread_mutex_lock(&start->lock);
    start->slot = slot;
    start->done = 1;
    pthread_cond_signal(&start->cond);
    pthread_mutex_unlock(&start->lock); /* `start` is invalid from here on */

    if (slot >= 0) {
        npemu_thread_loop(proc, fds);
        npemu_slot_release(&proc->fabric->slots[slot]);
    }
    free(fds);
    return NULL;
}

/* Signals that are sent to the process are for threads of the program, so all
 * are blocked in this one. */
static int npemu_thread_create(npemu_thread_start_t *start)
{
    sigset_t all, old;
    int ret;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ret = pthread_create(&start->proc->thread, NULL, npemu_thread_main, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ret;
}

int npemu_thread_start(npemu_proc_t *proc)
{
    npemu_thread_start_t start = {.proc = proc};
    int ret;

    atomic_store(&proc->timer_ns, UINT64_MAX);
    if (npemu_event_fd_create(&proc->wake, 1) < 0) {
        ret = errno;
        npemu_error("cannot make a pipe: %s", strerror(ret));
        return ret;
    }

    pthread_mutex_init(&start.lock, NULL);
    pthread_cond_init(&start.cond, NULL);
    ret = npemu_thread_create(&start);
    if (ret != 0) {
        npemu_error("cannot start a thread: %s", strerror(ret));
    } else {
        pthread_mutex_lock(&start.lock);
        while (!start.done) {
            pthread_cond_wait(&start.cond, &start.lock);
        }
        pthread_mutex_unlock(&start.lock);
        if (start.slot < 0) {
            npemu_error("more than %u processes on the emulated RNIC",
                        NPEMU_MAX_PROCS);
            pthread_join(proc->thread, NULL);
            ret = ENOSPC;
        }
    }
    pthread_cond_destroy(&start.cond);
    pthread_mutex_destroy(&start.lock);

    if (ret != 0) {
        npemu_event_fd_close(&proc->wake);
        return ret;
    }

    proc->slot_index = start.slot;
    return 0;
}

void npemu_thread_stop(npemu_proc_t *proc)
{
    __atomic_store_n(&proc->stop, 1, __ATOMIC_RELEASE);
    npemu_thread_wake(proc);
    pthread_join(proc->thread, NULL);
    npemu_event_fd_close(&proc->wake);
}
