/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* DMA of one function, as transactions of the size that a bus has. Reads of one
 * batch are carried out in any order, so that a read of more than a few words
 * may see several states of the memory. Writes keep their order, unless that is
 * broken on purpose. */

#ifndef EMLX5_DMA_H
#define EMLX5_DMA_H

#include "base/emlx5_random.h"
#include "host/emlx5_host.h"

#include <stddef.h>

enum {
    EMLX5_DMA_BATCH    = 256,
    EMLX5_DMA_DEFERRED = 64,
    EMLX5_DMA_TLP      = 256,      /* largest split transaction */
    EMLX5_DMA_WHOLE    = 64 << 10, /* largest one that is not split */
    EMLX5_DMA_UNIT     = 64        /* transactions end at multiples of it */
};

/* How a function does DMA; 0 everywhere is as plain as can be */
typedef struct {
    uint32_t min_tlp, max_tlp; /* multiples of EMLX5_DMA_UNIT; 0: whole */
    uint32_t delay_us;         /* longest pause between two transactions */
    int      reorder_reads;
    int      relaxed_writes;   /* payload may be overtaken by what follows it */
    uint64_t seed;
} emlx5_dma_config_t;

typedef struct {
    uint64_t reads, read_bytes, writes, write_bytes;
    uint64_t refused; /* while the guest does not let the function do DMA */
} emlx5_dma_stats_t;

/* Payload that later writes overtake */
typedef struct {
    uint64_t iova, until;
    uint32_t length; /* 0: free */
    uint8_t  data[EMLX5_DMA_TLP];
} emlx5_dma_deferred_t;

typedef struct {
    emlx5_host_t         *host;
    emlx5_dma_config_t   config;
    emlx5_random_t       random;
    int                  enabled; /* PCI: the function is a bus master */
    emlx5_tlp_t          batch[EMLX5_DMA_BATCH];
    unsigned             count;
    int                  failed;  /* a read of this batch */
    emlx5_dma_deferred_t deferred[EMLX5_DMA_DEFERRED];
    unsigned             num_deferred;
    emlx5_dma_stats_t    stats;
} emlx5_dma_t;

/** Begins; DMA is not enabled. The host outlives it. */
void emlx5_dma_init(emlx5_dma_t *dma, emlx5_host_t *host,
                    const emlx5_dma_config_t *config);

/**
 * Asks for memory. The data is there after emlx5_dma_finish(), and must be able
 * to hold it until then.
 */
void emlx5_dma_get(emlx5_dma_t *dma, uint64_t iova, void *data, size_t length);

/** Carries out what was asked for. @return 0, or -1 if any read failed. */
int emlx5_dma_finish(emlx5_dma_t *dma);

/** Both in one. @return 0, or -1 if it failed: the data is zeros then. */
int emlx5_dma_read(emlx5_dma_t *dma, uint64_t iova, void *data, size_t length);

/** Writes, after all writes before. */
void emlx5_dma_write(emlx5_dma_t *dma, uint64_t iova, const void *data,
                     size_t length);

/** Writes payload, which with config.relaxed_writes may come later than writes
 * after it. */
void emlx5_dma_put(emlx5_dma_t *dma, uint64_t iova, const void *data,
                   size_t length);

/** Returns when the guest can see all writes, without deferred payload. */
void emlx5_dma_drain(emlx5_dma_t *dma);

/** Writes deferred payload whose time has come, or all of it.
 * @return When to call again (emlx5_now()), UINT64_MAX if nothing is left. */
uint64_t emlx5_dma_expire(emlx5_dma_t *dma, int all);

/** Forgets what is deferred: the function was reset. */
void emlx5_dma_reset(emlx5_dma_t *dma);

#endif
