/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_block.h"
#include "nprdma_pagemap.h"
#include "nprdma_procmap.h"
#include "nprdma_uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Pages whose presence is asked for at once */
#define NPRDMA_BLOCK_BATCH 1024

/* Runs of pages that are asked for at once */
#define NPRDMA_BLOCK_NUM_RUNS 64

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
    size_t huge_size;  /* Of a huge page; 0: there are none */
    int    has_key;
    int    has_query;
    int    maps_fd;    /* Used if has_query */
    int    pagemap_fd; /* -1: no PAGEMAP_SCAN */
    int    uffd;       /* As nprdma_uffd_is_foreign() needs it, or -1 */
} nprdma_block = {
    .maps_fd    = -1,
    .pagemap_fd = -1,
    .uffd       = -1
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

/* As nprdma_pagemap.h has it: pages that are present. *walk_end_p is where the
 * kernel stopped because the runs are full. */
NPRDMA_HOOK
static long nprdma_block_scan(nprdma_span_t span, nprdma_pagemap_run_t *runs,
                              size_t num_runs, uintptr_t *walk_end_p)
{
    nprdma_pagemap_scan_t scan;
    long ret;

    memset(&scan, 0, sizeof(scan));
    scan.size          = sizeof(scan);
    scan.start         = span.start;
    scan.end           = span.end;
    scan.vec           = (uintptr_t)runs;
    scan.vec_len       = num_runs;
    scan.category_mask = NPRDMA_PAGEMAP_PRESENT;
    scan.return_mask   = NPRDMA_PAGEMAP_PRESENT | NPRDMA_PAGEMAP_PFNZERO |
                         NPRDMA_PAGEMAP_HUGE;
    nprdma_pagemap_clear(runs, num_runs);
    ret                = syscall(SYS_ioctl, nprdma_block.pagemap_fd,
                                 NPRDMA_PAGEMAP_SCAN, &scan);
    *walk_end_p        = scan.walk_end;
    return ret;
}

/* @return Bytes of a huge page, or 0 */
static size_t nprdma_block_read_huge_size(void)
{
    FILE *file  = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
                        "re");
    size_t size = 0;

    if (file != NULL) {
        if (fscanf(file, "%zu", &size) != 1) {
            size = 0;
        }
        fclose(file);
    }
    return size;
}

static void nprdma_block_open_pagemap(nprdma_span_t page)
{
    nprdma_pagemap_run_t run;
    uintptr_t walk_end;

    nprdma_block.pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if ((nprdma_block.pagemap_fd >= 0) &&
        (nprdma_block_scan(page, &run, 1, &walk_end) < 0)) {
        close(nprdma_block.pagemap_fd);
        nprdma_block.pagemap_fd = -1;
    }
}

void nprdma_block_init(void)
{
    nprdma_procmap_query_t query;
    char name[NPRDMA_BLOCK_NAME_MAX];
    void *page;

    nprdma_block_cleanup();
    nprdma_block.page_size = (size_t)sysconf(_SC_PAGESIZE);
    nprdma_block.huge_size = nprdma_block_read_huge_size();
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
    nprdma_block_open_pagemap(nprdma_span((uintptr_t)page,
                                          (uintptr_t)page +
                                          nprdma_block.page_size));
    munmap(page, nprdma_block.page_size);
}

static void nprdma_block_close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

void nprdma_block_cleanup(void)
{
    nprdma_block_close_fd(&nprdma_block.maps_fd);
    nprdma_block_close_fd(&nprdma_block.pagemap_fd);
    nprdma_block_close_fd(&nprdma_block.uffd);
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
nprdma_lazy_result_t nprdma_block_close(nprdma_span_t block)
{
    if (!nprdma_block_is_unlocked(block) || !nprdma_block_is_whole(block, 1)) {
        return NPRDMA_LAZY_REFUSED;
    }

    /* The program waits for UFFD_EVENT_UNMAP */
    if ((nprdma_block.uffd >= 0) &&
        nprdma_uffd_is_foreign(nprdma_block.uffd, block,
                               nprdma_block.has_query ?
                               nprdma_block.page_size : 0)) {
        return NPRDMA_LAZY_REFUSED;
    }

    /* No thread writes to the pages any more when the kernel may take them */
    if (!nprdma_block_protect(block, 0) ||
        (syscall(SYS_madvise, block.start, nprdma_block_length(block),
                 MADV_FREE) != 0)) {
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
static int nprdma_block_has_data(uintptr_t start, uintptr_t end)
{
    const uint64_t *word;

    for (word = (const uint64_t*)start; word < (const uint64_t*)end; ++word) {
        if (*word != 0) {
            return 1;
        }
    }

    return 0;
}

NPRDMA_HOOK
static void nprdma_block_zero_run(uintptr_t start, uintptr_t end,
                                  nprdma_block_page_t kind)
{
    if (start >= end) {
        return;
    }

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

/* Reads a word of each page, and more of one that begins with zeros */
NPRDMA_HOOK
static void nprdma_block_zero_by_read(nprdma_span_t span)
{
    const size_t page_size   = nprdma_block.page_size;
    nprdma_block_page_t kind = NPRDMA_BLOCK_ZERO;
    uintptr_t run            = span.start;
    unsigned char present[NPRDMA_BLOCK_BATCH];
    nprdma_block_page_t next;
    uintptr_t page, end;
    size_t i, count;

    for (page = span.start; page < span.end; page = end) {
        count = (span.end - page) / page_size;
        count = (count < NPRDMA_BLOCK_BATCH) ? count : NPRDMA_BLOCK_BATCH;
        end   = page + (count * page_size);
        if (syscall(SYS_mincore, page, end - page, present) != 0) {
            memset(present, 1, count);
        }

        for (i = 0; i < count; ++i, page += page_size) {
            next = !(present[i] & 1) ? NPRDMA_BLOCK_ABSENT :
                   nprdma_block_has_data(page, page + page_size) ?
                   NPRDMA_BLOCK_USED : NPRDMA_BLOCK_ZERO;
            if (next != kind) {
                nprdma_block_zero_run(run, page, kind);
                run  = page;
                kind = next;
            }
        }
    }
    nprdma_block_zero_run(run, span.end, kind);
}

/* Not all kernels tell a huge page of zeros */
NPRDMA_HOOK
static void nprdma_block_zero_huge(uintptr_t start, uintptr_t end)
{
    uintptr_t next;

    for (; start < end; start = next) {
        next = (start | (nprdma_block.huge_size - 1)) + 1;
        next = (next < end) ? next : end;
        if (nprdma_block_has_data(start, next)) {
            nprdma_block_zero_run(start, next, NPRDMA_BLOCK_USED);
        }
    }
}

/* Makes no page present that is not, and writes to no page that is zero: the
 * kernel may have one such page for all */
NPRDMA_HOOK
static void nprdma_block_zero(nprdma_span_t block)
{
    nprdma_pagemap_run_t runs[NPRDMA_BLOCK_NUM_RUNS];
    uintptr_t at = block.start;
    uintptr_t walk_end;
    long num_runs, i;

    while (at < block.end) {
        num_runs = (nprdma_block.pagemap_fd < 0) ? -1 :
                   nprdma_block_scan(nprdma_span(at, block.end), runs,
                                     NPRDMA_BLOCK_NUM_RUNS, &walk_end);
        if ((num_runs < 0) || (walk_end <= at)) {
            nprdma_block_zero_by_read(nprdma_span(at, block.end));
            return;
        }

        for (i = 0; i < num_runs; ++i) {
            nprdma_block_zero_run(at, runs[i].start, NPRDMA_BLOCK_ABSENT);
            at = runs[i].end;
            if (runs[i].categories & NPRDMA_PAGEMAP_PFNZERO) {
                continue;
            } else if (runs[i].categories & NPRDMA_PAGEMAP_HUGE) {
                nprdma_block_zero_huge(runs[i].start, at);
            } else {
                nprdma_block_zero_run(runs[i].start, at, NPRDMA_BLOCK_USED);
            }
        }
        nprdma_block_zero_run(at, walk_end, NPRDMA_BLOCK_ABSENT);
        at = walk_end;
    }
}

NPRDMA_HOOK
nprdma_lazy_result_t nprdma_block_open(nprdma_span_t block)
{
    if (!nprdma_block_is_whole(block, 0)) {
        return NPRDMA_LAZY_LOST;
    }

    if (!nprdma_block_new_is_unlocked() || !nprdma_block_protect(block, 1)) {
        return NPRDMA_LAZY_REFUSED;
    }

    nprdma_block_zero(block);
    return NPRDMA_LAZY_DONE;
}

NPRDMA_HOOK
nprdma_lazy_result_t nprdma_block_unmap(nprdma_span_t block)
{
    if (!nprdma_block_is_whole(block, 0)) {
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

    works = (nprdma_block_close(page) == NPRDMA_LAZY_DONE) &&
            (nprdma_block_open(page) == NPRDMA_LAZY_DONE);
    syscall(SYS_munmap, page.start, nprdma_block.page_size);
    return works;
}
