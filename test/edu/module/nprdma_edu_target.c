// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/iommu.h>
#include <linux/ktime.h>
#include <linux/sched/signal.h>
#include <linux/vmalloc.h>

#include "nprdma_edu_target.h"
#include "nprdma_pte.h"
#include "nprdma_window.h"

#ifdef NPRDMA_HAVE_INVALIDATE_MAPPINGS
#define invalidate_op	invalidate_mappings
#else
#define invalidate_op	move_notify
#endif

/* Never called: RDMA drivers without page faults cannot move mappings */
static void edu_moved(struct dma_buf_attachment *attach)
{
	WARN_ONCE(1, "nprdma_edu: an exporter of pinned memory moved it\n");
}

static const struct dma_buf_attach_ops edu_attach_ops = {
	.invalidate_op	= edu_moved,
};

static bool has_target(const struct nprdma_edu_file *file)
{
	return file->attach || file->window;
}

static void import_end(struct nprdma_edu_file *file)
{
	struct dma_buf *dmabuf = file->attach->dmabuf;

	dma_resv_lock(dmabuf->resv, NULL);
	if (file->sgt) {
		dma_buf_unmap_attachment(file->attach, file->sgt,
					 DMA_BIDIRECTIONAL);
		dma_buf_unpin(file->attach);
	}
	dma_resv_unlock(dmabuf->resv);
	dma_buf_detach(dmabuf, file->attach);
	dma_buf_put(dmabuf);
	file->attach = NULL;
	file->sgt = NULL;
}

int nprdma_edu_import(struct nprdma_edu_file *file,
		      struct nprdma_edu_import *arg)
{
	struct dma_buf_attachment *attach;
	struct dma_buf *dmabuf;
	struct sg_table *sgt;
	int ret;

	if (has_target(file))
		return -EBUSY;
	dmabuf = dma_buf_get(arg->fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	attach = dma_buf_dynamic_attach(dmabuf, &file->edu->pdev->dev,
					&edu_attach_ops, file);
	if (IS_ERR(attach)) {
		dma_buf_put(dmabuf);
		return PTR_ERR(attach);
	}
	file->attach = attach;

	dma_resv_lock(dmabuf->resv, NULL);
	ret = dma_buf_pin(attach);
	if (!ret) {
		sgt = dma_buf_map_attachment(attach, DMA_BIDIRECTIONAL);
		if (IS_ERR(sgt)) {
			ret = PTR_ERR(sgt);
			dma_buf_unpin(attach);
		} else {
			file->sgt = sgt;
		}
	}
	dma_resv_unlock(dmabuf->resv);
	if (ret) {
		import_end(file);
		return ret;
	}
	arg->segments = sgt->nents;
	arg->size = dmabuf->size;
	return 0;
}

int nprdma_edu_make_window(struct nprdma_edu_file *file,
			   struct nprdma_edu_window *arg)
{
	struct nprdma_reason why = { };
	struct nprdma_window *win;

	if (has_target(file))
		return -EBUSY;
	if (!arg->npages || arg->npages > SZ_1G >> PAGE_SHIFT)
		return -EINVAL;
	file->rest = nprdma_rest_alloc(arg->pattern);
	if (!file->rest)
		return -ENOMEM;
	win = nprdma_window_create(&file->edu->pdev->dev, file->rest,
				   arg->npages, arg->writable, &why);
	if (IS_ERR(win)) {
		strscpy(arg->why, why.text, sizeof(arg->why));
		nprdma_rest_free(file->rest);
		file->rest = NULL;
		return PTR_ERR(win);
	}
	file->window = win;
	return 0;
}

void nprdma_edu_release(struct nprdma_edu_file *file)
{
	if (file->attach)
		import_end(file);
	if (file->window) {
		nprdma_window_destroy(file->window);
		nprdma_rest_free(file->rest);
		file->window = NULL;
		file->rest = NULL;
	}
}

static unsigned long page_pfn(const struct nprdma_edu *edu, unsigned int page)
{
	return vmalloc_to_pfn(edu->pages + page * PAGE_SIZE);
}

int nprdma_edu_point(struct nprdma_edu_file *file,
		     const struct nprdma_edu_point *arg)
{
	struct nprdma_window *win = file->window;
	unsigned long pfns[NPRDMA_EDU_PAGES];
	bool rest = arg->page == NPRDMA_EDU_REST;
	unsigned int i;

	if (!win || !arg->count || arg->count > NPRDMA_EDU_PAGES ||
	    arg->index >= win->npages || arg->count > win->npages - arg->index)
		return -EINVAL;
	if (!rest && (arg->page >= NPRDMA_EDU_PAGES ||
		      arg->count > NPRDMA_EDU_PAGES - arg->page))
		return -EINVAL;
	for (i = 0; !rest && i < arg->count; i++)
		pfns[i] = page_pfn(file->edu, arg->page + i);
	nprdma_window_point(win, arg->index, arg->count, rest ? NULL : pfns);
	if (arg->flush)
		nprdma_window_flush(win, arg->index, arg->count);
	return 0;
}

/* Without the PTE engine: the page is unmapped for a moment each time */
static int flip_by_unmap(struct nprdma_window *win, dma_addr_t iova,
			 unsigned long pfn)
{
	int prot = IOMMU_READ | (win->is_write ? IOMMU_WRITE : 0);

	if (iommu_unmap(win->domain, iova, PAGE_SIZE) != PAGE_SIZE)
		return -EIO;
#ifdef NPRDMA_HAVE_IOMMU_MAP_ATOMIC
	return iommu_map(win->domain, iova, PFN_PHYS(pfn), PAGE_SIZE, prot);
#else
	return iommu_map(win->domain, iova, PFN_PHYS(pfn), PAGE_SIZE, prot,
			 GFP_KERNEL);
#endif
}

int nprdma_edu_flip(struct nprdma_edu_file *file, struct nprdma_edu_flip *arg)
{
	struct nprdma_window *win = file->window;
	unsigned long pfn;
	dma_addr_t iova;
	ktime_t began;
	int ret;
	u64 i;

	if (!win || arg->page + 1 >= NPRDMA_EDU_PAGES)
		return -EINVAL;
	ret = nprdma_edu_address(file, arg->index << PAGE_SHIFT, &iova);
	if (ret)
		return ret;
	began = ktime_get();
	for (i = 0; i < arg->count && !ret; i++) {
		pfn = page_pfn(file->edu, arg->page + i % 2);
		if (arg->unmap) {
			ret = flip_by_unmap(win, iova, pfn);
		} else {
			nprdma_window_point(win, arg->index, 1, &pfn);
			nprdma_window_flush(win, arg->index, 1);
		}
		if (signal_pending(current))
			ret = -EINTR;
		cond_resched();
	}
	arg->nsec = ktime_to_ns(ktime_sub(ktime_get(), began));
	return ret;
}

static int window_address(const struct nprdma_window *win, u64 offset,
			  dma_addr_t *addr)
{
	unsigned long index = offset >> PAGE_SHIFT;

	if (offset >= (u64)win->npages << PAGE_SHIFT)
		return -ERANGE;
	*addr = win->pieces[index >> NPRDMA_PIECE_SHIFT].run->iova +
		(offset & ((NPRDMA_PIECE_PAGES << PAGE_SHIFT) - 1));
	return 0;
}

int nprdma_edu_address(struct nprdma_edu_file *file, u64 offset,
		       dma_addr_t *addr)
{
	struct scatterlist *sg;
	int i;

	if (file->window)
		return window_address(file->window, offset, addr);
	if (!file->sgt)
		return -EINVAL;
	for_each_sgtable_dma_sg(file->sgt, sg, i) {
		if (offset < sg_dma_len(sg)) {
			*addr = sg_dma_address(sg) + offset;
			return 0;
		}
		offset -= sg_dma_len(sg);
	}
	return -ERANGE;
}
