/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Descriptors of other processes. pidfd_getfd() duplicates any of them. Seccomp
 * filters of containers refuse it, and kernels before 5.6 do not have it.
 * /proc/PID/fd/N opens the same file once more, which works for files in memory
 * and for pipes, but not for those of the kernel module. Both ask for a right
 * to ptrace: the call for PTRACE_MODE_ATTACH_REALCREDS, the open for
 * PTRACE_MODE_READ_FSCREDS.
 *
 * These functions may run within an epoch: they do not call memory hooks.
 */

#ifndef NPEMU_REMOTE_FD_H
#define NPEMU_REMOTE_FD_H

#include <stdint.h>

/**
 * Duplicate a descriptor of another process. `pidfd`: of the process; -1: none,
 * then `pid` must be running. Returns a descriptor that the caller closes, or
 * -1 with errno: EPERM or ENOSYS if a call is refused, EPERM also if the kernel
 * denies access to the process; ESRCH if it has ended; EBADF if it has no such
 * descriptor; else that of pidfd_open() or pidfd_getfd().
 */
int npemu_remote_fd_get(int pidfd, int pid, int fd);

/**
 * Open the file of a descriptor of another process once more, for reading and
 * writing, without blocking. The file is checked before it is opened, since the
 * open of an unknown file may block or have an effect. The caller makes sure
 * afterwards that the process has not ended: then the pid was not another
 * process' in between. `dev` and `ino` are those of the pipe that it must be; 0
 * and 0: any regular file. Returns a descriptor that the caller closes, or -1
 * with errno: ESTALE if it is another file; EACCES if the kernel denies access
 * to the process or the file; ENOENT if the process has ended or has no such
 * descriptor; else that of open().
 */
int npemu_remote_fd_reopen(int pid, int fd, uint64_t dev, uint64_t ino);

#endif
