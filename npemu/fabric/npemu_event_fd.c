/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_event_fd.h"
#include "base/npemu_remote_fd.h"
#include "fabric/npemu_fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bytes that one read takes from a pipe. */
#define NPEMU_EVENT_FD_DRAIN 512

/* --- making ----------------------------------------------------------------*/

unsigned npemu_event_fd_probe(void)
{
    return npemu_remote_fd_is_refused() ? NPEMU_EVENT_PIPE : 0;
}

/* The kernel's id of an eventfd, UINT32_MAX if it is none. Returns -1 if there
 * is no descriptor to ask with: errno is EMFILE or ENFILE. */
static int npemu_event_fd_id(int fd, uint32_t *id_p)
{
    static const char tag[] = "eventfd-id:";
    char path[48], text[512];
    const char *value;

    *id_p = UINT32_MAX;
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    if (npemu_read_proc(path, text, sizeof(text)) < 0) {
        return ((errno == EMFILE) || (errno == ENFILE)) ? -1 : 0;
    }

    value = strstr(text, tag);
    if (value != NULL) {
        *id_p = strtoul(value + sizeof(tag) - 1, NULL, 10);
    }
    return 0;
}

static void npemu_event_fd_fail(int fd)
{
    int error = errno;

    close(fd);
    errno = error;
}

static int npemu_event_fd_create_eventfd(npemu_event_fd_t *event,
                                         unsigned flags)
{
    uint32_t id;

    event->fd = eventfd(0, EFD_CLOEXEC |
                           ((flags & NPEMU_EVENT_NONBLOCK) ? EFD_NONBLOCK : 0) |
                           ((flags & NPEMU_EVENT_SEPARATE) ? EFD_SEMAPHORE :
                                                             0));
    if (event->fd < 0) {
        return -1;
    }

    event->signal_fd = event->fd;
    if (npemu_event_fd_id(event->fd, &id) < 0) {
        npemu_event_fd_fail(event->fd);
        return -1;
    }
    event->id = id;
    return 0;
}

/* Whether reads block is a property of an open file, and the application may
 * change it. So this process has an open file of its own for writing. */
static int npemu_event_fd_create_pipe(npemu_event_fd_t *event, unsigned flags)
{
    struct stat st;
    int fds[2], error;

    if (pipe2(fds, O_CLOEXEC) < 0) {
        return -1;
    }

    event->signal_fd = -1;
    if (fstat(fds[0], &st) == 0) {
        event->dev       = st.st_dev;
        event->id        = st.st_ino;
        event->signal_fd = npemu_remote_fd_reopen(getpid(), fds[0], event->dev,
                                                  event->id);
    }
    error = errno;
    close(fds[1]);
    event->fd = fds[0];
    if ((event->signal_fd < 0) || (flags & NPEMU_EVENT_NONBLOCK)) {
        close(fds[0]);
        event->fd = event->signal_fd;
    }
    errno = error;
    return (event->signal_fd < 0) ? -1 : 0;
}

int npemu_event_fd_create(npemu_event_fd_t *event, unsigned flags)
{
    event->is_pipe = !!(flags & NPEMU_EVENT_PIPE);
    event->dev     = 0;
    atomic_store(&event->owed, 0);
    return event->is_pipe ? npemu_event_fd_create_pipe(event, flags) :
                            npemu_event_fd_create_eventfd(event, flags);
}

void npemu_event_fd_close(npemu_event_fd_t *event)
{
    if (event->signal_fd != event->fd) {
        close(event->signal_fd);
    }
    close(event->fd);
}

int npemu_event_fd_open(const npemu_event_fd_t *event, int pidfd, int pid)
{
    uint32_t id;
    int fd;

    if (event->is_pipe) {
        return npemu_remote_fd_reopen(pid, event->fd, event->dev, event->id);
    }

    fd = npemu_remote_fd_get(pidfd, pid, event->fd);
    if (fd < 0) {
        return -1;
    }

    if (npemu_event_fd_id(fd, &id) < 0) {
        npemu_event_fd_fail(fd);
        return -1;
    }
    if (id != event->id) {
        close(fd);
        errno = ESTALE;
        return -1;
    }
    return fd;
}

/* --- events ----------------------------------------------------------------*/

/* Returns 0, or an errno value: EAGAIN if a pipe is full. */
static int npemu_event_fd_write(const npemu_event_fd_t *event, int fd)
{
    const uint64_t one = 1; /* the first byte is the event of a pipe */

    while (write(fd, &one, event->is_pipe ? 1 : sizeof(one)) < 0) {
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
    if ((npemu_event_fd_write(event, fd) != EAGAIN) || !event->is_pipe) {
        return;
    }

    atomic_fetch_add(&event->owed, 1);
    if (npemu_event_fd_write(event, fd) == 0) {
        npemu_event_fd_take_owed(event);
    }
}

int npemu_event_fd_take(npemu_event_fd_t *event)
{
    uint64_t one;

    if (read(event->fd, &one, event->is_pipe ? 1 : sizeof(one)) < 0) {
        return -1;
    }

    if (event->is_pipe && npemu_event_fd_take_owed(event)) {
        npemu_event_fd_signal(event, event->signal_fd);
    }
    return 0;
}

void npemu_event_fd_unsignal(npemu_event_fd_t *event)
{
    uint64_t one;
    struct iovec iov = {&one, sizeof(one)};
    ssize_t ret;

    if (event->is_pipe && npemu_event_fd_take_owed(event)) {
        return;
    }

    /* Not poll() and read(): another thread may read in between. Kernels
     * without RWF_NOWAIT for eventfds leave the descriptor readable. */
    do {
        ret = event->is_pipe ? read(event->signal_fd, &one, 1) :
                               preadv2(event->fd, &iov, 1, -1, RWF_NOWAIT);
    } while ((ret < 0) && (errno == EINTR));
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
