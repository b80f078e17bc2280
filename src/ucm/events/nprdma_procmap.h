/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PROCMAP_H_
#define NPRDMA_PROCMAP_H_

#include "nprdma_hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* PROCMAP_QUERY, an ioctl of /proc/self/maps since Linux 6.11, which older
 * headers lack (include/uapi/linux/fs.h). It fills the fields vma_xx with the
 * mapping that has an address. */

/* Of query_flags: only a mapping with this */
#define NPRDMA_PROCMAP_WRITABLE (1u << 1)

typedef struct nprdma_procmap_query {
    uint64_t size; /* Of this structure */
    uint64_t query_flags;
    uint64_t query_addr;
    uint64_t vma_start;
    uint64_t vma_end;
    uint64_t vma_flags;
    uint64_t vma_page_size;
    uint64_t vma_offset;
    uint64_t inode;
    uint32_t dev_major;
    uint32_t dev_minor;
    /* In: of the buffer. Out: of the name with its end, or 0 */
    uint32_t vma_name_size;
    uint32_t build_id_size;
    uint64_t vma_name_addr;
    uint64_t build_id_addr;
} nprdma_procmap_query_t;

#define NPRDMA_PROCMAP_QUERY _IOWR('f', 17, nprdma_procmap_query_t)


/* Whether one private anonymous mapping that allows no access covers a span;
 * nonzero also if the kernel does not tell. It merges neighbours, so the
 * mapping may be larger. For memory hooks; changes errno. */
NPRDMA_HOOK
static inline int nprdma_procmap_is_inaccessible(nprdma_span_t span)
{
    nprdma_procmap_query_t query;
    long fd, error;

    memset(&query, 0, sizeof(query));
    query.size       = sizeof(query);
    query.query_addr = span.start;

    fd    = syscall(SYS_openat, AT_FDCWD, "/proc/self/maps",
                    O_RDONLY | O_CLOEXEC);
    error = (syscall(SYS_ioctl, fd, NPRDMA_PROCMAP_QUERY, &query) == 0) ? 0 :
                                                                          errno;
    syscall(SYS_close, fd);
    return (error == 0) ? ((query.vma_end >= span.end) && (query.inode == 0) &&
                           (query.vma_flags == 0)) :
                          (error != ENOENT);
}

#endif
