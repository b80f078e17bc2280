/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_KREGIONS_H
#define NPRDMA_KREGIONS_H

#include <linux/types.h>

struct nprdma_ctx;
struct nprdma_ioc_stats;
struct nprdma_kregion;
struct seq_file;

int nprdma_kregions_create(struct nprdma_ctx *ctx, unsigned long start,
			   unsigned long length, bool retire,
			   struct nprdma_kregion **region_p);
int nprdma_kregions_destroy(struct nprdma_ctx *ctx, u32 id);
void nprdma_kregions_destroy_all(struct nprdma_ctx *ctx);
struct nprdma_kregion *nprdma_kregions_find(struct nprdma_ctx *ctx, u32 id);
struct nprdma_kregion *nprdma_kregions_next(struct nprdma_ctx *ctx,
					    unsigned long *id);
void nprdma_kregions_add_stats(struct nprdma_kregion *region,
			       struct nprdma_ioc_stats *stats);
void nprdma_kregions_show(struct seq_file *seq, struct nprdma_ctx *ctx);

#endif
