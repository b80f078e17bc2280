/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_pagein.h"
#include "ucm/events/nprdma_procmap.h"
#include "ucm/events/nprdma_uffd.h"

#include <ucs/debug/log.h>
#include <ucs/sys/math.h>

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The headers of the C library may be older than these */
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif


/* Words of /proc/self/pagemap */
#define NPRDMA_PAGEMAP_WORD_PRESENT   (1ull << 63)
#define NPRDMA_PAGEMAP_WORD_FILE      (1ull << 61)
#define NPRDMA_PAGEMAP_WORD_WATCHED   (1ull << 57) /* userfaultfd, writes */
#define NPRDMA_PAGEMAP_WORD_EXCLUSIVE (1ull << 56)


/* Pages of one mincore() */
#define NPRDMA_PAGEIN_BATCH 4096


static struct {
    pthread_mutex_t lock;
    unsigned        users;
    int             fd;        /* /proc/self/pagemap */
    int             maps_fd;   /* /proc/self/maps; -1: no PROCMAP_QUERY */
    pid_t           pid;       /* A forked child opens its own files */
    int             uffd;      /* As nprdma_uffd_is_foreign() needs it, or -1 */
    size_t          page_size; /* Of the system */
} nprdma_pagein = {
    .lock    = PTHREAD_MUTEX_INITIALIZER,
    .fd      = -1,
    .maps_fd = -1,
    .uffd    = -1
};


/* @return End of the mapping of an address if that can be written to, or 0 */
static uintptr_t nprdma_pagein_writable_end(uintptr_t address)
{
    nprdma_procmap_query_t query = {
        .size        = sizeof(query),
        .query_flags = NPRDMA_PROCMAP_WRITABLE,
        .query_addr  = address
    };

    return (syscall(SYS_ioctl, nprdma_pagein.maps_fd, NPRDMA_PROCMAP_QUERY,
                    &query) == 0) ? query.vma_end : 0;
}

static void nprdma_pagein_open_maps(void)
{
    int dummy;

    nprdma_pagein.maps_fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if ((nprdma_pagein.maps_fd >= 0) &&
        (nprdma_pagein_writable_end((uintptr_t)&dummy) == 0)) {
        close(nprdma_pagein.maps_fd);
        nprdma_pagein.maps_fd = -1;
    }
}

static void nprdma_pagein_close(void)
{
    close(nprdma_pagein.fd);
    if (nprdma_pagein.uffd >= 0) {
        close(nprdma_pagein.uffd);
    }
    if (nprdma_pagein.maps_fd >= 0) {
        close(nprdma_pagein.maps_fd);
    }
}

ucs_status_t nprdma_pagein_init(void)
{
    ucs_status_t status = UCS_OK;

    pthread_mutex_lock(&nprdma_pagein.lock);
    if ((nprdma_pagein.users > 0) && (nprdma_pagein.pid != getpid())) {
        /* These files show the pages of the parent. They stay open: the child
         * may have closed them, and have others of these numbers. */
        nprdma_pagein.users = 0;
    }
    if (nprdma_pagein.users == 0) {
        nprdma_pagein.fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        if (nprdma_pagein.fd < 0) {
            ucs_error("cannot open /proc/self/pagemap, which shows which pages "
                      "are resident: %m");
            status = UCS_ERR_IO_ERROR;
        } else {
            nprdma_pagein.pid       = getpid();
            nprdma_pagein.page_size = (size_t)sysconf(_SC_PAGESIZE);
            nprdma_pagein_open_maps();
            nprdma_pagein.uffd = nprdma_uffd_open_probe();
        }
    }
    if (status == UCS_OK) {
        ++nprdma_pagein.users;
    }
    pthread_mutex_unlock(&nprdma_pagein.lock);
    return status;
}

void nprdma_pagein_cleanup(void)
{
    pthread_mutex_lock(&nprdma_pagein.lock);
    if (--nprdma_pagein.users == 0) {
        nprdma_pagein_close();
    }
    pthread_mutex_unlock(&nprdma_pagein.lock);
}

void nprdma_pagein_forked(void)
{
    pthread_mutex_init(&nprdma_pagein.lock, NULL);
}

static int nprdma_pagein_madvise(uintptr_t start, size_t count, int advice)
{
    /* Pages of the system may be larger than 4 KiB */
    uintptr_t mask  = nprdma_pagein.page_size - 1;
    uintptr_t first = start & ~mask;
    uintptr_t end   = (start + (count << NPRDMA_PAGE_SHIFT) + mask) & ~mask;

    return (int)syscall(SYS_madvise, first, end - first, advice);
}

/* Read the words of pagemap for pages, of the page size of the system, and
 * return their number */
static size_t nprdma_pagein_words(uintptr_t start, size_t count,
                                  uint64_t *words)
{
    /* pread() is a cancellation point */
    long size = syscall(SYS_pread64, nprdma_pagein.fd, words,
                        count * sizeof(*words),
                        start / nprdma_pagein.page_size * sizeof(*words));

    return (size < 0) ? 0 : (size / sizeof(*words));
}

/* Whether a write to any of the pages certainly causes no page fault: all are
 * present, exclusive to this process and not of a file, and the mapping is
 * writable. In all other cases the kernel decides. */
static int nprdma_pagein_is_writable(uintptr_t start, size_t count)
{
    const uint64_t wanted = NPRDMA_PAGEMAP_WORD_PRESENT |
                            NPRDMA_PAGEMAP_WORD_EXCLUSIVE;
    const uint64_t mask   = wanted | NPRDMA_PAGEMAP_WORD_FILE |
                            NPRDMA_PAGEMAP_WORD_WATCHED;
    uintptr_t end         = start + (count << NPRDMA_PAGE_SHIFT);
    uint64_t words[NPRDMA_PAGEIN_MAX];
    size_t num_words, i;
    uintptr_t at;

    if ((nprdma_pagein.maps_fd < 0) || (count > NPRDMA_PAGEIN_MAX)) {
        return 0;
    }

    start    &= ~(nprdma_pagein.page_size - 1);
    num_words = ucs_div_round_up(end - start, nprdma_pagein.page_size);
    if (nprdma_pagein_words(start, num_words, words) != num_words) {
        return 0;
    }

    for (i = 0; i < num_words; ++i) {
        if ((words[i] & mask) != wanted) {
            return 0;
        }
    }

    for (at = start; (at != 0) && (at < end);) {
        at = nprdma_pagein_writable_end(at);
    }
    return at != 0;
}

size_t nprdma_pagein_fault(uintptr_t start, size_t count, int write,
                           uint64_t *calls_p)
{
    int advice  = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    size_t done = 0;
    size_t piece;

    /* Usually the application has just written the buffer. This check takes a
     * third of the time of MADV_POPULATE_WRITE, which visits every page. */
    if (write && nprdma_pagein_is_writable(start, count)) {
        return count;
    }

    /* The kernel does not report how far it came: the range is halved until one
     * page is left that cannot be brought in */
    for (piece = count; done < count; piece = (piece + 1) / 2) {
        if (piece > count - done) {
            piece = count - done;
        }

        ++*calls_p;
        if (nprdma_pagein_madvise(start + (done << NPRDMA_PAGE_SHIFT), piece,
                                  advice) == 0) {
            done += piece;
        } else if (piece == 1) {
            break;
        }
    }

    return done;
}

/* The count of major page faults does not tell: madvise() tries again, and then
 * the page is there */
long nprdma_pagein_num_waits(void)
{
    struct rusage usage;

    return (getrusage(RUSAGE_THREAD, &usage) == 0) ? usage.ru_nvcsw : 0;
}

void nprdma_pagein_scan(uintptr_t start, size_t count, int write,
                        nprdma_page_set_t *set)
{
    const size_t page_size = nprdma_pagein.page_size;
    uintptr_t first        = start & ~(page_size - 1);
    uintptr_t end          = start + (count << NPRDMA_PAGE_SHIFT);
    uint64_t wanted        = NPRDMA_PAGEMAP_WORD_PRESENT |
                             (write ? NPRDMA_PAGEMAP_WORD_EXCLUSIVE : 0);
    uint64_t mask          = wanted | (write ? NPRDMA_PAGEMAP_WORD_WATCHED : 0);
    uint64_t words[NPRDMA_PAGEIN_MAX];
    size_t num_words, i, word;

    memset(set, 0, sizeof(*set));
    num_words = nprdma_pagein_words(first,
                                    ucs_div_round_up(end - first, page_size),
                                    words);
    for (i = 0; i < count; ++i) {
        word = (start - first + (i << NPRDMA_PAGE_SHIFT)) >>
               __builtin_ctzl(page_size);
        if ((word < num_words) && ((words[word] & mask) == wanted)) {
            set->bits[i / 64] |= (uint64_t)1 << (i % 64);
        }
    }
}

/* The first of the pages that is in memory, or that is not; `count` if there is
 * none. What is not mapped counts as in memory. */
static size_t nprdma_pagein_find(uintptr_t start, size_t count, int in_memory)
{
    const size_t page_size = nprdma_pagein.page_size;
    uintptr_t first        = start & ~(page_size - 1);
    uintptr_t end          = start + (count << NPRDMA_PAGE_SHIFT);
    /* 1: in memory, else 0. mincore(2) leaves the other bits open, and Linux
     * clears them. */
    unsigned char resident[NPRDMA_PAGEIN_BATCH];
    unsigned char *found;
    size_t num;

    for (; first < end; first += num * page_size) {
        num = ucs_min(ucs_div_round_up(end - first, page_size),
                      sizeof(resident));
        if (syscall(SYS_mincore, first, num * page_size, resident) != 0) {
            memset(resident, 1, num);
        }

        found = memchr(resident, in_memory, num);
        if (found != NULL) {
            first += (found - resident) * page_size;
            return (first <= start) ? 0 :
                   ((first - start) >> NPRDMA_PAGE_SHIFT);
        }
    }
    return count;
}

size_t nprdma_pagein_next(uintptr_t start, size_t count)
{
    return nprdma_pagein_find(start, count, 1);
}

size_t nprdma_pagein_in_memory(uintptr_t start, size_t count)
{
    return nprdma_pagein_find(start, count, 0);
}

int nprdma_pagein_is_watched(uintptr_t start, size_t count, int write)
{
    const size_t page_size = nprdma_pagein.page_size;
    const uintptr_t mask   = page_size - 1;
    uint64_t words[NPRDMA_PAGEIN_PROBE_MAX];
    size_t num_words, absent, i;

    num_words = !write ? 0 :
                nprdma_pagein_words(start & ~mask, count, words);
    for (i = 0; i < num_words; ++i) {
        if (words[i] & NPRDMA_PAGEMAP_WORD_WATCHED) {
            return 1;
        }
    }

    /* What is absent in all of the system is not changed by the question */
    absent = nprdma_pagein_in_memory(start, count);
    start  = (start + (absent << NPRDMA_PAGE_SHIFT)) & ~mask;
    return (absent < count) && (nprdma_pagein.uffd >= 0) &&
           nprdma_uffd_is_foreign(nprdma_pagein.uffd,
                                  nprdma_span(start, start + page_size),
                                  page_size);
}

void nprdma_pagein_read_ahead(uintptr_t start, size_t count)
{
    nprdma_pagein_madvise(start, count, MADV_WILLNEED);
}

void nprdma_pagein_evict(uintptr_t start, size_t count)
{
    nprdma_pagein_madvise(start, count, MADV_PAGEOUT);
}
