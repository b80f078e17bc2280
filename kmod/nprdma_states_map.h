/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The state words of a region, mapped for a device, which can only read them.
 */

#ifndef NPRDMA_STATES_MAP_H
#define NPRDMA_STATES_MAP_H

#include <linux/device.h>
#include <linux/iommu.h>
#include <linux/scatterlist.h>

#include "nprdma_kregion.h"

/* Pages per call of dma_map_sgtable(), which allocates tables atomically */
#define NPRDMA_STATES_PIECE	256UL

/* The states of a region on a device */
struct nprdma_states_map {
	struct device		*dev;
	struct iommu_domain	*domain;	/* of its DMA addresses */
	unsigned int		nents;		/* segments of all pieces */
	unsigned int		npieces;	/* that are mapped */
	struct sg_table		pieces[];
};

unsigned long nprdma_states_pages(const struct nprdma_kregion *region);
long nprdma_states_map_memory(const struct nprdma_kregion *region);
struct nprdma_states_map *nprdma_states_map_create(struct nprdma_kregion *region,
						   struct device *dev,
						   struct iommu_domain *domain,
						   struct nprdma_reason *why);
void nprdma_states_map_destroy(struct nprdma_states_map *map);
struct scatterlist *nprdma_states_map_add(struct nprdma_states_map *map,
					  struct scatterlist *sg);

#endif
