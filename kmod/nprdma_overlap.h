/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_OVERLAP_H
#define NPRDMA_OVERLAP_H

#include <linux/rbtree.h>

struct mm_struct;

/* The address space, then a page in it */
#define NPRDMA_OVERLAP_KEY unsigned __int128

/* Where a region is */
struct nprdma_overlap {
	struct rb_node node;
	NPRDMA_OVERLAP_KEY first;
	NPRDMA_OVERLAP_KEY last;
	NPRDMA_OVERLAP_KEY subtree_last;
};

int nprdma_overlap_add(struct nprdma_overlap *place,
		       const struct mm_struct *mm, unsigned long start,
		       unsigned long npages);
void nprdma_overlap_remove(struct nprdma_overlap *place);

#endif
