/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "base/npemu_file.h"
#include "base/npemu_util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The kernel's sets of signals are words of 64 bits */
#define NPEMU_FILE_SIGNAL (1ull << (SIGXFSZ - 1))

/* Signals of a thread between the two functions below. */
typedef struct {
    uint64_t mask;       /* signals that were blocked before */
    int      is_pending; /* SIGXFSZ was pending before */
} npemu_file_section_t;

/* Between these a file that gets too large is an error and no signal. The
 * signal is sent to the thread that writes, so blocking it there is enough.
 * Memory hooks may call them: they make system calls directly. */
NPEMU_HOOK
static void npemu_file_begin(npemu_file_section_t *section)
{
    const uint64_t set = NPEMU_FILE_SIGNAL;
    uint64_t pending   = 0;
    int error          = errno;

    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, &section->mask, sizeof(set));
    syscall(SYS_rt_sigpending, &pending, sizeof(pending));
    section->is_pending = !!(pending & NPEMU_FILE_SIGNAL);
    errno               = error;
}

NPEMU_HOOK
static void npemu_file_end(const npemu_file_section_t *section)
{
    const struct timespec zero = {0};
    const uint64_t set         = NPEMU_FILE_SIGNAL;
    int error                  = errno;

    /* A signal that was pending before is not of this file */
    if (!section->is_pending) {
        syscall(SYS_rt_sigtimedwait, &set, NULL, &zero, sizeof(set));
    }
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &section->mask, NULL, sizeof(set));
    errno = error;
}

NPEMU_HOOK
ssize_t npemu_file_write(int fd, const void *data, size_t length)
{
    npemu_file_section_t section;
    ssize_t ret;

    npemu_file_begin(&section);
    ret = syscall(SYS_write, fd, data, length);
    npemu_file_end(&section);
    return ret;
}

int npemu_file_create(const char *name, size_t size)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    npemu_file_section_t section;
    int fd, ret, error;

    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return -1;
    }

    npemu_file_begin(&section);
    ret = ftruncate(fd, size);
    npemu_file_end(&section);
    if ((ret < 0) || (fcntl(fd, F_ADD_SEALS, seals) < 0)) {
        error = errno;
        close(fd);
        errno = error;
        return -1;
    }

    return fd;
}
