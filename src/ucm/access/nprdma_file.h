/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_FILE_H_
#define NPRDMA_FILE_H_

#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

/* Files that this library makes or writes. Where the size of files is limited
 * (RLIMIT_FSIZE, ulimit -f), the kernel sends SIGXFSZ to a thread that exceeds
 * the limit, with files in memory as well, and by default the signal ends the
 * program. The program did not ask for these files, so here EFBIG is the only
 * effect. */

/* Signals of a thread between nprdma_file_begin() and _end() */
typedef struct {
    sigset_t mask;       /* What was blocked before */
    int      is_pending; /* SIGXFSZ was pending before */
} nprdma_file_section_t;


/* Until nprdma_file_end(), which the same thread calls, a file that gets too
 * large is an error and no signal */
void nprdma_file_begin(nprdma_file_section_t *section);


/* Keeps errno */
void nprdma_file_end(const nprdma_file_section_t *section);


/* As write(2), but with EFBIG alone where the file may not be so large */
ssize_t nprdma_file_write(int fd, const void *data, size_t length);


/* Make a file in memory, zeroed, sealed against changes of its size and
 * close-on-exec, by the name that /proc calls it. -1 with errno: EFBIG at
 * RLIMIT_FSIZE, or that of a system call. */
int nprdma_file_create(const char *name, size_t size);


/* Open a file for appending; create it if there is none. Its name may be in a
 * directory where other users can create files. Refuses what belongs to another
 * user (EPERM): a symbolic link at the end of the path, a file, which its owner
 * could read, and a FIFO. Refuses a FIFO without a reader (ENXIO). */
int nprdma_file_append(const char *path, mode_t mode);

#endif
