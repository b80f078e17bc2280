/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_scratch.h"
#include "nprdma_file.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>


/* The caller holds the service lock of an MD: few stores at a time */
#define NPRDMA_SCRATCH_NUM  16

/* Divides the page size of the system, or is equal to it */
#define NPRDMA_SCRATCH_ALIGN  4096

#define NPRDMA_SCRATCH_BYTES  (NPRDMA_SCRATCH_NUM * \
                               sizeof(nprdma_scratch_buf_t))


typedef struct nprdma_scratch_buf {
    char     unused[NPRDMA_SCRATCH_ALIGN - sizeof(uint64_t)];
    /* Identifies our file. A program that closes all descriptors closes ours,
     * too, and the number of the descriptor may then be that of another
     * file. */
    uint64_t tag;
    char     data[NPRDMA_SCRATCH_SIZE]; /* Aligned: copied twice as fast */
} nprdma_scratch_buf_t;


static struct {
    int                   fd;      /* Not valid without buffers */
    nprdma_scratch_buf_t *bufs;    /* The file, mapped */
    pid_t                 pid;     /* Process that created it */
    uint64_t              tag;     /* Of all buffers */
    atomic_int            is_lost; /* The descriptor is not ours any more */
    atomic_int            claimed[NPRDMA_SCRATCH_NUM];
} nprdma_scratch;


/* System calls without the C library. UCM would report the mapping to our
 * hooks, and ThreadSanitizer would attribute the kernel's accesses to
 * application memory to this thread. */
static int nprdma_scratch_open(void)
{
    long base;
    int fd;

    fd = nprdma_file_create("nprdma-scratch", NPRDMA_SCRATCH_BYTES);
    if (fd < 0) {
        return 0;
    }

    base = syscall(SYS_mmap, NULL, NPRDMA_SCRATCH_BYTES, PROT_READ | PROT_WRITE,
                   MAP_SHARED, fd, 0);
    if (base == -1) {
        close(fd);
        return 0;
    }

    nprdma_scratch.fd    = fd;
    nprdma_scratch.bufs = (nprdma_scratch_buf_t*)base;
    nprdma_scratch.pid   = getpid();
    /* Two processes must not store by the same file at the same time */
    syscall(SYS_madvise, base, NPRDMA_SCRATCH_BYTES, MADV_DONTFORK);
    return 1;
}

static int nprdma_scratch_works(void)
{
    uint64_t source = 1;
    uint64_t target = 0;

    return nprdma_scratch_store((uintptr_t)&target, &source,
                                sizeof(source)) && (target == source);
}

ucs_status_t nprdma_scratch_init(void)
{
    unsigned i;

    nprdma_scratch_cleanup();
    if ((getrandom(&nprdma_scratch.tag, sizeof(nprdma_scratch.tag),
                   GRND_NONBLOCK) != sizeof(nprdma_scratch.tag)) ||
        !nprdma_scratch_open()) {
        return UCS_ERR_UNSUPPORTED;
    }

    atomic_store(&nprdma_scratch.is_lost, 0);
    for (i = 0; i < NPRDMA_SCRATCH_NUM; ++i) {
        nprdma_scratch.bufs[i].tag = nprdma_scratch.tag;
        atomic_store(&nprdma_scratch.claimed[i], 0);
    }

    if (!nprdma_scratch_works()) {
        nprdma_scratch_cleanup();
        return UCS_ERR_UNSUPPORTED;
    }

    return UCS_OK;
}

void nprdma_scratch_cleanup(void)
{
    if (nprdma_scratch.bufs == NULL) {
        return;
    }

    /* A child has the parent's descriptor, but not its mapping */
    if (nprdma_scratch.pid == getpid()) {
        syscall(SYS_munmap, nprdma_scratch.bufs, NPRDMA_SCRATCH_BYTES);
    }
    if (!atomic_load(&nprdma_scratch.is_lost)) {
        close(nprdma_scratch.fd);
    }
    nprdma_scratch.bufs = NULL;
}

static nprdma_scratch_buf_t *nprdma_scratch_claim(void)
{
    unsigned i;

    for (i = 0; i < NPRDMA_SCRATCH_NUM; ++i) {
        if (!atomic_exchange_explicit(&nprdma_scratch.claimed[i], 1,
                                      memory_order_acquire)) {
            return &nprdma_scratch.bufs[i];
        }
    }
    return NULL;
}

static void nprdma_scratch_release(const nprdma_scratch_buf_t *buf)
{
    atomic_store_explicit(
            &nprdma_scratch.claimed[buf - nprdma_scratch.bufs], 0,
            memory_order_release);
}

int nprdma_scratch_store(uintptr_t address, const void *data, size_t length)
{
    uint64_t tag       = ~nprdma_scratch.tag;
    struct iovec iov[] = {
        { .iov_base = &tag, .iov_len = sizeof(tag) },
        { .iov_base = (void*)address, .iov_len = length }
    };
    nprdma_scratch_buf_t *buf;
    long ret;

    if ((nprdma_scratch.bufs == NULL) || (length > NPRDMA_SCRATCH_SIZE) ||
        atomic_load_explicit(&nprdma_scratch.is_lost, memory_order_relaxed)) {
        return 0;
    }

    buf = nprdma_scratch_claim();
    if (buf == NULL) {
        return 0;
    }

    memcpy(buf->data, data, length);
    ret = syscall(SYS_preadv, nprdma_scratch.fd, iov, 2,
                  (char*)&buf->tag - (char*)nprdma_scratch.bufs, 0L);
    nprdma_scratch_release(buf);
    if ((tag != nprdma_scratch.tag) &&
        !((ret < 0) && (errno == EFAULT))) {
        /* The caller stores the bytes in another way */
        atomic_store(&nprdma_scratch.is_lost, 1);
        return 0;
    }
    return ret == (long)(sizeof(tag) + length);
}
