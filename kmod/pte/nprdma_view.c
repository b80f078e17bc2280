// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * A view begins as an ordinary DMA mapping, in which each entry maps the same
 * rest area. From then on only its leafs change. The DMA API is not told, and
 * before the view is unmapped all of its pages rest again.
 */

#include <linux/bitops.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nprdma_kdevice.h"
#include "nprdma_pte.h"
#include "nprdma_view.h"

/* Levels of an I/O page table above the two lowest */
#define NPRDMA_UPPER_LEVELS	3

#define MAP_TRIES	5
#define MAP_PAUSE_MS	20

/*
 * The CPU does not access a rest area while it is mapped, and it is mapped many
 * times. CONFIG_DMA_API_DEBUG warns once of the latter in kernels that cannot
 * be told to ignore it, such as 6.1 and 6.12.
 */
#ifdef DMA_ATTR_DEBUGGING_IGNORE_CACHELINES
#define MAP_ATTRS	(DMA_ATTR_SKIP_CPU_SYNC | \
			 DMA_ATTR_DEBUGGING_IGNORE_CACHELINES)
#else
#define MAP_ATTRS	DMA_ATTR_SKIP_CPU_SYNC
#endif

/*
 * Make an area of 2^NPRDMA_REST_ORDER for views to rest on, filled with this
 * value, for nprdma_rest_free() when no view points at it any more. Returns
 * its first page or NULL.
 */
struct page *nprdma_rest_alloc(u64 pattern)
{
	struct page *rest = alloc_pages(GFP_KERNEL_ACCOUNT, NPRDMA_REST_ORDER);

	if (rest)
		memset64(page_address(rest), pattern,
			 (PAGE_SIZE << NPRDMA_REST_ORDER) / sizeof(pattern));
	return rest;
}

/* NULL is allowed */
void nprdma_rest_free(struct page *rest)
{
	if (rest)
		__free_pages(rest, NPRDMA_REST_ORDER);
}

static struct nprdma_pte_run *run_of(const struct nprdma_view *view,
				     unsigned long index)
{
	return view->pieces[index >> NPRDMA_PIECE_SHIFT].run;
}

static unsigned long in_piece(unsigned long index)
{
	return index & (NPRDMA_PIECE_PAGES - 1);
}

static phys_addr_t rest_phys(const struct nprdma_view *view,
			     unsigned long index)
{
	return page_to_phys(view->rest + NPRDMA_REST_FIRST +
			    in_piece(index) % NPRDMA_REST_PAGES);
}

static enum dma_data_direction direction(const struct nprdma_view *view)
{
	/*
	 * No device can write through R. A NIC that writes through W may also
	 * read through it, for example to flush its writes.
	 */
	return view->is_write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

/* First address of the DMA segments of a piece; 0 if they are not contiguous */
static dma_addr_t contiguous_iova(const struct sg_table *sgt,
				  unsigned long npages)
{
	dma_addr_t next = sg_dma_address(sgt->sgl);
	struct scatterlist *sg;
	int i;

	for_each_sgtable_dma_sg(sgt, sg, i) {
		if (sg_dma_address(sg) != next)
			return 0;
		next += sg_dma_len(sg);
	}
	if (next - sg_dma_address(sgt->sgl) != npages << PAGE_SHIFT)
		return 0;
	return sg_dma_address(sgt->sgl);
}

/* Check with the rest area that changing a leaf changes the translation */
static int check_pointing(struct nprdma_view *view, unsigned int c,
			  unsigned long index, struct nprdma_reason *why)
{
	struct nprdma_pte_run *run = view->pieces[c].run;
	phys_addr_t home = rest_phys(view, index);
	phys_addr_t away = rest_phys(view, index + 1);
	bool moved;

	if (!nprdma_pte_agrees(run, index, home))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the I/O page table that was found and iommu_iova_to_phys() differ");
	nprdma_pte_point(run, index, away);
	moved = nprdma_pte_agrees(run, index, away);
	nprdma_pte_point(run, index, home);
	if (moved && nprdma_pte_agrees(run, index, home))
		return 0;
	return nprdma_reason_set(why, -EOPNOTSUPP,
				 "iommu_iova_to_phys() does not follow when a page is re-pointed");
}

/*
 * The mandatory self-check. Every leaf has the address that was mapped. One leaf
 * of each table is moved, and the IOMMU driver's answer follows: so the driver
 * walks this very table, which holds for all of its leafs. To ask the driver for
 * each page says less, and takes most of the time of an import.
 */
static int check_piece(struct nprdma_view *view, unsigned int c,
		       struct nprdma_reason *why)
{
	struct nprdma_pte_run *run = view->pieces[c].run;
	unsigned long i;
	int ret = 0;

	for (i = 0; i < run->npages; i++) {
		if (!nprdma_pte_holds(run, i, rest_phys(view, i)))
			return nprdma_reason_set(why, -EOPNOTSUPP,
						 "a mapped page has another address in the I/O page table that was found");
		if (!(i % SZ_4K))
			cond_resched();
	}
	for (i = 0; !ret && i < run->npages; i = nprdma_pte_next_table(run, i))
		ret = check_pointing(view, c, i, why);
	/* The device does not know the addresses yet, so once is enough */
	nprdma_pte_flush(run, 0, run->npages);
	return ret;
}

static unsigned long total_length(struct sg_table *sgt)
{
	struct scatterlist *sg;
	unsigned long length = 0;
	int i;

	for_each_sgtable_sg(sgt, sg, i)
		length += sg->length;
	return length;
}

/*
 * dma_map_sgtable(), with some patience. In lazy mode, the kernel does not
 * reuse addresses that were unmapped before it flushes the IOTLB, after 10 ms.
 * A device with few address bits, or with large views, may run out of
 * addresses until then. Returns -ENOMEM after 0.1 s.
 */
int nprdma_map_pages(struct device *dev, struct sg_table *sgt,
		     enum dma_data_direction dir, unsigned long attrs,
		     struct nprdma_reason *why)
{
	unsigned int tries;
	int ret;

	for (tries = 0;; tries++) {
		ret = dma_map_sgtable(dev, sgt, dir, attrs);
		if (ret != -ENOMEM || tries == MAP_TRIES)
			break;
		msleep(MAP_PAUSE_MS);
	}
	if (ret == -ENOMEM)
		nprdma_reason_set(why, ret,
				  "the device's %u address bits do not leave %lu KiB of I/O addresses free, or there is no memory for page tables",
				  fls64(dma_get_mask(dev)),
				  total_length(sgt) >> 10);
	else if (ret)
		nprdma_reason_set(why, ret, "the DMA API does not map a view: error %d", ret);
	return ret;
}

static int map_piece(struct nprdma_view *view, unsigned int c,
		     struct nprdma_reason *why)
{
	unsigned long first = (unsigned long)c << NPRDMA_PIECE_SHIFT;
	unsigned long npages = min(view->npages - first, NPRDMA_PIECE_PAGES);
	unsigned long left = npages;
	struct nprdma_piece *piece = &view->pieces[c];
	struct nprdma_pte_root root;
	struct scatterlist *sg;
	dma_addr_t iova;
	int ret, i;

	ret = sg_alloc_table(&piece->sgt,
			     DIV_ROUND_UP(npages, NPRDMA_REST_PAGES),
			     GFP_KERNEL_ACCOUNT);
	if (ret)
		return nprdma_reason_set(why, ret, "out of memory");
	for_each_sgtable_sg(&piece->sgt, sg, i) {
		unsigned int n = min_t(unsigned long, left, NPRDMA_REST_PAGES);

		sg_set_page(sg, view->rest + NPRDMA_REST_FIRST, n << PAGE_SHIFT,
			    0);
		left -= n;
	}
	ret = nprdma_map_pages(view->dev, &piece->sgt, direction(view), MAP_ATTRS,
			       why);
	if (ret)
		goto err_free;
	iova = contiguous_iova(&piece->sgt, npages);
	if (!iova) {
		ret = nprdma_reason_set(why, -EOPNOTSUPP,
					"the DMA API maps a view in pieces");
		goto err_unmap;
	}
	/* Again: the first high address gives AMD's tables one more level */
	ret = nprdma_device_root(view->dev, &view->domain, &root, why);
	if (ret)
		goto err_unmap;
	piece->run = nprdma_pte_find(view->domain, &root, iova, npages,
				     view->is_write, why);
	if (IS_ERR(piece->run)) {
		ret = PTR_ERR(piece->run);
		piece->run = NULL;
		goto err_unmap;
	}
	return 0;

err_unmap:
	dma_unmap_sgtable(view->dev, &piece->sgt, direction(view),
			  MAP_ATTRS);
err_free:
	sg_free_table(&piece->sgt);
	return ret;
}

static void unmap_piece(struct nprdma_view *view, unsigned int c)
{
	struct nprdma_piece *piece = &view->pieces[c];

	nprdma_pte_release(piece->run);
	dma_unmap_sgtable(view->dev, &piece->sgt, direction(view),
			  MAP_ATTRS);
	sg_free_table(&piece->sgt);
}

/*
 * Map a view that only rests, and check that it can be pointed: every leaf is
 * checked, one of each table is moved to another page of the rest area and
 * back, and iommu_iova_to_phys() has to follow. The rest area outlives the
 * view, and the view ends before the device loses its driver. If it is not
 * writable, the IOMMU lets the device only read it. May sleep. Returns an
 * ERR_PTR(): -EOPNOTSUPP if the device is not fit; -ENOMEM; -EINTR if the
 * process was killed; an error of dma_map_sgtable().
 */
struct nprdma_view *nprdma_view_create(struct device *dev,
				       struct page *rest,
				       unsigned long npages, bool writable,
				       struct nprdma_reason *why)
{
	unsigned int npieces = DIV_ROUND_UP(npages, NPRDMA_PIECE_PAGES);
	struct nprdma_pte_root root;
	struct nprdma_view *view;
	unsigned int c;
	int ret;

	view = kvzalloc(struct_size(view, pieces, npieces), GFP_KERNEL_ACCOUNT);
	if (!view) {
		ret = nprdma_reason_set(why, -ENOMEM, "out of memory");
		return ERR_PTR(ret);
	}
	ret = nprdma_device_root(dev, &view->domain, &root, why);
	if (ret)
		goto err_free;
	INIT_LIST_HEAD(&view->link);
	view->is_write = writable;
	view->dev = get_device(dev);
	view->rest = rest;
	view->npages = npages;
	for (c = 0; c < npieces; c++) {
		/* A large region has many pieces; a killed process must end */
		if (fatal_signal_pending(current)) {
			ret = nprdma_reason_set(why, -EINTR,
						"the process was killed");
			goto err_destroy;
		}
		ret = map_piece(view, c, why);
		if (ret)
			goto err_destroy;
		view->npieces = c + 1;
		ret = check_piece(view, c, why);
		if (ret)
			goto err_destroy;
	}
	return view;

err_destroy:
	nprdma_view_destroy(view);
	return ERR_PTR(ret);
err_free:
	kvfree(view);
	return ERR_PTR(ret);
}

/*
 * Unmap a view that is in no list and that the device does not use any more;
 * NULL is allowed. All of its pages rest again, as the DMA API has mapped them.
 * When it returns, the device cannot access the rest area any more. May sleep.
 */
void nprdma_view_destroy(struct nprdma_view *view)
{
	unsigned int c;

	if (!view)
		return;
	for (c = 0; c < view->npieces; c++)
		unmap_piece(view, c);
	/* In lazy mode, unmapping leaves translations in the IOTLB */
	if (view->npieces)
		nprdma_pte_flush_all(view->dev, view->domain);
	put_device(view->dev);
	kvfree(view);
}

/*
 * Point pages of a view, or let them rest if @pfns is NULL, under the lock
 * that protects it. Until nprdma_view_flush() the device may use the old or
 * the new page.
 */
void nprdma_view_point(struct nprdma_view *view, unsigned long first,
		       unsigned long n, const unsigned long *pfns)
{
	unsigned long i;

	for (i = 0; i < n; i++)
		nprdma_pte_point(run_of(view, first + i), in_piece(first + i),
				 pfns ? PFN_PHYS(pfns[i]) :
					rest_phys(view, first + i));
}

/*
 * When this returns, no access of the device to a page from which these were
 * pointed away is in progress, and none will begin. Spins until the IOMMU
 * answers; does not sleep.
 */
void nprdma_view_flush(struct nprdma_view *view, unsigned long first,
		       unsigned long n)
{
	unsigned long part;

	for (; n > 0; first += part, n -= part) {
		part = min(n, NPRDMA_PIECE_PAGES - in_piece(first));
		nprdma_pte_flush(run_of(view, first), in_piece(first), part);
	}
}

/*
 * Kernel memory that a view takes, for accounting: I/O page tables,
 * scatterlists, and pointers to leaf tables. A view may begin and end in the
 * middle of tables of each level.
 */
size_t nprdma_view_memory(unsigned long npages)
{
	unsigned long ntables = DIV_ROUND_UP(npages, PAGE_SIZE / sizeof(u64));
	unsigned long npieces = DIV_ROUND_UP(npages, NPRDMA_PIECE_PAGES);
	unsigned long upper = DIV_ROUND_UP(ntables, PAGE_SIZE / sizeof(u64)) +
			      NPRDMA_UPPER_LEVELS;

	return sizeof(struct nprdma_view) + upper * PAGE_SIZE +
	       npieces * (sizeof(struct nprdma_piece) +
			  sizeof(struct nprdma_pte_run)) +
	       ntables * (PAGE_SIZE + sizeof(u64 *)) +
	       DIV_ROUND_UP(npages, NPRDMA_REST_PAGES) *
	       sizeof(struct scatterlist);
}
