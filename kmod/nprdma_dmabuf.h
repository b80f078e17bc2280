/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Regions as dma-bufs, by which RDMA drivers import memory that is not pinned.
 * NPRDMA_IOC_EXPORT describes their layout.
 */

#ifndef NPRDMA_DMABUF_H
#define NPRDMA_DMABUF_H

#include <linux/dma-buf.h>

struct nprdma_kregion;

struct dma_buf *nprdma_dmabuf_create(struct nprdma_kregion *region);

#endif
