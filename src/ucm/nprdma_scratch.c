/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_scratch.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Stores are made by whoever holds the service of an MD: few at a time */
#define NPRDMA_SCRATCH_NUM  16

#define NPRDMA_SCRATCH_BYTES  ((size_t)NPRDMA_SCRATCH_NUM * NPRDMA_SCRATCH_SIZE)


static struct {
    int        fd;    /* Not valid without base */
    char       *base; /* The file, mapped */
    pid_t      pid;   /* Of whom it is */
    atomic_int claimed[NPRDMA_SCRATCH_NUM];
} nprdma_scratch;


/* Where files may not be large the kernel sends a signal to who makes one */
static int nprdma_scratch_is_allowed(void)
{
    struct rlimit limit;

    return (getrlimit(RLIMIT_FSIZE, &limit) == 0) &&
           (limit.rlim_cur >= NPRDMA_SCRATCH_BYTES);
}

/* No call goes through libc: UCM would report the mapping, and ThreadSanitizer
 * take what the kernel does to application memory for our own doing */
static int nprdma_scratch_open(void)
{
    long base;
    int fd;

    fd = memfd_create("nprdma-scratch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return 0;
    }

    if ((ftruncate(fd, NPRDMA_SCRATCH_BYTES) == 0) &&
        (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ==
         0)) {
        base = syscall(SYS_mmap, NULL, NPRDMA_SCRATCH_BYTES,
                       PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base != -1) {
            nprdma_scratch.fd   = fd;
            nprdma_scratch.base = (char*)base;
            nprdma_scratch.pid  = getpid();
            /* Two processes in one file would mix what they store */
            syscall(SYS_madvise, base, NPRDMA_SCRATCH_BYTES, MADV_DONTFORK);
            return 1;
        }
    }

    close(fd);
    return 0;
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
    for (i = 0; i < NPRDMA_SCRATCH_NUM; ++i) {
        atomic_store(&nprdma_scratch.claimed[i], 0);
    }

    if (!nprdma_scratch_is_allowed() || !nprdma_scratch_open()) {
        return UCS_ERR_UNSUPPORTED;
    }

    if (!nprdma_scratch_works()) {
        nprdma_scratch_cleanup();
        return UCS_ERR_UNSUPPORTED;
    }

    return UCS_OK;
}

void nprdma_scratch_cleanup(void)
{
    if (nprdma_scratch.base == NULL) {
        return;
    }

    /* A child has the parent's descriptor, but not its mapping */
    if (nprdma_scratch.pid == getpid()) {
        syscall(SYS_munmap, nprdma_scratch.base, NPRDMA_SCRATCH_BYTES);
    }
    close(nprdma_scratch.fd);
    nprdma_scratch.base = NULL;
}

static int nprdma_scratch_claim(unsigned *index_p)
{
    unsigned i;

    for (i = 0; i < NPRDMA_SCRATCH_NUM; ++i) {
        if (!atomic_exchange_explicit(&nprdma_scratch.claimed[i], 1,
                                      memory_order_acquire)) {
            *index_p = i;
            return 1;
        }
    }
    return 0;
}

int nprdma_scratch_store(uintptr_t address, const void *data, size_t length)
{
    unsigned index;
    size_t offset;
    long ret;

    if ((nprdma_scratch.base == NULL) || (length > NPRDMA_SCRATCH_SIZE) ||
        !nprdma_scratch_claim(&index)) {
        return 0;
    }

    offset = index * (size_t)NPRDMA_SCRATCH_SIZE;
    memcpy(nprdma_scratch.base + offset, data, length);
    ret = syscall(SYS_pread64, nprdma_scratch.fd, address, length, offset);
    atomic_store_explicit(&nprdma_scratch.claimed[index], 0,
                          memory_order_release);
    return ret == (long)length;
}
