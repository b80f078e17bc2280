/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The pages that the driver gave for a ring. */

#ifndef EMLX5_PAGES_H
#define EMLX5_PAGES_H

#include "host/emlx5_dma.h"

typedef struct {
    uint64_t *bus;   /* addresses of the pages */
    uint32_t shift;  /* log2 of a page's bytes */
    uint32_t offset; /* of the ring in the first page */
    uint64_t size;   /* of the ring */
} emlx5_pages_t;

/** Takes a list of pages from a command: big-endian bus addresses in pages of
 * 2^(log_page + 12) bytes, for a ring of this size that begins at offset / 64
 * of a page. @return 0, or -1 if the numbers, which may be any, are impossible,
 * the list is shorter than the ring, or there is no memory. */
int emlx5_pages_init(emlx5_pages_t *pages, const void *list, uint64_t bytes,
                     uint32_t log_page, uint32_t offset, uint64_t size);

/** Frees the list. */
void emlx5_pages_cleanup(emlx5_pages_t *pages);

/** Reads from the ring. @return 0, or -1 after a DMA error, or behind its
 * end. */
int emlx5_pages_read(emlx5_dma_t *dma, const emlx5_pages_t *pages, uint64_t at,
                     void *data, uint32_t length);

/** Writes into the ring; nothing behind its end. */
void emlx5_pages_write(emlx5_dma_t *dma, const emlx5_pages_t *pages,
                       uint64_t at, const void *data, uint32_t length);

/**
 * Writes an entry of 64 bytes whose last byte tells the driver that it is
 * there. The last 4 bytes are a write of their own after the rest, because a
 * host may store the bytes of one write in any order.
 */
void emlx5_pages_write_entry(emlx5_dma_t *dma, const emlx5_pages_t *pages,
                             uint64_t at, const uint8_t *entry);

#endif
