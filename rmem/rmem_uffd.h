/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_UFFD_H_
#define RMEM_UFFD_H_

/* The memory of a window, whose accesses userfaultfd reports. Functions that
 * return a status print why they fail. */

#include "rmem_wire.h"

#include <stdbool.h>

typedef struct {
    int    fd;    /* -1: none */
    char   *base; /* NULL: none */
    size_t bytes;
} rmem_uffd_t;

/* is_kernel: accesses of the kernel are reported, too, and all by the
 * descriptor; else those of threads, by SIGBUS. Also after a failure it has to
 * be closed. */
int rmem_uffd_open(rmem_uffd_t *uffd, size_t bytes, bool is_kernel);
void rmem_uffd_close(rmem_uffd_t *uffd);

/* Pages that are there are protected from writes, or may be written to. */
int rmem_uffd_protect(const rmem_uffd_t *uffd, uint32_t page, uint32_t count,
                      bool is_protected);

/* Pages come with what is at source. */
int rmem_uffd_copy(const rmem_uffd_t *uffd, uint32_t page, uint32_t count,
                   const char *source, bool is_protected);

/* Pages leave. */
int rmem_uffd_drop(const rmem_uffd_t *uffd, uint32_t page, uint32_t count);

/* Threads that wait for the page at an address access it again. */
void rmem_uffd_wake(const rmem_uffd_t *uffd, const void *page);

static inline bool rmem_uffd_has(const rmem_uffd_t *uffd, const void *address)
{
    return (size_t)((const char*)address - uffd->base) < uffd->bytes;
}

static inline char *rmem_uffd_page(const rmem_uffd_t *uffd, uint32_t page)
{
    return uffd->base + (size_t)page * RMEM_PAGE_SIZE;
}

#endif
