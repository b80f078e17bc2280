/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Views: IOVA ranges whose pages point at memory, or at a rest area if the
 * page is absent (ARCHITECTURE 2). A region has two on every device that
 * imports it.
 */

#ifndef NPRDMA_VIEW_H
#define NPRDMA_VIEW_H

#include <linux/bits.h>
#include <linux/device.h>
#include <linux/dma-direction.h>
#include <linux/list.h>
#include <linux/mm_types.h>
#include <linux/scatterlist.h>
#include <linux/types.h>

#include "nprdma_reason.h"

struct nprdma_pte_root;

/*
 * A rest area is 6 pages with the same contents, so that one entry of a
 * scatterlist maps 6 pages of a view. Larger leafs could not be split, and AMD's
 * first format has them in each power of two. So the frame number of the first
 * page is odd, and the I/O page number of each entry is even: no two pages of an
 * entry could be in a larger leaf.
 */
#define NPRDMA_REST_ORDER	3	/* pages that are allocated */
#define NPRDMA_REST_FIRST	1	/* that views rest on */
#define NPRDMA_REST_PAGES	6

/* Pages per call of dma_map_sgtable(), which allocates tables atomically */
#define NPRDMA_PIECE_SHIFT	14
#define NPRDMA_PIECE_PAGES	BIT(NPRDMA_PIECE_SHIFT)

int nprdma_map_pages(struct device *dev, struct sg_table *sgt,
		     enum dma_data_direction dir, unsigned long attrs,
		     struct nprdma_reason *why);
struct page *nprdma_rest_alloc(u64 pattern);
void nprdma_rest_free(struct page *rest);

/* Part of a view with IOVAs of its own, in entries of NPRDMA_REST_PAGES */
struct nprdma_piece {
	struct sg_table		sgt;
	struct nprdma_pte_run	*run;
};

/* One view of a region on one device, of which it holds a reference */
struct nprdma_view {
	struct list_head	link;	/* in the region's list */
	bool			is_write; /* write view, else read view */
	/* It will not be pointed at memory any more; under the region's lock */
	bool			closing;
	struct device		*dev;
	struct iommu_domain	*domain; /* of its DMA addresses */
	struct page		*rest;
	unsigned long		npages;
	unsigned int		npieces; /* all but the last are full */
	struct nprdma_piece	pieces[];
};

struct nprdma_view *nprdma_view_create(struct device *dev,
				       struct page *rest,
				       unsigned long npages, bool writable,
				       struct nprdma_reason *why);
void nprdma_view_destroy(struct nprdma_view *view);
void nprdma_view_point(struct nprdma_view *view, unsigned long first,
		       unsigned long n, const unsigned long *pfns);
void nprdma_view_flush(struct nprdma_view *view, unsigned long first,
		       unsigned long n);
size_t nprdma_view_memory(unsigned long npages);

#endif
