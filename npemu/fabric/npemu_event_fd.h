/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Counters of events that processes signal to each other, each a pipe whose
 * owner polls it: one byte an event. Peers open it by /proc, which seccomp
 * filters of containers allow. The bytes of a pipe have a limit. So events that
 * a full pipe does not take are counted in shared memory (`owed`), and follow
 * when the owner has read.
 *
 * All descriptors for a pipe are open for reading and writing, except the one
 * that the application reads. So no write raises SIGPIPE, whichever process
 * has ended.
 */

#ifndef NPEMU_EVENT_FD_H
#define NPEMU_EVENT_FD_H

#include "fabric/npemu_shm.h"

/** Make a counter, at 0. `event`: the counter; npemu_event_fd_close() frees
 * what it holds. Nonzero `nonblock`: reads do not block. Returns 0, or -1 with
 * errno: that of pipe2() or open(), as EMFILE. */
int npemu_event_fd_create(npemu_event_fd_t *event, int nonblock);

/** Close the descriptors of a counter of this process. */
void npemu_event_fd_close(npemu_event_fd_t *event);

/**
 * Get a descriptor for npemu_event_fd_signal() to a counter of a peer. After a
 * success the caller makes sure that the peer has not ended. Returns a
 * descriptor that the caller closes, or -1 with errno: ESTALE if the number is
 * now another file's, as after an application has closed descriptors that it
 * does not own; EPERM or EACCES if the kernel denies it; or another of open().
 */
int npemu_event_fd_open(const npemu_event_fd_t *event, int pid);

/** Add one event. Does not block, and loses none. `fd`: in the owner
 * `event->signal_fd`; elsewhere what npemu_event_fd_open() returned. */
void npemu_event_fd_signal(npemu_event_fd_t *event, int fd);

/** Take one event. By the owner. Blocks while there is none, unless `event->fd`
 * is non-blocking. Returns 0, or -1 with errno: EAGAIN, EINTR, or another of
 * read(). */
int npemu_event_fd_take(npemu_event_fd_t *event);

/** Take one event if there is one. By the owner. Does not block. */
void npemu_event_fd_unsignal(npemu_event_fd_t *event);

/**
 * Take all events, from a counter whose reads do not block and that is read by
 * nothing else. By the owner. Events that a full pipe did not take do not
 * follow: the owner is awake while the pipe is full, and must handle the causes
 * of all events after it has drained it.
 */
void npemu_event_fd_drain(npemu_event_fd_t *event);

#endif
