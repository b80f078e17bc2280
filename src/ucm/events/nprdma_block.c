/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_block.h"
#include "nprdma_procmap.h"
#include "nprdma_uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Pages whose presence is asked for at once */
#define NPRDMA_BLOCK_BATCH 1024

/* Longer than any name that prctl(PR_SET_VMA_ANON_NAME) gives */
#define NPRDMA_BLOCK_NAME_MAX 128

#define NPRDMA_BLOCK_MPOL_DEFAULT 0


/* Readable, writable; not executable, shared */
#define NPRDMA_BLOCK_RW \
    (NPRDMA_PROCMAP_READABLE | NPRDMA_PROCMAP_WRITABLE)


/* What a page of a block needs to be zero */
typedef enum nprdma_block_page {
    NPRDMA_BLOCK_ABSENT, /* Nothing, but it may be in swap */
    NPRDMA_BLOCK_ZERO,
    NPRDMA_BLOCK_USED
} nprdma_block_page_t;


static struct {
    size_t page_size;
    int    has_key;
    int    has_query;
    int    maps_fd; /* Used if has_query */
    int    uffd;    /* As nprdma_uffd_is_foreign() needs it, or -1 */
} nprdma_block = {
    .maps_fd = -1,
    .uffd    = -1
};


/* ---- what the kernel has ---- */

NPRDMA_HOOK
static int nprdma_block_ask(uintptr_t address, nprdma_procmap_query_t *query,
                            char *name)
{
    memset(query, 0, sizeof(*query));
    query->size          = sizeof(*query);
    query->query_addr    = address;
    query->vma_name_addr = (uintptr_t)name;
    query->vma_name_size = NPRDMA_BLOCK_NAME_MAX;
    return ioctl(nprdma_block.maps_fd, NPRDMA_PROCMAP_QUERY, query);
}

void nprdma_block_init(void)
{
    nprdma_procmap_query_t query;
    char name[NPRDMA_BLOCK_NAME_MAX];
    void *page;

    nprdma_block_cleanup();
    nprdma_block.page_size = (size_t)sysconf(_SC_PAGESIZE);
    nprdma_block.maps_fd   = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    nprdma_block.uffd      = nprdma_uffd_open_probe();
    page = mmap(NULL, nprdma_block.page_size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return;
    }

    nprdma_block.has_query = (nprdma_block.maps_fd >= 0) &&
                             (nprdma_block_ask((uintptr_t)page, &query,
                                               name) == 0);
    nprdma_block.has_key   = (syscall(SYS_pkey_mprotect, page,
                                      nprdma_block.page_size,
                                      PROT_READ | PROT_WRITE, 0) == 0);
    munmap(page, nprdma_block.page_size);
}

void nprdma_block_cleanup(void)
{
    if (nprdma_block.maps_fd >= 0) {
        close(nprdma_block.maps_fd);
        nprdma_block.maps_fd = -1;
    }
    if (nprdma_block.uffd >= 0) {
        close(nprdma_block.uffd);
        nprdma_block.uffd = -1;
    }
    nprdma_block.has_query = 0;
}


/* ---- what a block is ---- */

NPRDMA_HOOK
static size_t nprdma_block_length(nprdma_span_t block)
{
    return block.end - block.start;
}

/*
 * Whether one anonymous mapping without a name covers the block. The kernel
 * merges neighbours, so the mapping may be larger, but if a border is inside of
 * the block, its parts differ.
 */
NPRDMA_HOOK
static int nprdma_block_is_whole(nprdma_span_t block, int is_accessible)
{
    nprdma_procmap_query_t query;
    char name[NPRDMA_BLOCK_NAME_MAX];

    if (!nprdma_block.has_query) {
        return 1;
    }

    return (nprdma_block_ask(block.start, &query, name) == 0) &&
           (query.vma_end >= block.end) && (query.inode == 0) &&
           (query.vma_page_size == nprdma_block.page_size) &&
           (query.vma_name_size == 0) &&
           (query.vma_flags == (is_accessible ? NPRDMA_BLOCK_RW : 0));
}

/* A system call that fails for locked memory (EBUSY) and holes (ENOMEM), and
 * does nothing to private memory: see msync(2) */
NPRDMA_HOOK
static int nprdma_block_is_unlocked(nprdma_span_t block)
{
    return syscall(SYS_msync, block.start, nprdma_block_length(block),
                   MS_ASYNC | MS_INVALIDATE) == 0;
}

/* A page of our own, or an empty span */
NPRDMA_HOOK
static nprdma_span_t nprdma_block_new_page(long prot)
{
    long page = syscall(SYS_mmap, NULL, nprdma_block.page_size, prot,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return (page == -1) ? nprdma_span(0, 0) :
           nprdma_span((uintptr_t)page,
                       (uintptr_t)page + nprdma_block.page_size);
}

/* Whether mlockall(MCL_FUTURE) or a policy of the system locks new memory */
NPRDMA_HOOK
static int nprdma_block_new_is_unlocked(void)
{
    nprdma_span_t page = nprdma_block_new_page(PROT_NONE);
    int is_unlocked;

    if (page.end == 0) {
        return 0;
    }

    is_unlocked = nprdma_block_is_unlocked(page);
    syscall(SYS_munmap, page.start, nprdma_block.page_size);
    return is_unlocked;
}


/* ---- changes ---- */

/* Also gives the pages the key of new memory */
NPRDMA_HOOK
static int nprdma_block_protect(nprdma_span_t block, int is_accessible)
{
    long prot = is_accessible ? (PROT_READ | PROT_WRITE) : PROT_NONE;

    return (nprdma_block.has_key ?
            syscall(SYS_pkey_mprotect, block.start, nprdma_block_length(block),
                    prot, 0) :
            syscall(SYS_mprotect, block.start, nprdma_block_length(block),
                    prot)) == 0;
}

NPRDMA_HOOK
nprdma_lazy_result_t nprdma_block_close(nprdma_span_t block, int is_open)
{
    if (!nprdma_block_is_unlocked(block) || !nprdma_block_is_whole(block, 1)) {
        return NPRDMA_LAZY_REFUSED;
    }

    /* The program waits for UFFD_EVENT_UNMAP */
    if ((nprdma_block.uffd >= 0) &&
        nprdma_uffd_is_foreign(nprdma_block.uffd, block)) {
        return NPRDMA_LAZY_REFUSED;
    }

    if (!nprdma_block_protect(block, is_open)) {
        /* Sealed, or too many mappings: it may stay mapped */
        nprdma_block_protect(block, 1);
        return NPRDMA_LAZY_REFUSED;
    }

    /* Fails only where the process may not set a policy at all */
    syscall(SYS_mbind, block.start, nprdma_block_length(block),
            NPRDMA_BLOCK_MPOL_DEFAULT, NULL, 0, 0);
    return NPRDMA_LAZY_DONE;
}

NPRDMA_HOOK
static nprdma_block_page_t
nprdma_block_page_kind(uintptr_t page, unsigned char presence)
{
    const uint64_t *words = (const uint64_t*)page;
    size_t i;

    if (!(presence & 1)) {
        return NPRDMA_BLOCK_ABSENT;
    }

    for (i = 0; i < nprdma_block.page_size / sizeof(*words); ++i) {
        if (words[i] != 0) {
            return NPRDMA_BLOCK_USED;
        }
    }

    return NPRDMA_BLOCK_ZERO;
}

NPRDMA_HOOK
static void nprdma_block_zero_run(uintptr_t start, uintptr_t end,
                                  nprdma_block_page_t kind)
{
    switch (kind) {
    case NPRDMA_BLOCK_ABSENT:
        syscall(SYS_madvise, start, end - start, MADV_DONTNEED);
        break;
    case NPRDMA_BLOCK_USED:
        memset((void*)start, 0, end - start);
        break;
    default:
        break;
    }
}

/* Makes no page present that is not, and writes to no page that is zero: the
 * kernel may have one such page for all */
NPRDMA_HOOK
static void nprdma_block_zero(nprdma_span_t block)
{
    const size_t page_size   = nprdma_block.page_size;
    nprdma_block_page_t kind = NPRDMA_BLOCK_ZERO;
    uintptr_t run            = block.start;
    unsigned char present[NPRDMA_BLOCK_BATCH];
    nprdma_block_page_t next;
    uintptr_t page;
    size_t i, count;

    for (page = block.start; page < block.end; page += count * page_size) {
        count = (block.end - page) / page_size;
        count = (count < NPRDMA_BLOCK_BATCH) ? count : NPRDMA_BLOCK_BATCH;
        if (syscall(SYS_mincore, page, count * page_size, present) != 0) {
            memset(present, 1, count);
        }

        for (i = 0; i < count; ++i) {
            next = nprdma_block_page_kind(page + (i * page_size), present[i]);
            if (next != kind) {
                nprdma_block_zero_run(run, page + (i * page_size), kind);
                run  = page + (i * page_size);
                kind = next;
            }
        }
    }
    nprdma_block_zero_run(run, block.end, kind);
}

NPRDMA_HOOK
nprdma_lazy_result_t nprdma_block_open(nprdma_span_t block, int is_open)
{
    if (!nprdma_block_is_whole(block, is_open)) {
        return NPRDMA_LAZY_LOST;
    }

    if (!nprdma_block_new_is_unlocked() || !nprdma_block_protect(block, 1)) {
        return NPRDMA_LAZY_REFUSED;
    }

    nprdma_block_zero(block);
    return NPRDMA_LAZY_DONE;
}

NPRDMA_HOOK
nprdma_lazy_result_t nprdma_block_unmap(nprdma_span_t block, int is_open)
{
    if (!nprdma_block_is_whole(block, is_open)) {
        return NPRDMA_LAZY_LOST;
    }

    if (syscall(SYS_munmap, block.start, nprdma_block_length(block)) == 0) {
        return NPRDMA_LAZY_DONE;
    }

    /* The program has sealed it since it unmapped it */
    return (errno == EPERM) ? NPRDMA_LAZY_LOST : NPRDMA_LAZY_REFUSED;
}

int nprdma_block_works(void)
{
    nprdma_span_t page = nprdma_block_new_page(PROT_READ | PROT_WRITE);
    int works;

    if (page.end == 0) {
        return 0;
    }

    works = (nprdma_block_close(page, 0) == NPRDMA_LAZY_DONE) &&
            (nprdma_block_open(page, 0) == NPRDMA_LAZY_DONE);
    syscall(SYS_munmap, page.start, nprdma_block.page_size);
    return works;
}
