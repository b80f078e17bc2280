/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Files that this library makes or writes. Where the size of files is limited
 * (RLIMIT_FSIZE, ulimit -f), the kernel sends SIGXFSZ to a thread that exceeds
 * the limit, with files in memory as well, and by default the signal ends the
 * program. The program did not ask for these files, so here EFBIG is the only
 * effect.
 */

#ifndef NPEMU_FILE_H
#define NPEMU_FILE_H

#include <stddef.h>
#include <sys/types.h>

/** As write(2), but with EFBIG alone where the file may not be so large. */
ssize_t npemu_file_write(int fd, const void *data, size_t length);

/** Make a file in memory, zeroed, sealed against changes of its size and
 * close-on-exec. Returns its descriptor, or -1 with errno: EFBIG at
 * RLIMIT_FSIZE; or that of memfd_create(), ftruncate() or fcntl(). */
int npemu_file_create(const char *name, size_t size);

#endif
