// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * All views of a region at once, on every device. Page-in and page-out decide
 * which pages are re-pointed, and when.
 */

#include <linux/list.h>
#include <linux/lockdep.h>

#include "nprdma_repoint.h"
#include "nprdma_kregion.h"
#include "nprdma_trace.h"
#include "pte/nprdma_view.h"

/*
 * Point pages of a region in all its views of these bits, with the lock held,
 * as nprdma_view_point() does.
 */
void nprdma_kregion_repoint(struct nprdma_kregion *region, u32 bits,
			    unsigned long first, unsigned long n,
			    const unsigned long *pfns)
{
	struct nprdma_view *view;

	lockdep_assert_held(&region->lock);
	if (list_empty(&region->views))
		return;
	trace_nprdma_repoint(region->ctx->tgid, region->id, bits, first, n,
			     pfns);
	list_for_each_entry(view, &region->views, link) {
		if (!(bits & (view->is_write ? NPRDMA_PAGE_W : NPRDMA_PAGE_R)))
			continue;
		if (!pfns || !view->closing)
			nprdma_view_point(view, first, n, pfns);
	}
}

/* nprdma_view_flush() of all views of these bits, with the lock held */
void nprdma_kregion_flush(struct nprdma_kregion *region, u32 bits,
			  unsigned long first, unsigned long n)
{
	struct nprdma_view *view;

	lockdep_assert_held(&region->lock);
	list_for_each_entry(view, &region->views, link)
		if (bits & (view->is_write ? NPRDMA_PAGE_W : NPRDMA_PAGE_R))
			nprdma_view_flush(view, first, n);
}
