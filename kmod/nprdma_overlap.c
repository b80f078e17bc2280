// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Bounds how many regions watch a page. The kernel calls the notifier of each of
 * them when it takes the page, for whatever process it needs the memory.
 */

#include "nprdma_overlap.h"
#include "nprdma_uapi.h"

#include <linux/interval_tree_generic.h>
#include <linux/mm.h>
#include <linux/mutex.h>

#define FIRST(place) ((place)->first)
#define LAST(place)  ((place)->last)

INTERVAL_TREE_DEFINE(struct nprdma_overlap, node, NPRDMA_OVERLAP_KEY,
		     subtree_last, FIRST, LAST, static, nprdma_overlap_tree)

/* The regions of all address spaces */
static DEFINE_MUTEX(nprdma_overlap_lock);
static struct rb_root_cached nprdma_overlap_root = RB_ROOT_CACHED;

/* Whether each page of a new region has less than the largest number */
static bool nprdma_overlap_fits(const struct nprdma_overlap *place)
{
	NPRDMA_OVERLAP_KEY last[NPRDMA_MAX_OVERLAP];
	struct nprdma_overlap *other;
	unsigned int i, n = 0;

	other = nprdma_overlap_tree_iter_first(&nprdma_overlap_root,
					       place->first, place->last);
	/* They come in the order in which they begin */
	for (; other; other = nprdma_overlap_tree_iter_next(other, place->first,
							    place->last)) {
		for (i = 0; i < n; ) {
			if (last[i] < other->first)
				last[i] = last[--n];
			else
				i++;
		}
		last[n++] = other->last;
		if (n == NPRDMA_MAX_OVERLAP)
			return false;
	}
	return true;
}

/* Add a region, unless there are too many at its place: -EDQUOT. May sleep. */
int nprdma_overlap_add(struct nprdma_overlap *place,
		       const struct mm_struct *mm, unsigned long start,
		       unsigned long npages)
{
	NPRDMA_OVERLAP_KEY space = (NPRDMA_OVERLAP_KEY)(unsigned long)mm << 64;
	int ret = -EDQUOT;

	place->first = space | (start >> PAGE_SHIFT);
	place->last = place->first + npages - 1;
	mutex_lock(&nprdma_overlap_lock);
	if (nprdma_overlap_fits(place)) {
		nprdma_overlap_tree_insert(place, &nprdma_overlap_root);
		ret = 0;
	}
	mutex_unlock(&nprdma_overlap_lock);
	return ret;
}

/* Undo nprdma_overlap_add(). May sleep. */
void nprdma_overlap_remove(struct nprdma_overlap *place)
{
	mutex_lock(&nprdma_overlap_lock);
	nprdma_overlap_tree_remove(place, &nprdma_overlap_root);
	mutex_unlock(&nprdma_overlap_lock);
}
