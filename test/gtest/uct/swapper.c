/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "swapper.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

#define SWAPPER_PAGE 4096u

static struct {
    char             *ptr;
    _Atomic size_t   length;     /* 0: no memory is watched */
    char             *swap;      /* Contents of the pages that were taken */
    int              fd;
    int              quit[2];
    pthread_t        thread;
    pthread_mutex_t  lock;       /* Hooks wait while a page is taken */
    _Atomic uint64_t num_in;
} swapper = {
    .lock = PTHREAD_MUTEX_INITIALIZER
};

/* The C library's function, which is hooked below. Libraries call it before any
 * constructor of this file could have run. */
static long (*swapper_real)(long number, ...);

static long (*swapper_find(void))(long number, ...)
{
    long (*real)(long, ...) = __atomic_load_n(&swapper_real, __ATOMIC_RELAXED);

    if (real == NULL) {
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
        __atomic_store_n(&swapper_real, real, __ATOMIC_RELAXED);
    }
    return real;
}

#define swapper_call(...)  swapper_find()(__VA_ARGS__)

static void swapper_serve(const struct uffd_msg *msg)
{
    uint64_t page = msg->arg.pagefault.address & ~(uint64_t)(SWAPPER_PAGE - 1);
    struct uffdio_range range = {page, SWAPPER_PAGE};
    struct uffdio_copy copy   = {
        .dst = page,
        .src = (uint64_t)(uintptr_t)(swapper.swap +
                                     (page - (uintptr_t)swapper.ptr)),
        .len = SWAPPER_PAGE
    };

    /* A store to a page that is being taken: it is retried until the page is
     * gone, and then its fault brings the page back */
    if (msg->arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
        ioctl(swapper.fd, UFFDIO_WAKE, &range);
        return;
    }

    if (ioctl(swapper.fd, UFFDIO_COPY, &copy) == 0) {
        atomic_fetch_add(&swapper.num_in, 1);
    } else if (errno != EEXIST) {
        abort();
    }
}

static void *swapper_thread(void *arg)
{
    struct pollfd fds[2] = {{.fd = swapper.fd, .events = POLLIN},
                            {.fd = swapper.quit[0], .events = POLLIN}};
    struct uffd_msg msg;

    for (;;) {
        poll(fds, 2, -1);
        if (fds[1].revents != 0) {
            return arg;
        }
        while (read(swapper.fd, &msg, sizeof(msg)) == sizeof(msg)) {
            swapper_serve(&msg);
        }
    }
}

int swapper_start(char *ptr, size_t length)
{
    struct uffdio_api api      = {.api = UFFD_API};
    struct uffdio_register reg = {
        .range = {.start = (uintptr_t)ptr, .len = length},
        .mode  = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP
    };

    swapper.fd = (int)swapper_call(SYS_userfaultfd,
                                   O_CLOEXEC | O_NONBLOCK |
                                   UFFD_USER_MODE_ONLY);
    if (swapper.fd < 0) {
        return errno;
    }
    if ((ioctl(swapper.fd, UFFDIO_API, &api) != 0) ||
        (ioctl(swapper.fd, UFFDIO_REGISTER, &reg) != 0) ||
        (pipe(swapper.quit) != 0)) {
        return errno;
    }

    swapper.swap   = calloc(1, length);
    swapper.ptr    = ptr;
    swapper.length = length; /* From here on the hooks check this range */
    return pthread_create(&swapper.thread, NULL, swapper_thread, NULL);
}

void swapper_stop(void)
{
    struct uffdio_range range = {(uintptr_t)swapper.ptr, swapper.length};
    size_t i;

    /* Bring all absent pages back for later accesses */
    for (i = 0; i < swapper.length; i += SWAPPER_PAGE) {
        *(volatile char*)(swapper.ptr + i);
    }
    ioctl(swapper.fd, UFFDIO_UNREGISTER, &range);
    swapper.length = 0;
    if (write(swapper.quit[1], "", 1) == 1) {
        pthread_join(swapper.thread, NULL);
    }
    close(swapper.fd);
    free(swapper.swap);
}

uint64_t swapper_num_in(void)
{
    return atomic_load(&swapper.num_in);
}

void swapper_out(size_t page)
{
    char *ptr = swapper.ptr + (page * SWAPPER_PAGE);
    struct uffdio_writeprotect protect = {
        .range = {(uintptr_t)ptr, SWAPPER_PAGE},
        .mode  = UFFDIO_WRITEPROTECT_MODE_WP
    };

    pthread_mutex_lock(&swapper.lock);
    /* This advice has no effect here, but the monitor does not know it as
     * harmless: it takes the page from the NIC and drains */
    madvise(ptr, SWAPPER_PAGE, MADV_KEEPONFORK);
    /* The service stores with the CPU: no store may fall between the copy and
     * the removal of the page. Only a present page can be write-protected. */
    *(volatile char*)ptr;
    if (ioctl(swapper.fd, UFFDIO_WRITEPROTECT, &protect) != 0) {
        abort();
    }
    memcpy(swapper.swap + (page * SWAPPER_PAGE), ptr, SWAPPER_PAGE);
    swapper_call(SYS_madvise, ptr, (size_t)SWAPPER_PAGE, MADV_DONTNEED);
    pthread_mutex_unlock(&swapper.lock);
}


/* ---- hooks ---- */

/* @return Nonzero with the lock held if the range is watched */
static int swapper_touch(const char *ptr, size_t length)
{
    const char *end = ptr + length;

    if ((swapper.length == 0) || (ptr >= swapper.ptr + swapper.length) ||
        (end <= swapper.ptr)) {
        return 0;
    }

    pthread_mutex_lock(&swapper.lock);
    ptr = (ptr > swapper.ptr) ? ptr : swapper.ptr;
    end = (end < swapper.ptr + swapper.length) ? end :
                                                 swapper.ptr + swapper.length;
    for (; ptr < end;
         ptr = (char*)(((uintptr_t)ptr | (SWAPPER_PAGE - 1)) + 1)) {
        *(const volatile char*)ptr;
    }
    return 1;
}

/* Like the C library's function, this one reads more arguments than most
 * callers pass. Missing ones come from the caller's frame, and the kernel
 * ignores them. */
__attribute__((visibility("default"), no_sanitize("address")))
long syscall(long number, ...)
{
    const struct iovec *iov;
    int held = 0;
    va_list args;
    long a[6], ret;
    int i, error;

    va_start(args, number);
    for (i = 0; i < 6; ++i) {
        a[i] = va_arg(args, long);
    }
    va_end(args);

    /* MADV_POPULATE_READ and _WRITE */
    if ((number == SYS_madvise) && ((a[2] == 22) || (a[2] == 23))) {
        held = swapper_touch((const char*)a[0], a[1]);
    } else if ((number == SYS_preadv) && (a[2] == 2)) {
        /* Stores that go through the scratch file: a tag, and the data */
        iov  = (const struct iovec*)a[1] + 1;
        held = swapper_touch(iov->iov_base, iov->iov_len);
    }
    ret   = swapper_call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    error = errno;
    if (held) {
        pthread_mutex_unlock(&swapper.lock);
        errno = error;
    }
    return ret;
}

/* The monitor looks up which pages are resident. Holding the lock ensures that
 * no lookup falls between the hook that takes a page and the page's removal. */
__attribute__((visibility("default")))
ssize_t pread(int fd, void *buffer, size_t size, off_t offset)
{
    int held = (swapper.length != 0), error;
    ssize_t ret;

    if (held) {
        pthread_mutex_lock(&swapper.lock);
    }
    ret   = swapper_call(SYS_pread64, fd, buffer, size, offset);
    error = errno;
    if (held) {
        pthread_mutex_unlock(&swapper.lock);
        errno = error;
    }
    return ret;
}

/* Touches pages only for the service, which accesses its own process. A NIC
 * that accesses another process gets EFAULT for absent pages. */
static ssize_t
swapper_process_vm(long number, pid_t pid, const struct iovec *local,
                   unsigned long num_local, const struct iovec *remote,
                   unsigned long num_remote, unsigned long flags)
{
    int held = 0, error;
    ssize_t ret;

    if ((pid == getpid()) && (num_remote == 1)) {
        held = swapper_touch(remote->iov_base, remote->iov_len);
    }
    ret   = swapper_call(number, pid, local, num_local, remote, num_remote,
                         flags);
    error = errno;
    if (held) {
        pthread_mutex_unlock(&swapper.lock);
        errno = error;
    }
    return ret;
}

__attribute__((visibility("default"))) ssize_t
process_vm_readv(pid_t pid, const struct iovec *local, unsigned long num_local,
                 const struct iovec *remote, unsigned long num_remote,
                 unsigned long flags)
{
    return swapper_process_vm(SYS_process_vm_readv, pid, local, num_local,
                              remote, num_remote, flags);
}

__attribute__((visibility("default"))) ssize_t
process_vm_writev(pid_t pid, const struct iovec *local, unsigned long num_local,
                  const struct iovec *remote, unsigned long num_remote,
                  unsigned long flags)
{
    return swapper_process_vm(SYS_process_vm_writev, pid, local, num_local,
                              remote, num_remote, flags);
}
