/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The DMA engine: it checks, translates and makes every access to application
 * memory for a work request, except that npemu_cq.c places eager payload, which
 * is in a completion queue.
 */

#ifndef NPEMU_DMA_H
#define NPEMU_DMA_H

#include "base/npemu_limits.h"
#include "engine/npemu_key.h"
#include "engine/npemu_wqe.h"
#include "fabric/npemu_peer.h"
#include "iommu/npemu_table.h"

#include <sys/uio.h>

/* Memory of one side of a transfer, translated. */
typedef struct {
    struct iovec  iov[NPEMU_MAX_SGE];
    unsigned      count;
    unsigned      tabled; /* nonzero: elements are behind IOMMU tables */
    unsigned      on_demand; /* nonzero: pages may be absent or unmapped */
    unsigned      outside; /* nonzero: elements are not in the owner's arena */
    uint64_t      length; /* bytes in all */
    uint8_t       view[NPEMU_MAX_SGE]; /* npemu_view_t, by element */
    npemu_table_t *table[NPEMU_MAX_SGE]; /* unless the view is plain */
} npemu_dma_list_t;

typedef enum {
    NPEMU_MAP_OK,
    NPEMU_MAP_DENIED, /* a protection error */
    NPEMU_MAP_TABLE   /* a table of the peer must be attached first */
} npemu_map_t;

/* The table that must be attached. */
typedef struct {
    uint32_t index;
    uint32_t gen;
} npemu_map_miss_t;

typedef enum {
    NPEMU_DMA_OK,
    NPEMU_DMA_LOCAL,  /* the initiator's memory is not mapped */
    NPEMU_DMA_REMOTE, /* the target's memory is not mapped */
    NPEMU_DMA_GONE,   /* the target's process has ended */
    NPEMU_DMA_DENIED  /* the kernel denies the access */
} npemu_dma_status_t;

/**
 * Make a list of one range of the calling process that no IOMMU table covers.
 */
static inline void npemu_dma_list_plain(npemu_dma_list_t *list, void *addr,
                                        uint64_t length)
{
    list->iov[0]    = (struct iovec){addr, length};
    list->view[0] = NPEMU_VIEW_NONE;
    list->count     = 1;
    list->tabled    = 0;
    list->on_demand = 0;
    list->outside   = 1;
    list->length    = length;
}

/** Check and translate the scatter/gather list of a send request. Returns 1, or
 * 0 for a protection error. */
int npemu_dma_map_send(npemu_proc_t *proc, uint32_t pd, const npemu_wqe_t *wqe,
                       uint32_t access, npemu_dma_list_t *list);

/** The same for a posted receive of a peer, or of this process. `miss`: With
 * NPEMU_MAP_TABLE: the table to attach. */
npemu_map_t npemu_dma_map_recv(npemu_peer_t *peer, uint32_t pd,
                               const npemu_rq_wqe_t *wqe, uint32_t skip,
                               uint64_t length, npemu_dma_list_t *list,
                               npemu_map_miss_t *miss);

/** The same for one range, of a remote request. */
npemu_map_t npemu_dma_map_range(npemu_peer_t *peer, uint32_t pd, uint32_t key,
                                uint32_t access, uint64_t addr,
                                uint64_t length, npemu_dma_list_t *list,
                                npemu_map_miss_t *miss);

/** Copy between the calling process and a peer, in chunks: by the CPU if all of
 * the peer's memory is in its arena, which this process has mapped, else by a
 * system call for each. */
npemu_dma_status_t npemu_dma_copy(npemu_peer_t *peer,
                                  const npemu_dma_list_t *local,
                                  const npemu_dma_list_t *remote,
                                  int to_remote);

/** The same where one of the lists is `tabled`. */
npemu_dma_status_t npemu_dma_copy_tabled(npemu_peer_t *peer,
                                         const npemu_dma_list_t *local,
                                         const npemu_dma_list_t *remote,
                                         int to_remote);

/** Copy the memory of a list that is not `tabled` into a buffer. */
void npemu_dma_gather(const npemu_dma_list_t *list, void *buffer);

/** Copy a buffer of this process from or to memory of this process. */
npemu_dma_status_t npemu_dma_copy_local(npemu_proc_t *proc,
                                        const npemu_dma_list_t *list,
                                        void *buffer, int to_list);

#endif
