/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_CTX_H
#define NPRDMA_CTX_H

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm_types.h>
#include <linux/mutex.h>
#include <linux/xarray.h>

#include "nprdma_limits.h"
#include "pte/nprdma_window.h"

struct device;
struct seq_file;

/* Events of regions; those of destroyed ones are kept in their context */
struct nprdma_counters {
	u64 populated;		/* pages that got a bit */
	u64 retries;		/* batches done again */
	u64 misses;		/* calls that met a page that cannot be had */
	u64 events;		/* notifications */
	u64 invalidated;	/* pages that lost a bit by these */
	u64 revoked;		/* pages that lost a bit by the user's wish */
};

/* Both areas on which windows of absent pages rest */
#define NPRDMA_CTX_REST_BYTES	(2L * NPRDMA_REST_PAGES * PAGE_SIZE)

/*
 * An open file of /dev/nprdma. It belongs to the address space that opened it,
 * which is kept from being freed, not from being torn down: nothing here
 * outlives the process's wish to exit.
 */
struct nprdma_ctx {
	struct kref ref;	/* the file, and every region */
	struct list_head list;
	struct mm_struct *mm;
	struct nprdma_user *user;
	pid_t tgid;		/* who opened it, for people */
	u64 signature;
	struct xarray regions;	/* by id */
	u32 next_region;	/* under the lock of the array */

	struct mutex lock;	/* all below */
	struct list_head devices;
	struct page *signature_page;	/* where windows rest; NULL: not yet */
	struct page *blackhole_page;
	struct nprdma_counters counters;	/* of regions that are gone */
};

struct nprdma_ctx *nprdma_ctx_create(void);
void nprdma_ctx_unlist(struct nprdma_ctx *ctx);
void nprdma_ctx_get(struct nprdma_ctx *ctx);
void nprdma_ctx_put(struct nprdma_ctx *ctx);

int nprdma_ctx_rest_pages(struct nprdma_ctx *ctx);
int nprdma_ctx_attach(struct nprdma_ctx *ctx, struct device *dev);
bool nprdma_ctx_attached(struct nprdma_ctx *ctx, struct device *dev);

void nprdma_ctx_retire(struct nprdma_ctx *ctx,
		       const struct nprdma_counters *counters);
void nprdma_counters_add(struct nprdma_counters *sum,
			 const struct nprdma_counters *counters);

void nprdma_ctxs_show(struct seq_file *seq,
		      void (*show_regions)(struct seq_file *seq,
					   struct nprdma_ctx *ctx));

#endif
