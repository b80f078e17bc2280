/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_uffd.h"
#include "nprdma_events.h"

#include <nprdma_thread.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The headers of the build machine may be older than these */
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif
#ifndef UFFDIO_CONTINUE
struct uffdio_continue {
    struct uffdio_range range;
    __u64               mode;
    __s64               mapped;
};
#define UFFDIO_CONTINUE _IOWR(UFFDIO, 0x07, struct uffdio_continue)
#endif

#define NPRDMA_UFFD_FEATURES \
    (UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | \
     UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP)


/* Descriptors that nprdma_uffd_is_foreign() recognizes */
#define NPRDMA_UFFD_NUM_OWN 64


/* In memory that is all zeros in a child, which must not use a descriptor of
 * its parent: that is for memory of the parent */
typedef struct nprdma_uffd_state {
    _Atomic uint32_t busy; /* Hooks that use the descriptors */
    _Atomic int      own[NPRDMA_UFFD_NUM_OWN]; /* Descriptor + 1; 0: free */
} nprdma_uffd_state_t;

/* Kept until the process ends; NULL: there was never a userfaultfd */
static nprdma_uffd_state_t *_Atomic nprdma_uffd_state;


struct nprdma_uffd {
    nprdma_uffd_func_t taken;
    void              *arg; /* Of taken */
    pthread_t          thread;
    int                fd;
    int                stop_fd; /* Readable: stop */
};


static void nprdma_uffd_take(nprdma_uffd_t *uffd, uint64_t start, uint64_t end)
{
    uffd->taken(uffd->arg, nprdma_span(start, end));
}

static void nprdma_uffd_read(nprdma_uffd_t *uffd)
{
    struct uffd_msg msg;

    while (read(uffd->fd, &msg, sizeof(msg)) == (ssize_t)sizeof(msg)) {
        switch (msg.event) {
        case UFFD_EVENT_REMAP:
            nprdma_uffd_take(uffd, msg.arg.remap.from,
                             msg.arg.remap.from + msg.arg.remap.len);
            nprdma_uffd_take(uffd, msg.arg.remap.to,
                             msg.arg.remap.to + msg.arg.remap.len);
            break;
        case UFFD_EVENT_REMOVE:
        case UFFD_EVENT_UNMAP:
            nprdma_uffd_take(uffd, msg.arg.remove.start, msg.arg.remove.end);
            break;
        default:
            break;
        }
    }
}

static void *nprdma_uffd_run(void *arg)
{
    nprdma_uffd_t *uffd   = arg;
    struct pollfd poll_fd[2];

    poll_fd[0].fd     = uffd->fd;
    poll_fd[0].events = POLLIN;
    poll_fd[1].fd     = uffd->stop_fd;
    poll_fd[1].events = POLLIN;
    for (;;) {
        poll_fd[0].revents = poll_fd[1].revents = 0;
        (void)poll(poll_fd, 2, -1);
        if (poll_fd[1].revents != 0) {
            break;
        }

        nprdma_uffd_read(uffd);
    }

    /* Releases threads whose system calls wait until their event has been read.
     * Here, because the stack of this thread may be watched: it is in the same
     * chunk as a buffer. The end of the thread, and the thread that joins it,
     * would wait for an event of the stack, which nobody reads any more. */
    close(uffd->fd);
    return NULL;
}

static int nprdma_uffd_open(void)
{
    struct uffdio_api api;
    int fd, i;

    /* UFFD_USER_MODE_ONLY needs no privilege. If the kernel does not have a
     * feature that was asked for, the descriptor cannot be used any more. */
    for (i = 0; i < 2; ++i) {
        fd = (int)syscall(SYS_userfaultfd,
                          O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
        if (fd < 0) {
            return -1;
        }

        memset(&api, 0, sizeof(api));
        api.api      = UFFD_API;
        api.features = NPRDMA_UFFD_FEATURES |
                       ((i == 0) ? UFFD_FEATURE_WP_HUGETLBFS_SHMEM : 0);
        if (ioctl(fd, UFFDIO_API, &api) == 0) {
            return fd;
        }
        close(fd);
    }

    return -1;
}

/* ---- descriptors of this process ---- */

static nprdma_uffd_state_t *nprdma_uffd_get_state(void)
{
    nprdma_uffd_state_t *state = atomic_load(&nprdma_uffd_state);
    nprdma_uffd_state_t *made;

    if (state != NULL) {
        return state;
    }

    made = nprdma_events_alloc_wiped(sizeof(*made));
    if ((made != NULL) &&
        !atomic_compare_exchange_strong(&nprdma_uffd_state, &state, made)) {
        nprdma_events_free_wiped(made, sizeof(*made));
        return state; /* Another thread was faster */
    }

    return made;
}

/* Without a place, what it watches counts as watched by the application */
static void nprdma_uffd_add_own(int fd)
{
    nprdma_uffd_state_t *state = nprdma_uffd_get_state();
    int expected, i;

    for (i = 0; (state != NULL) && (i < NPRDMA_UFFD_NUM_OWN); ++i) {
        expected = 0;
        if (atomic_compare_exchange_strong(&state->own[i], &expected,
                                           fd + 1)) {
            return;
        }
    }
}

/* When this returns no hook uses the descriptor */
static void nprdma_uffd_remove_own(int fd)
{
    nprdma_uffd_state_t *state = atomic_load(&nprdma_uffd_state);
    int expected, i;

    for (i = 0; (state != NULL) && (i < NPRDMA_UFFD_NUM_OWN); ++i) {
        expected = fd + 1;
        if (atomic_compare_exchange_strong(&state->own[i], &expected, 0)) {
            while (atomic_load(&state->busy) > 0) {
                sched_yield();
            }
            return;
        }
    }
}

/* By the system call: hooks must not be instrumented, see nprdma_hook.h.
 * @return 0 or errno. */
NPRDMA_HOOK
static int nprdma_uffd_register(int fd, nprdma_span_t span, uint64_t mode)
{
    struct uffdio_register watch;

    watch.range.start = span.start;
    watch.range.len   = span.end - span.start;
    watch.mode        = mode;
    watch.ioctls      = 0;
    return (syscall(SYS_ioctl, fd, UFFDIO_REGISTER, &watch) == 0) ? 0 : errno;
}

/* Nothing is changed: what a descriptor watches it may register again */
NPRDMA_HOOK
static int nprdma_uffd_is_own(nprdma_span_t span)
{
    nprdma_uffd_state_t *state = atomic_load(&nprdma_uffd_state);
    int is_own                 = 0;
    int fd, i;

    if (state == NULL) {
        return 0;
    }

    atomic_fetch_add(&state->busy, 1);
    for (i = 0; (i < NPRDMA_UFFD_NUM_OWN) && !is_own; ++i) {
        fd     = atomic_load(&state->own[i]) - 1;
        is_own = (fd >= 0) &&
                 (nprdma_uffd_register(fd, span, UFFDIO_REGISTER_MODE_WP) == 0);
    }
    atomic_fetch_sub(&state->busy, 1);
    return is_own;
}

int nprdma_uffd_open_probe(void)
{
    struct uffdio_api api = { .api = UFFD_API };
    int fd;

    fd = (int)syscall(SYS_userfaultfd,
                      O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if ((fd >= 0) && (ioctl(fd, UFFDIO_API, &api) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/*
 * Changes nothing, in a tenth of the time of registering. UFFDIO_CONTINUE
 * (Linux 5.13) is for files: for private anonymous memory it is ENOENT if no
 * userfaultfd watches the mapping, and else EINVAL.
 */
NPRDMA_HOOK
static int nprdma_uffd_is_free(int probe, uintptr_t page, size_t page_size)
{
    struct uffdio_continue fill;

    memset(&fill, 0, sizeof(fill));
    fill.range.start = page;
    fill.range.len   = page_size;
    return (syscall(SYS_ioctl, probe, UFFDIO_CONTINUE, &fill) == -1) &&
           (errno == ENOENT);
}

/* A thread that accesses the memory meanwhile waits until it is not registered
 * any more. That is memory that another thread is unmapping. */
NPRDMA_HOOK
int nprdma_uffd_is_foreign(int probe, nprdma_span_t span, size_t page_size)
{
    struct uffdio_range range;
    int ret;

    if ((page_size > 0) && nprdma_uffd_is_free(probe, span.start, page_size)) {
        return 0;
    }

    ret = nprdma_uffd_register(probe, span, UFFDIO_REGISTER_MODE_MISSING);
    if (ret != 0) {
        return (ret != EBUSY) || !nprdma_uffd_is_own(span);
    }

    range.start = span.start;
    range.len   = span.end - span.start;
    return syscall(SYS_ioctl, probe, UFFDIO_UNREGISTER, &range) != 0;
}


/* ---- start and stop ---- */

ucs_status_t nprdma_uffd_start(nprdma_uffd_func_t taken, void *arg,
                               nprdma_uffd_t **uffd_p)
{
    ucs_status_t status;
    nprdma_uffd_t *uffd;

    uffd = calloc(1, sizeof(*uffd));
    if (uffd == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    uffd->taken = taken;
    uffd->arg   = arg;
    uffd->fd    = nprdma_uffd_open();
    if (uffd->fd < 0) {
        status = UCS_ERR_UNSUPPORTED;
        goto err_free;
    }

    uffd->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (uffd->stop_fd < 0) {
        status = UCS_ERR_NO_MEMORY;
        goto err_close;
    }

    if (nprdma_thread_start(&uffd->thread, nprdma_uffd_run, uffd) != 0) {
        status = UCS_ERR_NO_MEMORY;
        goto err_close_stop;
    }

    nprdma_uffd_add_own(uffd->fd);
    *uffd_p = uffd;
    return UCS_OK;

err_close_stop:
    close(uffd->stop_fd);
err_close:
    close(uffd->fd);
err_free:
    free(uffd);
    return status;
}

void nprdma_uffd_stop(nprdma_uffd_t *uffd)
{
    uint64_t one = 1;

    nprdma_uffd_remove_own(uffd->fd);

    while (write(uffd->stop_fd, &one, sizeof(one)) != (ssize_t)sizeof(one)) {
    }
    pthread_join(uffd->thread, NULL);
    close(uffd->stop_fd);
    free(uffd);
}

void nprdma_uffd_watch(nprdma_uffd_t *uffd, nprdma_span_t span)
{
    struct uffdio_register watch;

    memset(&watch, 0, sizeof(watch));
    watch.range.start = span.start;
    watch.range.len   = span.end - span.start;
    watch.mode        = UFFDIO_REGISTER_MODE_WP;

    /* Without a userfaultfd the range is watched by the other means only */
    (void)ioctl(uffd->fd, UFFDIO_REGISTER, &watch);
}
