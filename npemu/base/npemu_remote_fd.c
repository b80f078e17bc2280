/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "base/npemu_remote_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void npemu_remote_fd_close(int fd)
{
    int error = errno;

    close(fd);
    errno = error;
}

int npemu_remote_fd_get(int pidfd, int pid, int fd)
{
    int own = -1;
    int copy;

    if (pidfd < 0) {
        own = pidfd = syscall(SYS_pidfd_open, pid, 0);
        if (pidfd < 0) {
            return -1;
        }
    }

    copy = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
    if (own >= 0) {
        npemu_remote_fd_close(own);
    }
    return copy;
}

static int npemu_remote_fd_matches(int path_fd, uint64_t dev, uint64_t ino)
{
    struct stat st;

    if (fstat(path_fd, &st) < 0) {
        return 0;
    }
    if (ino == 0) {
        return S_ISREG(st.st_mode);
    }
    return S_ISFIFO(st.st_mode) && (st.st_dev == dev) && (st.st_ino == ino);
}

int npemu_remote_fd_reopen(int pid, int fd, uint64_t dev, uint64_t ino)
{
    char path[48];
    int path_fd, copy;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    path_fd = open(path, O_PATH | O_CLOEXEC);
    if (path_fd < 0) {
        return -1;
    }

    if (npemu_remote_fd_matches(path_fd, dev, ino)) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
        copy = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    } else {
        copy  = -1;
        errno = ESTALE;
    }
    npemu_remote_fd_close(path_fd);
    return copy;
}
