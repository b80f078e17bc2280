// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The regions of a context: how they are made, found and destroyed.
 */

#include "nprdma_kregions.h"
#include "nprdma_kreg.h"
#include "nprdma_kregion.h"

#include <linux/seq_file.h>
#include <linux/slab.h>

/*
 * Watch a range of the current address space, of whole pages inside of it. One
 * reference is the caller's. Returns 0, or what NPRDMA_IOC_REGION_CREATE
 * returns for limits and memory.
 */
int nprdma_kregions_create(struct nprdma_ctx *ctx, unsigned long start,
			   unsigned long length, bool retire,
			   struct nprdma_kregion **region_p)
{
	struct nprdma_kregion *region;
	int ret;

	region = nprdma_kregion_alloc(ctx, start, length >> PAGE_SHIFT, retire);
	if (IS_ERR(region))
		return PTR_ERR(region);

	ret = nprdma_kregion_watch(region);
	if (ret)
		goto err_put;

	/* From here on others find it: the array has the first reference */
	nprdma_kregion_get(region);
	ret = xa_alloc_cyclic(&ctx->regions, &region->id, region, xa_limit_31b,
			      &ctx->next_region, GFP_KERNEL_ACCOUNT);
	if (ret < 0)
		goto err_remove;

	*region_p = region;
	return 0;

err_remove:
	nprdma_kregion_unwatch(region);
	nprdma_kregion_put(region);
err_put:
	nprdma_kregion_put(region);
	return ret;
}

/*
 * End a region. The holder of a reference finds all pages absent from now on.
 * May sleep. Returns 0 or -ENOENT.
 */
int nprdma_kregions_destroy(struct nprdma_ctx *ctx, u32 id)
{
	struct nprdma_kregion *region;
	u64 revoked = 0;

	region = xa_erase(&ctx->regions, id);
	if (!region)
		return -ENOENT;

	spin_lock(&region->lock);
	WRITE_ONCE(region->dead, true);
	spin_unlock(&region->lock);
	nprdma_kregion_revoke(region, NPRDMA_PAGE_BITS, 0, region->npages,
			      false, &revoked);
	nprdma_kregion_unwatch(region);
	/* A process that sees `dead` sees all states absent */
	smp_store_release(&region->states.header->dead, 1);

	nprdma_kreg_drop_all(region);
	nprdma_kregion_free_tables(region);
	mutex_lock(&ctx->lock);
	spin_lock(&region->lock);
	nprdma_stats_add(&ctx->stats, &region->stats);
	spin_unlock(&region->lock);
	mutex_unlock(&ctx->lock);
	nprdma_kregion_put(region);
	return 0;
}

/* The context's file is closed, so no region is added any more */
void nprdma_kregions_destroy_all(struct nprdma_ctx *ctx)
{
	struct nprdma_kregion *region;
	unsigned long id;

	xa_for_each(&ctx->regions, id, region)
		nprdma_kregions_destroy(ctx, id);
}

/* Returns the region, for nprdma_kregion_put(), or NULL */
struct nprdma_kregion *nprdma_kregions_find(struct nprdma_ctx *ctx, u32 id)
{
	struct nprdma_kregion *region;

	/* The array holds a reference of each region */
	xa_lock(&ctx->regions);
	region = xa_load(&ctx->regions, id);
	if (region)
		nprdma_kregion_get(region);
	xa_unlock(&ctx->regions);
	return region;
}

/*
 * Iterate over regions, which may change meanwhile. @id is 0 at first. Returns
 * the region, for nprdma_kregion_put(); NULL: there are no more.
 */
struct nprdma_kregion *nprdma_kregions_next(struct nprdma_ctx *ctx,
					    unsigned long *id)
{
	struct nprdma_kregion *region;

	xa_lock(&ctx->regions);
	region = xa_find_after(&ctx->regions, id, ULONG_MAX, XA_PRESENT);
	if (region)
		nprdma_kregion_get(region);
	xa_unlock(&ctx->regions);
	return region;
}

/* Add what a region is and has done to sums */
void nprdma_kregions_add_stats(struct nprdma_kregion *region,
			       struct nprdma_ioc_stats *stats)
{
	stats->regions++;
	stats->bytes += atomic_long_read(&region->bytes);
	spin_lock(&region->lock);
	nprdma_stats_add(stats, &region->stats);
	spin_unlock(&region->lock);
}

static void nprdma_kregion_show(struct seq_file *seq,
				struct nprdma_kregion *region)
{
	struct nprdma_ioc_stats stats = { };

	nprdma_kregions_add_stats(region, &stats);
	seq_printf(seq,
		   "  region %u start %#lx pages %lu present %llu registrations %llu bytes %llu populated %llu retries %llu misses %llu events %llu invalidated %llu revoked %llu\n",
		   region->id, region->start, region->npages, stats.present,
		   stats.registrations, stats.bytes, stats.populated,
		   stats.retries, stats.misses, stats.events,
		   stats.invalidated, stats.revoked);
}

/* Show the regions of a context */
void nprdma_kregions_show(struct seq_file *seq, struct nprdma_ctx *ctx)
{
	struct nprdma_kregion *region;
	unsigned long id = 0;

	while ((region = nprdma_kregions_next(ctx, &id)) != NULL) {
		nprdma_kregion_show(seq, region);
		nprdma_kregion_put(region);
	}
}
