/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_huge.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>


/* Position in the flags of mmap() of the logarithm of the page size, or 0 */
#define NPRDMA_HUGE_SHIFT 26
#define NPRDMA_HUGE_MASK  0x3f

/* No huge page of any architecture is smaller, and none is larger */
#define NPRDMA_HUGE_MIN ((uintptr_t)64 * 1024)
#define NPRDMA_HUGE_MAX ((uintptr_t)16 << 30)


static struct {
    size_t page_size;    /* Of ordinary pages */
    size_t default_size; /* Of huge pages; as page_size if there are none */
} nprdma_huge = {
    .page_size    = 4096,
    .default_size = 4096
};


void nprdma_huge_init(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    size_t size_kb;
    char line[128];

    nprdma_huge.page_size    = (size_t)sysconf(_SC_PAGESIZE);
    nprdma_huge.default_size = nprdma_huge.page_size;
    if (file == NULL) {
        return;
    }

    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "Hugepagesize: %zu kB", &size_kb) == 1) {
            nprdma_huge.default_size = size_kb * 1024;
        }
    }
    fclose(file);
}

/* Ends at UINTPTR_MAX if it would wrap around */
NPRDMA_HOOK
static nprdma_span_t nprdma_huge_span(uintptr_t address, size_t length,
                                      size_t page_size)
{
    uintptr_t mask = page_size - 1;
    uintptr_t end  = address + length;
    nprdma_span_t span;

    span.start = address & ~mask;
    span.end   = (end + mask) & ~mask;
    if ((end < address) || (span.end < end)) {
        span.end = UINTPTR_MAX;
    }

    return span;
}

NPRDMA_HOOK
nprdma_span_t nprdma_huge_pages(const void *address, size_t length)
{
    return nprdma_huge_span((uintptr_t)address, length, nprdma_huge.page_size);
}

/* Whether huge pages can begin at an address */
NPRDMA_HOOK
static int nprdma_huge_is_aligned(uintptr_t address)
{
    return (address & (NPRDMA_HUGE_MIN - 1)) == 0;
}

NPRDMA_HOOK
size_t nprdma_huge_mmap_page(uintptr_t address, int flags, int fd)
{
    unsigned shift = ((unsigned)flags >> NPRDMA_HUGE_SHIFT) & NPRDMA_HUGE_MASK;
    size_t size    = nprdma_huge.page_size;
    int error      = errno;
    struct statfs fs;

    if (!nprdma_huge_is_aligned(address)) {
        return size;
    }

    if (flags & MAP_ANONYMOUS) {
        if (flags & MAP_HUGETLB) {
            size = (shift == 0) ? nprdma_huge.default_size :
                                  ((size_t)1 << shift);
        }
    } else if ((fstatfs(fd, &fs) == 0) && (fs.f_type == HUGETLBFS_MAGIC)) {
        /* Here the flag, and the size in the flags, have no effect */
        size = (size_t)fs.f_bsize;
    }

    errno = error;
    return size;
}

/* Whether an address is inside of a huge page. mremap() of an ordinary page to
 * its own size changes nothing, but in a mapping of huge pages it fails with
 * EINVAL unless the address is a multiple of their size. Other ways to find the
 * page size either walk all page tables of the process (smaps), or need Linux
 * 6.11 (PROCMAP_QUERY). Before Linux 5.16 mremap() does not support huge pages;
 * then the call that is about to be made fails, too. What is not mapped is
 * asked for before, because valgrind 3.19 crashes in its mremap(). */
NPRDMA_HOOK
static int nprdma_huge_is_inside(uintptr_t address)
{
    unsigned char present;

    return (syscall(SYS_mincore, address, nprdma_huge.page_size, &present) ==
            0) &&
           (syscall(SYS_mremap, address, nprdma_huge.page_size,
                    nprdma_huge.page_size, 0, 0) == -1) && (errno == EINVAL);
}

NPRDMA_HOOK
size_t nprdma_huge_page_at(uintptr_t address)
{
    size_t size = nprdma_huge.page_size;
    int error   = errno;

    if (nprdma_huge_is_aligned(address)) {
        /* The first multiple at which a page may begin is the size of one */
        while ((size < NPRDMA_HUGE_MAX) &&
               nprdma_huge_is_inside(address + size)) {
            size *= 2;
        }
    }

    errno = error;
    return size;
}

NPRDMA_HOOK
nprdma_span_t nprdma_huge_mapped(const void *address, size_t length)
{
    return nprdma_huge_span((uintptr_t)address, length,
                            nprdma_huge_page_at((uintptr_t)address));
}

NPRDMA_HOOK
nprdma_span_t nprdma_huge_mmap(const void *address, size_t length, int flags,
                               int fd)
{
    return nprdma_huge_span((uintptr_t)address, length,
                            nprdma_huge_mmap_page((uintptr_t)address, flags,
                                                  fd));
}

NPRDMA_HOOK
nprdma_span_t nprdma_huge_widen(nprdma_span_t span)
{
    if (span.start & (nprdma_huge.default_size - 1)) {
        return span;
    }

    return nprdma_huge_span(span.start, span.end - span.start,
                            nprdma_huge.default_size);
}
