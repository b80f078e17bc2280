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
#include "nprdma_uapi.h"
#include "pte/nprdma_view.h"

struct seq_file;

/* Both rest areas, at which views of absent pages point */
#define NPRDMA_CTX_REST_BYTES	(2L * (PAGE_SIZE << NPRDMA_REST_ORDER))

/*
 * An open file of /dev/nprdma. It belongs to the address space that opened it.
 * It holds a reference that keeps the mm_struct allocated (mmgrab()), but does
 * not prevent its teardown when the process exits.
 */
struct nprdma_ctx {
	struct kref ref;	/* the file, and every region */
	struct list_head list;
	struct mm_struct *mm;
	struct nprdma_user *user;
	pid_t tgid;		/* process that opened it, for logs */
	u64 signature;
	struct xarray regions;	/* by id */
	u32 next_region;	/* under the lock of the array */

	struct mutex lock;	/* all below */
	struct page *signature_page;	/* rest areas; NULL: not made yet */
	struct page *blackhole_page;
	struct nprdma_ioc_stats stats;	/* of destroyed regions */
};

struct nprdma_ctx *nprdma_ctx_create(void);
void nprdma_ctx_unlist(struct nprdma_ctx *ctx);
void nprdma_ctx_put(struct nprdma_ctx *ctx);

int nprdma_ctx_rest_pages(struct nprdma_ctx *ctx);

void nprdma_stats_add(struct nprdma_ioc_stats *sum,
		      const struct nprdma_ioc_stats *stats);

void nprdma_ctxs_show(struct seq_file *seq,
		      void (*show_regions)(struct seq_file *seq,
					   struct nprdma_ctx *ctx));

#endif
