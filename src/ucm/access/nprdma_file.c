/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>


/* The signal is sent to the thread that writes, so blocking it there is
 * enough. */
void nprdma_file_begin(nprdma_file_section_t *section)
{
    int error = errno;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set, &section->mask);
    sigpending(&set);
    section->is_pending = sigismember(&set, SIGXFSZ);
    errno               = error;
}

void nprdma_file_end(const nprdma_file_section_t *section)
{
    const struct timespec zero = {0};
    int error                  = errno;
    sigset_t set;

    /* A signal that was pending before is not of this file */
    if (!section->is_pending) {
        sigemptyset(&set);
        sigaddset(&set, SIGXFSZ);
        sigtimedwait(&set, NULL, &zero);
    }
    pthread_sigmask(SIG_SETMASK, &section->mask, NULL);
    errno = error;
}

ssize_t nprdma_file_write(int fd, const void *data, size_t length)
{
    nprdma_file_section_t section;
    ssize_t ret;

    nprdma_file_begin(&section);
    ret = write(fd, data, length);
    nprdma_file_end(&section);
    return ret;
}

int nprdma_file_create(const char *name, size_t size)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    nprdma_file_section_t section;
    int fd, ret, error;

    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return -1;
    }

    nprdma_file_begin(&section);
    ret = ftruncate(fd, size);
    nprdma_file_end(&section);
    if ((ret < 0) || (fcntl(fd, F_ADD_SEALS, seals) < 0)) {
        error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Does it belong to this user, or to root, as devices do? */
static int nprdma_file_is_ours(const struct stat *st)
{
    return (st->st_uid == geteuid()) || (st->st_uid == 0);
}

int nprdma_file_append(const char *path, mode_t mode)
{
    int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY |
                O_NONBLOCK;
    struct stat st;
    int fd, error;

    fd = open(path, flags | O_NOFOLLOW, mode);
    if (fd < 0) {
        /* The kernel refuses some of it itself (fs.protected_*). Another user
         * cannot replace a link of this user in a sticky directory. */
        error = errno;
        if ((lstat(path, &st) == 0) && !nprdma_file_is_ours(&st)) {
            error = EPERM;
        } else if (error == ELOOP) {
            fd    = open(path, flags, mode);
            error = errno;
        }
    }
    if (fd < 0) {
        errno = error;
        return -1;
    }

    if ((fstat(fd, &st) < 0) || !nprdma_file_is_ours(&st)) {
        close(fd);
        errno = EPERM;
        return -1;
    }

    fcntl(fd, F_SETFL, O_APPEND); /* writing may block */
    return fd;
}
