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

/**
 * nprdma_kregion_repoint - point pages of a region in all its windows
 * @region: the region, its lock held
 * @bits: &NPRDMA_PAGE_R for the R windows, &NPRDMA_PAGE_W for the W windows
 * @first: index of the first page
 * @n: number of pages
 * @pfns: as for nprdma_window_point()
 *
 * Context: any; does not sleep.
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

/**
 * nprdma_kregion_flush - nprdma_window_flush() of all windows of a region
 * @region: the region, its lock held
 * @bits: which windows, as for nprdma_kregion_repoint()
 * @first: index of the first page
 * @n: number of pages
 *
 * Context: any, spins; does not sleep.
 */
void nprdma_kregion_flush(struct nprdma_kregion *region, u32 bits,
			  unsigned long first, unsigned long n)
{
	struct nprdma_window *win;

	lockdep_assert_held(&region->lock);
	list_for_each_entry(win, &region->windows, link)
		if (bits & (win->is_write ? NPRDMA_PAGE_W : NPRDMA_PAGE_R))
			nprdma_window_flush(win, first, n);
}
