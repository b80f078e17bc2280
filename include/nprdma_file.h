/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Files that a setting names, and that this program writes. */

#ifndef NPRDMA_FILE_H
#define NPRDMA_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Is it this user's, or root's, as devices are? */
static inline int nprdma_file_is_ours(const struct stat *st)
{
    return (st->st_uid == geteuid()) || (st->st_uid == 0);
}

/**
 * Open a file for appending; make it if there is none. Its name may be in a
 * directory where other users can make files. What belongs to another user is
 * refused: a symbolic link (at the end of the path), a file that is to be read
 * by its owner, a FIFO that nobody empties.
 *
 * @param [in] path  Its name.
 * @param [in] mode  Permissions of a new file.
 *
 * @return A descriptor that the caller closes, or -1 with errno: EPERM if it
 *         belongs to another user, ENXIO if it is a FIFO of this user without a
 *         reader, else that of open().
 */
static inline int nprdma_file_append(const char *path, mode_t mode)
{
    int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY |
                O_NONBLOCK;
    struct stat st;
    int fd, error;

    fd = open(path, flags | O_NOFOLLOW, mode);
    if (fd < 0) {
        /* Some of it the kernel refuses itself, as fs.protected_* say. A link
         * of ours cannot be replaced where the directory is sticky. */
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

#endif
