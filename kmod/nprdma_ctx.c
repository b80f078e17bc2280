// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include "nprdma_ctx.h"
#include "pte/nprdma_view.h"

#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

static DEFINE_MUTEX(nprdma_ctxs_lock);
static LIST_HEAD(nprdma_ctxs);

/*
 * Make the context of the current address space. Returns an ERR_PTR() if it
 * cannot. It ends by nprdma_ctx_unlist() and then nprdma_ctx_put().
 */
struct nprdma_ctx *nprdma_ctx_create(void)
{
	struct nprdma_ctx *ctx;

	/* A kernel thread has no address space */
	if (!current->mm)
		return ERR_PTR(-EPERM);

	ctx = kzalloc(sizeof(*ctx), GFP_KERNEL_ACCOUNT);
	if (!ctx)
		return ERR_PTR(-ENOMEM);

	ctx->user = nprdma_user_get();
	if (!ctx->user) {
		kfree(ctx);
		return ERR_PTR(-ENOMEM);
	}

	kref_init(&ctx->ref);
	mutex_init(&ctx->lock);
	xa_init_flags(&ctx->regions, XA_FLAGS_ALLOC1 | XA_FLAGS_ACCOUNT);
	ctx->tgid = task_tgid_nr(current);
	ctx->signature = get_random_u64();
	ctx->mm = current->mm;
	mmgrab(ctx->mm);

	mutex_lock(&nprdma_ctxs_lock);
	list_add_tail(&ctx->list, &nprdma_ctxs);
	mutex_unlock(&nprdma_ctxs_lock);
	return ctx;
}

/* From here on nprdma_ctxs_show() does not show the context any more */
void nprdma_ctx_unlist(struct nprdma_ctx *ctx)
{
	mutex_lock(&nprdma_ctxs_lock);
	list_del(&ctx->list);
	mutex_unlock(&nprdma_ctxs_lock);
}

static void nprdma_ctx_free_rest(struct nprdma_ctx *ctx)
{
	nprdma_rest_free(ctx->signature_page);
	nprdma_rest_free(ctx->blackhole_page);
	ctx->signature_page = NULL;
	ctx->blackhole_page = NULL;
	nprdma_uncharge(ctx->user, NPRDMA_CTX_REST_BYTES);
}

static void nprdma_ctx_free(struct kref *ref)
{
	struct nprdma_ctx *ctx = container_of(ref, struct nprdma_ctx, ref);

	if (ctx->signature_page)
		nprdma_ctx_free_rest(ctx);
	xa_destroy(&ctx->regions);
	mmdrop(ctx->mm);
	nprdma_user_put(ctx->user);
	kfree(ctx);
}

/* May sleep */
void nprdma_ctx_put(struct nprdma_ctx *ctx)
{
	kref_put(&ctx->ref, nprdma_ctx_free);
}

/*
 * Make the rest areas, unless they exist: when the first region is exported,
 * because only devices need them. Returns 0, -EDQUOT, -ENOSPC or -ENOMEM.
 */
int nprdma_ctx_rest_pages(struct nprdma_ctx *ctx)
{
	int ret = 0;

	mutex_lock(&ctx->lock);
	if (ctx->signature_page)
		goto unlock;
	ret = nprdma_charge(ctx->user, NPRDMA_CTX_REST_BYTES);
	if (ret)
		goto unlock;
	ctx->signature_page = nprdma_rest_alloc(ctx->signature);
	ctx->blackhole_page = nprdma_rest_alloc(0);
	if (!ctx->signature_page || !ctx->blackhole_page) {
		nprdma_ctx_free_rest(ctx);
		ret = -ENOMEM;
	}
unlock:
	mutex_unlock(&ctx->lock);
	return ret;
}

/* Add what is counted under the lock of a region */
void nprdma_stats_add(struct nprdma_ioc_stats *sum,
		      const struct nprdma_ioc_stats *stats)
{
	sum->registrations += stats->registrations;
	sum->present += stats->present;
	sum->populated += stats->populated;
	sum->retries += stats->retries;
	sum->misses += stats->misses;
	sum->events += stats->events;
	sum->invalidated += stats->invalidated;
	sum->revoked += stats->revoked;
}

/* Show all contexts, and their regions by @show_regions */
void nprdma_ctxs_show(struct seq_file *seq,
		      void (*show_regions)(struct seq_file *seq,
					   struct nprdma_ctx *ctx))
{
	struct nprdma_ctx *ctx;

	/* No context of the list is closed while the lock is held */
	mutex_lock(&nprdma_ctxs_lock);
	list_for_each_entry(ctx, &nprdma_ctxs, list) {
		seq_printf(seq, "context tgid %d user %u\n", ctx->tgid,
			   from_kuid_munged(seq_user_ns(seq), ctx->user->uid));
		show_regions(seq, ctx);
	}
	mutex_unlock(&nprdma_ctxs_lock);
}
