/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The DMA engine: every access to application memory on behalf of a work
 * request is checked, translated and made here, except payload that rides in a
 * completion queue (npemu_cq.c puts that in place).
 */

#ifndef NPEMU_DMA_H
#define NPEMU_DMA_H

#include "npemu_mr.h"
#include "npemu_peer.h"
#include "npemu_wqe.h"

#include <sys/uio.h>

/* One copy moves at most this much: the unit between whose beginning and end
 * memory cannot be taken away. */
#define NPEMU_DMA_CHUNK (64 * 1024)

/* Memory of one side of a transfer, translated. */
typedef struct {
    struct iovec iov[NPEMU_MAX_SGE];
    unsigned     count;
    uint64_t     length; /* bytes in all */
} npemu_dma_list_t;

typedef enum {
    NPEMU_DMA_OK,
    NPEMU_DMA_LOCAL,  /* the initiator's memory is not there */
    NPEMU_DMA_REMOTE, /* the target's memory is not there */
    NPEMU_DMA_GONE,   /* the target is not there */
    NPEMU_DMA_DENIED  /* the kernel does not let us */
} npemu_dma_status_t;

/**
 * Check and translate the scatter/gather list of a send request.
 *
 * @param [in]  shm     Arena of the process that posted it.
 * @param [in]  pd      PD of the QP.
 * @param [in]  wqe     The request.
 * @param [in]  access  Rights that are needed.
 * @param [out] list    The memory.
 *
 * @return 1, or 0 for a protection error.
 */
int npemu_dma_map_send(npemu_arena_shm_t *shm, uint32_t pd,
                       const npemu_wqe_t *wqe, uint32_t access,
                       npemu_dma_list_t *list);

/**
 * The same for a posted receive.
 *
 * @param [in] skip    Bytes left out at the beginning.
 * @param [in] length  Bytes to map after those.
 */
int npemu_dma_map_recv(npemu_arena_shm_t *shm, uint32_t pd,
                       const npemu_rq_wqe_t *wqe, uint32_t skip,
                       uint64_t length, npemu_dma_list_t *list);

/**
 * Copy between the calling process and a peer, in chunks.
 *
 * @param [in] local      Memory here.
 * @param [in] remote     Memory there, at least as long.
 * @param [in] to_remote  Direction.
 */
npemu_dma_status_t npemu_dma_copy(npemu_peer_t *peer,
                                  const npemu_dma_list_t *local,
                                  const npemu_dma_list_t *remote,
                                  int to_remote);

/** Copy the memory of a list into a buffer, as long as the list. */
void npemu_dma_gather(const npemu_dma_list_t *list, void *buffer);

/** The other way round. */
void npemu_dma_scatter(const npemu_dma_list_t *list, const void *buffer);

#endif
