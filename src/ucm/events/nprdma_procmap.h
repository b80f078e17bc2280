/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PROCMAP_H_
#define NPRDMA_PROCMAP_H_

#include <stdint.h>
#include <sys/ioctl.h>

/*
 * PROCMAP_QUERY, an ioctl of /proc/self/maps since Linux 6.11, which older
 * headers lack (include/uapi/linux/fs.h). It fills the fields vma_xx with the
 * mapping that has an address.
 */

/* Of query_flags: only a mapping with this; and of vma_flags */
#define NPRDMA_PROCMAP_READABLE  (1u << 0)
#define NPRDMA_PROCMAP_WRITABLE  (1u << 1)

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
    uint32_t vma_name_size; /* In: of the buffer. Out: of the name with its end,
                             * or 0 */
    uint32_t build_id_size;
    uint64_t vma_name_addr;
    uint64_t build_id_addr;
} nprdma_procmap_query_t;

#define NPRDMA_PROCMAP_QUERY _IOWR('f', 17, nprdma_procmap_query_t)

#endif
