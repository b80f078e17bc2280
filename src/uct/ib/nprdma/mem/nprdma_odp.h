/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ODP_H_
#define UCT_NPRDMA_ODP_H_

#include "nprdma_mem_md.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"

#include <ucs/sys/compiler_def.h>

#include <pthread.h>
#include <stdatomic.h>

/*
 * Memory regions with on-demand paging, for devices that have it where neither
 * the kernel module nor its emulation watches memory. The device follows the
 * addresses of the process: it brings absent pages in, waits for them, and
 * learns from the kernel what is taken away. So nothing is pinned and nothing
 * has to be verified. An access that cannot be repaired fails on the device.
 *
 * Peers get memory regions of one registration, to the byte. For the process's
 * own operations there are memory regions without remote rights: of the whole
 * address space if the device has implicit regions, else of large parts of it,
 * which are created when they are first used.
 */

/* Longest range of uct_nprdma_odp_lkey(), bytes */
#define UCT_NPRDMA_ODP_MAX_ACCESS  (2 * UCS_MBYTE)

/* Entries of the table of parts of the address space, and the number of parts
 * that may have memory regions: 192 GiB with the default size of a part. Memory
 * beyond that is copied. */
#define UCT_NPRDMA_ODP_TABLE_SIZE  1024
#define UCT_NPRDMA_ODP_MAX_PARTS   (UCT_NPRDMA_ODP_TABLE_SIZE / 4 * 3)


/* The memory regions of one range. Reading and writing have one each, because a
 * device may bring in pages of a writable one as for writing: that would copy
 * pages that a get only reads, and fail for memory that is read-only. */
typedef struct uct_nprdma_odp_mrs {
    struct ibv_mr *r;           /* Sources; NULL: none */
    struct ibv_mr *w;           /* Destinations; NULL: none */
} uct_nprdma_odp_mrs_t;


/* A part of the address space, for local use. An lkey is known once its
 * UCT_NPRDMA_ODP_IS_SET bit is; 0 is the lkey of a region that the device
 * refused. */
typedef struct uct_nprdma_odp_part {
    atomic_uintptr_t     number;    /* Address / part size + 1; 0: free entry */
    atomic_uint_fast64_t lkeys[2];  /* Of mrs.r and mrs.w */
    uct_nprdma_odp_mrs_t mrs;
} uct_nprdma_odp_part_t;

#define UCT_NPRDMA_ODP_IS_SET  (UINT64_C(1) << 32)


typedef struct uct_nprdma_odp {
    const uct_nprdma_device_t *dev;
    unsigned                  shift;       /* log2 of the size of a part */
    double                    reg_cost;    /* Seconds that a registration and
                                            * its end took */
    uct_nprdma_odp_mrs_t      implicit;    /* The whole address space; both or
                                            * none */
    pthread_mutex_t           lock;        /* Of changes of the parts */
    unsigned                  num_parts;
    atomic_uint_fast64_t      regions;     /* MRs now, and ever */
    atomic_uint_fast64_t      created;
    uct_nprdma_odp_part_t     parts[UCT_NPRDMA_ODP_TABLE_SIZE];
} uct_nprdma_odp_t;


/* Use the on-demand paging of a device, after a check that it moves the right
 * data. The size of a part is a power of two, at least
 * UCT_NPRDMA_ODP_MAX_ACCESS. *why_p is the reason of an error, a constant.
 * UCS_ERR_NO_DEVICE: the device reports no on-demand paging of RDMA READ and
 * WRITE; UCS_ERR_IO_ERROR: it does, and fails the check. */
ucs_status_t uct_nprdma_odp_open(uct_nprdma_device_t *dev, size_t part_size,
                                 uct_nprdma_odp_t **odp_p, const char **why_p);

/* No registration is exported */
void uct_nprdma_odp_close(uct_nprdma_odp_t *odp);


/* Register a range for peers: PUT and GET of NPRDMA_REG_ACCESS_xx each give a
 * region. UCS_ERR_EXCEEDS_LIMIT: the device or the kernel lacks resources. */
ucs_status_t uct_nprdma_odp_export(uct_nprdma_odp_t *odp, uintptr_t address,
                                   size_t length, uint32_t access,
                                   uct_nprdma_odp_mrs_t *mrs);

/* When this returns, the device accesses the range with the keys of these
 * regions no more */
void uct_nprdma_odp_unexport(uct_nprdma_odp_t *odp, uct_nprdma_odp_mrs_t *mrs);

static inline int uct_nprdma_odp_is_exported(const uct_nprdma_odp_mrs_t *mrs)
{
    return (mrs->r != NULL) || (mrs->w != NULL);
}

/* r_rkey, w_rkey and flags are set */
void uct_nprdma_odp_fill_key(const uct_nprdma_odp_mrs_t *mrs,
                             uct_nprdma_rkey_t *rkey);


/* The key by which a work request of this process accesses a buffer, of
 * UCT_NPRDMA_ODP_MAX_ACCESS bytes at most. If the buffer's part of the address
 * space has been used before, this takes no lock and makes no system call. 0 if
 * the device cannot reach the buffer: the range is too long, the table of parts
 * is full, or the device has refused the part once. */
uint32_t uct_nprdma_odp_lkey(uct_nprdma_odp_t *odp, uintptr_t address,
                             size_t length, int is_write);

#endif
