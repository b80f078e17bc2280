// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include "nprdma_states_map.h"
#include "pte/nprdma_pte.h"
#include "pte/nprdma_view.h"

#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

/* Pages that the state words of a region take */
unsigned long nprdma_states_pages(const struct nprdma_kregion *region)
{
	return DIV_ROUND_UP(region->npages * sizeof(u32), PAGE_SIZE);
}

static unsigned int pieces_of(const struct nprdma_kregion *region)
{
	return DIV_ROUND_UP(nprdma_states_pages(region), NPRDMA_STATES_PIECE);
}

/* Kernel memory that the mapping takes, for accounting */
long nprdma_states_map_memory(const struct nprdma_kregion *region)
{
	return sizeof(struct nprdma_states_map) +
	       pieces_of(region) * sizeof(struct sg_table) +
	       nprdma_states_pages(region) *
	       (sizeof(struct scatterlist) + sizeof(u64));
}

/*
 * As for views: every page has the address that was mapped. The read view has
 * shown that the driver makes mappings that can only be read.
 */
static int check_piece(struct nprdma_states_map *map,
		       struct nprdma_kregion *region, unsigned long first,
		       struct nprdma_reason *why)
{
	struct sg_table *piece = &map->pieces[map->npieces];
	unsigned long page = first;
	struct scatterlist *sg;
	unsigned long offset;
	phys_addr_t phys;
	int i;

	for_each_sgtable_dma_sg(piece, sg, i) {
		for (offset = 0; offset < sg_dma_len(sg); offset += PAGE_SIZE) {
			phys = iommu_iova_to_phys(map->domain,
						  sg_dma_address(sg) + offset);
			if (phys != page_to_phys(nprdma_kregion_states_page(region, page)))
				goto differs;
			page++;
		}
	}
	if (page - first == piece->orig_nents)
		return 0;
differs:
	return nprdma_reason_set(why, -EOPNOTSUPP,
				 "iommu_iova_to_phys() differs from the mapped states");
}

static int map_piece(struct nprdma_states_map *map,
		     struct nprdma_kregion *region, struct nprdma_reason *why)
{
	unsigned long first = map->npieces * NPRDMA_STATES_PIECE;
	unsigned long n = min(nprdma_states_pages(region) - first,
			      NPRDMA_STATES_PIECE);
	struct sg_table *piece = &map->pieces[map->npieces];
	struct scatterlist *sg;
	int ret, i;

	ret = sg_alloc_table(piece, n, GFP_KERNEL_ACCOUNT);
	if (ret)
		return ret;
	for_each_sgtable_sg(piece, sg, i)
		sg_set_page(sg, nprdma_kregion_states_page(region, first + i),
			    PAGE_SIZE, 0);
	ret = nprdma_map_pages(map->dev, piece, DMA_TO_DEVICE, 0, why);
	if (ret) {
		sg_free_table(piece);
		return ret;
	}
	ret = check_piece(map, region, first, why);
	map->nents += piece->nents;
	map->npieces++;
	return ret;
}

/*
 * Let a device read the states of a region, which outlives the mapping. Peers
 * read them by RDMA, and the mapping does not allow writes. Returns an
 * ERR_PTR(): -ENOMEM; -EOPNOTSUPP if a page is not mapped as it should be;
 * -EINTR if the process was killed; an error of dma_map_sgtable().
 */
struct nprdma_states_map *nprdma_states_map_create(struct nprdma_kregion *region,
						   struct device *dev,
						   struct iommu_domain *domain,
						   struct nprdma_reason *why)
{
	unsigned int npieces = pieces_of(region);
	struct nprdma_states_map *map;
	int ret;

	map = kvzalloc(struct_size(map, pieces, npieces), NPRDMA_GFP_LARGE);
	if (!map)
		return ERR_PTR(-ENOMEM);
	map->dev = dev;
	map->domain = domain;
	while (map->npieces < npieces) {
		ret = fatal_signal_pending(current) ? -EINTR :
		      map_piece(map, region, why);
		if (ret) {
			nprdma_states_map_destroy(map);
			return ERR_PTR(ret);
		}
		cond_resched();
	}
	return map;
}

/* The device cannot read the states any more. NULL is allowed. */
void nprdma_states_map_destroy(struct nprdma_states_map *map)
{
	unsigned int i;

	if (!map)
		return;
	for (i = 0; i < map->npieces; i++) {
		dma_unmap_sgtable(map->dev, &map->pieces[i], DMA_TO_DEVICE, 0);
		sg_free_table(&map->pieces[i]);
	}
	/* As for views: no translation of a freed page is left */
	if (map->npieces)
		nprdma_pte_flush_all(map->dev, map->domain);
	kvfree(map);
}

/*
 * Give the addresses of the states to an importer, whose list has room for
 * @map->nents of them. Returns the entry behind them.
 */
struct scatterlist *nprdma_states_map_add(struct nprdma_states_map *map,
					  struct scatterlist *sg)
{
	struct scatterlist *from;
	unsigned int piece;
	int i;

	for (piece = 0; piece < map->npieces; piece++) {
		for_each_sgtable_dma_sg(&map->pieces[piece], from, i) {
			sg_dma_address(sg) = sg_dma_address(from);
			sg_dma_len(sg) = sg_dma_len(from);
			sg = sg_next(sg);
		}
	}
	return sg;
}
