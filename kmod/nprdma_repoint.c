// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * All windows of a region at once, on every device. Page-in and page-out decide
 * which pages are re-pointed, and when.
 */

#include <linux/list.h>
#include <linux/lockdep.h>

#include "nprdma_repoint.h"
#include "nprdma_kregion.h"
#include "nprdma_trace.h"
#include "pte/nprdma_window.h"

/*
 * Point pages of a region in all its windows of these bits, with the lock held,
 * as nprdma_window_point() does.
 */
void nprdma_kregion_repoint(struct nprdma_kregion *region, u32 bits,
			    unsigned long first, unsigned long n,
			    const unsigned long *pfns)
{
	struct nprdma_window *win;

	lockdep_assert_held(&region->lock);
	if (list_empty(&region->windows))
		return;
	trace_nprdma_repoint(region->ctx->tgid, region->id, bits, first, n,
			     pfns);
	list_for_each_entry(win, &region->windows, link) {
		if (!(bits & (win->is_write ? NPRDMA_PAGE_W : NPRDMA_PAGE_R)))
			continue;
		if (!pfns || !win->closing)
			nprdma_window_point(win, first, n, pfns);
	}
}

/* nprdma_window_flush() of all windows of these bits, with the lock held */
void nprdma_kregion_flush(struct nprdma_kregion *region, u32 bits,
			  unsigned long first, unsigned long n)
{
	struct nprdma_window *win;

	lockdep_assert_held(&region->lock);
	list_for_each_entry(win, &region->windows, link)
		if (bits & (win->is_write ? NPRDMA_PAGE_W : NPRDMA_PAGE_R))
			nprdma_window_flush(win, first, n);
}
