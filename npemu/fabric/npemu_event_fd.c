/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_event_fd.h"
#include "base/npemu_remote_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that one read takes from a pipe. */
#define NPEMU_EVENT_FD_DRAIN 512

/* --- making ----------------------------------------------------------------*/

/* Whether reads block is a property of an open file, and the application may
 * change it. So this process has an open file of its own for writing. */
int npemu_event_fd_create(npemu_event_fd_t *event, int nonblock)
{
    struct stat st;
    int fds[2], error;

    atomic_store(&event->owed, 0);
    if (pipe2(fds, O_CLOEXEC) < 0) {
        return -1;
    }

    event->signal_fd = -1;
    if (fstat(fds[0], &st) == 0) {
        event->dev       = st.st_dev;
        event->ino       = st.st_ino;
        event->signal_fd = npemu_remote_fd_reopen(getpid(), fds[0], event->dev,
                                                  event->ino);
    }
    error = errno;
    close(fds[1]);
    event->fd = fds[0];
    if ((event->signal_fd < 0) || nonblock) {
        close(fds[0]);
        event->fd = event->signal_fd;
    }
    errno = error;
    return (event->signal_fd < 0) ? -1 : 0;
}

void npemu_event_fd_close(npemu_event_fd_t *event)
{
    if (event->signal_fd != event->fd) {
        close(event->signal_fd);
    }
    close(event->fd);
}

int npemu_event_fd_open(const npemu_event_fd_t *event, int pid)
{
    return npemu_remote_fd_reopen(pid, event->fd, event->dev, event->ino);
}

/* --- events ----------------------------------------------------------------*/

/* Returns 0, or an errno value: EAGAIN if the pipe is full. */
static int npemu_event_fd_write(int fd)
{
    const uint8_t one = 1;

    while (write(fd, &one, 1) < 0) {
        if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* Subtract one from the events owed. Returns 0 if there are none. */
static int npemu_event_fd_take_owed(npemu_event_fd_t *event)
{
    uint32_t owed = atomic_load(&event->owed);

    while ((owed > 0) &&
           !atomic_compare_exchange_weak(&event->owed, &owed, owed - 1)) {
    }
    return owed > 0;
}

/* The pipe may have been emptied before `owed` was raised; then no read comes
 * that would see it. So the write is tried again. A reader that pays the same
 * event as well makes one event too many, which is legal. */
void npemu_event_fd_signal(npemu_event_fd_t *event, int fd)
{
    if (npemu_event_fd_write(fd) != EAGAIN) {
        return;
    }

    atomic_fetch_add(&event->owed, 1);
    if (npemu_event_fd_write(fd) == 0) {
        npemu_event_fd_take_owed(event);
    }
}

int npemu_event_fd_take(npemu_event_fd_t *event)
{
    uint8_t one;

    if (read(event->fd, &one, 1) < 0) {
        return -1;
    }

    if (npemu_event_fd_take_owed(event)) {
        npemu_event_fd_signal(event, event->signal_fd);
    }
    return 0;
}

void npemu_event_fd_unsignal(npemu_event_fd_t *event)
{
    uint8_t one;

    if (npemu_event_fd_take_owed(event)) {
        return;
    }

    /* Reads of this descriptor never block */
    while ((read(event->signal_fd, &one, 1) < 0) && (errno == EINTR)) {
    }
}

void npemu_event_fd_drain(npemu_event_fd_t *event)
{
    uint8_t data[NPEMU_EVENT_FD_DRAIN];
    ssize_t ret;

    do {
        ret = read(event->fd, data, sizeof(data));
    } while ((ret == (ssize_t)sizeof(data)) ||
             ((ret < 0) && (errno == EINTR)));
}
