/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The headers of the build machine may be older than these */
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFDIO_CONTINUE
struct uffdio_continue {
    struct uffdio_range range;
    __u64               mode;
    __s64               mapped;
};
#define UFFDIO_CONTINUE _IOWR(UFFDIO, 0x07, struct uffdio_continue)
#endif


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

/* Changes nothing, in a tenth of the time of registering. UFFDIO_CONTINUE
 * (Linux 5.13) is for files: for private anonymous memory it is ENOENT if no
 * userfaultfd watches the mapping, and else EINVAL. */
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

/* By system calls: hooks must not be instrumented, see nprdma_hook.h. A thread
 * that accesses the memory meanwhile waits until it is not registered any more.
 * That is memory that another thread is unmapping. */
NPRDMA_HOOK
int nprdma_uffd_is_foreign(int probe, nprdma_span_t span, size_t page_size)
{
    struct uffdio_register watch;

    if ((probe < 0) ||
        ((page_size > 0) &&
         nprdma_uffd_is_free(probe, span.start, page_size))) {
        return 0;
    }

    memset(&watch, 0, sizeof(watch));
    watch.range.start = span.start;
    watch.range.len   = span.end - span.start;
    watch.mode        = UFFDIO_REGISTER_MODE_MISSING;
    return (syscall(SYS_ioctl, probe, UFFDIO_REGISTER, &watch) != 0) ||
           (syscall(SYS_ioctl, probe, UFFDIO_UNREGISTER, &watch.range) != 0);
}
