/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "rmem_uffd.h"
#include "rmem.h"
#include "rmem_side.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of <linux/userfaultfd.h> since 6.1 */
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif


/* ---- open and close ---- */

/* The device is for the accesses of the kernel */
static int rmem_uffd_open_descriptor(bool is_kernel)
{
    struct uffdio_api api = {
        .api      = UFFD_API,
        .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP |
                    (is_kernel ? 0 : UFFD_FEATURE_SIGBUS)
    };
    int device = is_kernel ? open("/dev/userfaultfd", O_RDWR | O_CLOEXEC) : -1;
    int error  = errno;
    int uffd;

    if (device >= 0) {
        uffd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC);
        close(device);
    } else {
        uffd = syscall(SYS_userfaultfd,
                       O_CLOEXEC | (is_kernel ? 0 : UFFD_USER_MODE_ONLY));
    }
    if ((uffd < 0) && is_kernel) {
        rmem_error(RMEM_ERR_UNSUPPORTED, "system calls cannot touch a window: "
                   "/dev/userfaultfd: %s; and without CAP_SYS_PTRACE "
                   "userfaultfd: %s", strerror(error), strerror(errno));
    } else if (uffd < 0) {
        rmem_error(RMEM_ERR_UNSUPPORTED, "no window: userfaultfd: %s",
                   strerror(errno));
    } else if (ioctl(uffd, UFFDIO_API, &api) != 0) {
        rmem_error(RMEM_ERR_UNSUPPORTED, "no window: this kernel's "
                   "userfaultfd does not protect pages");
        close(uffd);
        uffd = -1;
    }
    return uffd;
}

int rmem_uffd_open(rmem_uffd_t *uffd, size_t bytes, bool is_kernel)
{
    struct uffdio_register arg = {
        .range.len = bytes,
        .mode      = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP
    };

    uffd->base  = NULL;
    uffd->bytes = bytes;
    uffd->fd    = rmem_uffd_open_descriptor(is_kernel);
    if (uffd->fd < 0) {
        return RMEM_ERR_UNSUPPORTED;
    }

    uffd->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (uffd->base == MAP_FAILED) {
        uffd->base = NULL;
        return rmem_error(RMEM_ERR_NOMEM, "no addresses for a window of %zu "
                          "bytes: %s", bytes, strerror(errno));
    }

    arg.range.start = (uintptr_t)uffd->base;
    if ((madvise(uffd->base, bytes, MADV_DONTFORK) != 0) ||
        (ioctl(uffd->fd, UFFDIO_REGISTER, &arg) != 0)) {
        return rmem_error(RMEM_ERR_UNSUPPORTED, "no window: %s",
                          strerror(errno));
    }
    /* Fails in kernels without huge pages */
    madvise(uffd->base, bytes, MADV_NOHUGEPAGE);
    return RMEM_OK;
}

/* While the descriptor is there, nothing reads as zeros */
void rmem_uffd_close(rmem_uffd_t *uffd)
{
    if (uffd->base != NULL) {
        syscall(SYS_munmap, uffd->base, uffd->bytes);
    }
    if (uffd->fd >= 0) {
        close(uffd->fd);
    }
}


/* ---- pages ---- */

static int rmem_uffd_broken(const char *what)
{
    return rmem_error(RMEM_ERR_UNSUPPORTED,
                      "%s failed in a window: %s; has the program changed the "
                      "mapping, or locked it?", what, strerror(errno));
}

int rmem_uffd_protect(const rmem_uffd_t *uffd, uint32_t page, uint32_t count,
                      bool is_protected)
{
    struct uffdio_writeprotect arg = {
        .range.start = (uintptr_t)rmem_uffd_page(uffd, page),
        .range.len   = (size_t)count * RMEM_PAGE_SIZE,
        .mode        = is_protected ? UFFDIO_WRITEPROTECT_MODE_WP : 0
    };

    while (ioctl(uffd->fd, UFFDIO_WRITEPROTECT, &arg) != 0) {
        if (errno != EAGAIN) {
            return rmem_uffd_broken("UFFDIO_WRITEPROTECT");
        }
    }
    return RMEM_OK;
}

int rmem_uffd_copy(const rmem_uffd_t *uffd, uint32_t page, uint32_t count,
                   const char *source, bool is_protected)
{
    struct uffdio_copy arg = {
        .dst  = (uintptr_t)rmem_uffd_page(uffd, page),
        .src  = (uintptr_t)source,
        .len  = (size_t)count * RMEM_PAGE_SIZE,
        .mode = is_protected ? UFFDIO_COPY_MODE_WP : 0
    };

    while (ioctl(uffd->fd, UFFDIO_COPY, &arg) != 0) {
        if (errno != EAGAIN) {
            return rmem_uffd_broken("UFFDIO_COPY");
        }
        if (arg.copy > 0) {
            arg.dst += arg.copy;
            arg.src += arg.copy;
            arg.len -= arg.copy;
        }
        arg.copy = 0;
    }
    return RMEM_OK;
}

/* The system call: hooks of memory events concern the program's calls */
int rmem_uffd_drop(const rmem_uffd_t *uffd, uint32_t page, uint32_t count)
{
    return (syscall(SYS_madvise, rmem_uffd_page(uffd, page),
                    (size_t)count * RMEM_PAGE_SIZE, MADV_DONTNEED) == 0) ?
           RMEM_OK : rmem_uffd_broken("MADV_DONTNEED");
}

void rmem_uffd_wake(const rmem_uffd_t *uffd, const void *page)
{
    struct uffdio_range range = {(uintptr_t)page, RMEM_PAGE_SIZE};

    ioctl(uffd->fd, UFFDIO_WAKE, &range);
}
