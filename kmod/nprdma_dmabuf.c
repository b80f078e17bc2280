// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The dma-buf exporter. To the importer the memory looks pinned: it is mapped
 * when the device attaches, and its I/O addresses never change. Only the I/O
 * page table changes.
 *
 * A device that imports a region several times, as RDMA drivers do for every
 * memory region, has one pair of views. Each attachment gets a scatterlist of
 * its own, since importers trim the first and last entries.
 */

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "nprdma_dmabuf.h"
#include "pte/nprdma_kdevice.h"
#include "pte/nprdma_pte.h"
#include "nprdma_kregion.h"
#include "nprdma_states_map.h"
#include "pte/nprdma_view.h"

/* MODULE_IMPORT_NS() takes a string in some kernels, and a symbol in others */
MODULE_INFO(import_ns, "DMA_BUF");

/* Pages that are processed without releasing the lock */
#define BATCH_PAGES	NPRDMA_CHUNK_PAGES

/* A region, which the dma-buf holds, on a device, which the views hold */
struct nprdma_import {
	struct list_head	link;	/* in the region's list of devices */
	unsigned int		users;	/* attachments, under attach_lock */
	struct nprdma_kregion	*region;
	struct device		*dev;
	struct nprdma_view	*read;
	struct nprdma_view	*write;
	struct nprdma_states_map *states;
	long			charged; /* kernel memory accounted for */
	u64			iova_bytes; /* likewise */
};

static size_t dmabuf_size(const struct nprdma_kregion *region)
{
	return (2 * region->npages + nprdma_states_pages(region)) << PAGE_SHIFT;
}

static long import_memory(const struct nprdma_kregion *region)
{
	return sizeof(struct nprdma_import) +
	       2 * nprdma_view_memory(region->npages) +
	       nprdma_states_map_memory(region);
}

/* Point new views at the pages that are present, with the lock held */
static void take_over(struct nprdma_import *import, unsigned long first,
		      unsigned long n)
{
	struct nprdma_kregion *region = import->region;
	unsigned long i, entry, pfn;

	if (!region->chunks[first / BATCH_PAGES].table)
		return;
	for (i = first; i < first + n; i++) {
		entry = *nprdma_kregion_entry(region, i);
		if (!(entry & NPRDMA_ENTRY_PRESENT))
			continue;
		pfn = entry >> NPRDMA_ENTRY_SHIFT;
		nprdma_view_point(import->read, i, 1, &pfn);
		if (entry & NPRDMA_ENTRY_W)
			nprdma_view_point(import->write, i, 1, &pfn);
	}
	nprdma_view_flush(import->read, first, n);
	nprdma_view_flush(import->write, first, n);
}

/*
 * From when they are in the list on, new views are pointed with the others.
 * Then they are pointed at the pages that were present before. Only after that
 * does the device get their addresses.
 *
 * Returns 0; -EINTR: the process was killed.
 */
static int link_views(struct nprdma_import *import)
{
	struct nprdma_kregion *region = import->region;
	unsigned long i;

	spin_lock(&region->lock);
	list_add_tail(&import->read->link, &region->views);
	list_add_tail(&import->write->link, &region->views);
	spin_unlock(&region->lock);

	for (i = 0; i < region->npages; i += BATCH_PAGES) {
		if (fatal_signal_pending(current))
			return -EINTR;
		spin_lock(&region->lock);
		take_over(import, i, min(region->npages - i, BATCH_PAGES));
		spin_unlock(&region->lock);
		cond_resched();
	}
	return 0;
}

/* The opposite order: a view that points at memory must be in the list */
static void unlink_view(struct nprdma_kregion *region,
			struct nprdma_view *view)
{
	unsigned long i, n;

	if (!view || list_empty(&view->link))
		return;
	spin_lock(&region->lock);
	view->closing = true;
	spin_unlock(&region->lock);

	for (i = 0; i < region->npages; i += n) {
		n = min(region->npages - i, BATCH_PAGES);
		spin_lock(&region->lock);
		nprdma_view_point(view, i, n, NULL);
		nprdma_view_flush(view, i, n);
		spin_unlock(&region->lock);
		cond_resched();
	}
	spin_lock(&region->lock);
	list_del_init(&view->link);
	spin_unlock(&region->lock);
}

static void import_destroy(struct nprdma_import *import)
{
	struct nprdma_kregion *region = import->region;

	unlink_view(region, import->read);
	unlink_view(region, import->write);
	nprdma_states_map_destroy(import->states);
	nprdma_view_destroy(import->read);
	nprdma_view_destroy(import->write);
	if (import->iova_bytes)
		nprdma_uncharge_iova(region->ctx->user, import->dev,
				     import->iova_bytes);
	nprdma_kregion_uncharge(region, import->charged);
	kfree(import);
}

static int import_map(struct nprdma_import *import, struct nprdma_reason *why)
{
	struct nprdma_kregion *region = import->region;
	struct nprdma_states_map *states;
	struct nprdma_view *view;

	view = nprdma_view_create(import->dev, region->ctx->signature_page,
				  region->npages, false, why);
	if (IS_ERR(view))
		return PTR_ERR(view);
	import->read = view;
	view = nprdma_view_create(import->dev, region->ctx->blackhole_page,
				  region->npages, true, why);
	if (IS_ERR(view))
		return PTR_ERR(view);
	import->write = view;
	states = nprdma_states_map_create(region, import->dev,
					  import->read->domain, why);
	if (IS_ERR(states))
		return PTR_ERR(states);
	import->states = states;
	return link_views(import);
}

static struct nprdma_import *import_create(struct nprdma_kregion *region,
					   struct device *dev)
{
	struct nprdma_reason why = { };
	struct nprdma_import *import;
	int ret;

	import = kzalloc(sizeof(*import), GFP_KERNEL_ACCOUNT);
	if (!import)
		return ERR_PTR(-ENOMEM);
	INIT_LIST_HEAD(&import->link);
	import->region = region;
	import->dev = dev;
	/* Before the device's IOMMU is asked for its size */
	ret = nprdma_device_check_rdma(dev, &why);
	if (ret)
		goto err;
	ret = nprdma_kregion_charge(region, import_memory(region));
	if (ret)
		goto err;
	import->charged = import_memory(region);
	ret = nprdma_charge_iova(region->ctx->user, dev, dmabuf_size(region));
	if (ret)
		goto err;
	import->iova_bytes = dmabuf_size(region);

	ret = import_map(import, &why);
	if (ret)
		goto err;
	return import;
err:
	/* The user gets only the errno, from the driver that imports */
	if (why.text[0])
		dev_info_ratelimited(dev, "nprdma: cannot import a region: %s\n",
				     why.text);
	import_destroy(import);
	return ERR_PTR(ret);
}

static struct nprdma_import *import_find(struct nprdma_kregion *region,
					 struct device *dev)
{
	struct nprdma_import *import;

	list_for_each_entry(import, &region->devices, link)
		if (import->dev == dev)
			return import;
	return NULL;
}

/*
 * The descriptor is a capability: a process that can attach it can make a
 * device write to the owner's memory. So it works only in the address space of
 * the owner. Importers attach in the context of the process that registers
 * memory.
 */
static int dmabuf_attach(struct dma_buf *dmabuf,
			 struct dma_buf_attachment *attach)
{
	struct nprdma_kregion *region = dmabuf->priv;
	struct nprdma_import *import;
	int ret = 0;

	if (!current->mm || current->mm != region->mm)
		return -EPERM;

	mutex_lock(&region->attach_lock);
	import = import_find(region, attach->dev);
	if (!import) {
		import = import_create(region, attach->dev);
		if (IS_ERR(import)) {
			ret = PTR_ERR(import);
			goto unlock;
		}
		list_add(&import->link, &region->devices);
	}
	import->users++;
	attach->priv = import;
unlock:
	mutex_unlock(&region->attach_lock);
	return ret;
}

static void dmabuf_detach(struct dma_buf *dmabuf,
			  struct dma_buf_attachment *attach)
{
	struct nprdma_kregion *region = dmabuf->priv;
	struct nprdma_import *import = attach->priv;

	mutex_lock(&region->attach_lock);
	if (!--import->users) {
		list_del(&import->link);
		import_destroy(import);
	}
	mutex_unlock(&region->attach_lock);
}

static struct scatterlist *add_view(struct scatterlist *sg,
				    const struct nprdma_view *view)
{
	unsigned int i;

	for (i = 0; i < view->npieces; i++, sg = sg_next(sg)) {
		sg_dma_address(sg) = view->pieces[i].run->iova;
		sg_dma_len(sg) = view->pieces[i].run->npages << PAGE_SHIFT;
	}
	return sg;
}

/* The importer gets addresses for its device only, and no pages */
static struct sg_table *dmabuf_map(struct dma_buf_attachment *attach,
				   enum dma_data_direction dir)
{
	struct nprdma_import *import = attach->priv;
	struct scatterlist *sg;
	struct sg_table *sgt;
	int ret;

	sgt = kzalloc(sizeof(*sgt), GFP_KERNEL_ACCOUNT);
	if (!sgt)
		return ERR_PTR(-ENOMEM);
	ret = sg_alloc_table(sgt, import->read->npieces +
			     import->write->npieces + import->states->nents,
			     GFP_KERNEL_ACCOUNT);
	if (ret) {
		kfree(sgt);
		return ERR_PTR(ret);
	}
	sg = add_view(sgt->sgl, import->read);
	sg = add_view(sg, import->write);
	nprdma_states_map_add(import->states, sg);
	return sgt;
}

static void dmabuf_unmap(struct dma_buf_attachment *attach,
			 struct sg_table *sgt, enum dma_data_direction dir)
{
	sg_free_table(sgt);
	kfree(sgt);
}

static void dmabuf_release(struct dma_buf *dmabuf)
{
	nprdma_kregion_put(dmabuf->priv);
}

/*
 * No mmap and no vmap: the owner has the memory mapped, and others must not
 * access it. No pin and no move_notify: the I/O addresses never change.
 */
static const struct dma_buf_ops dmabuf_ops = {
	.attach		= dmabuf_attach,
	.detach		= dmabuf_detach,
	.map_dma_buf	= dmabuf_map,
	.unmap_dma_buf	= dmabuf_unmap,
	.release	= dmabuf_release,
};

/*
 * Make a dma-buf of a region whose context has rest areas. It holds a reference of the
 * region, and keeps this module loaded.
 */
struct dma_buf *nprdma_dmabuf_create(struct nprdma_kregion *region)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct dma_buf *dmabuf;

	info.ops = &dmabuf_ops;
	info.size = dmabuf_size(region);
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = region;

	nprdma_kregion_get(region);
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf))
		nprdma_kregion_put(region);
	return dmabuf;
}
