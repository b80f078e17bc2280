// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * A region, and how pages leave it: the page-out half of ARCHITECTURE 3. The
 * page-in half is in nprdma_kpopulate.c.
 */

#include "nprdma_kregion.h"
#include "pte/nprdma_view.h"

#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

static atomic64_t nprdma_serial;

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

/* A range of pages; empty while end is 0 */
struct nprdma_hull {
	unsigned long first;
	unsigned long end;
};

/*
 * First step of page-out: clear bits of the words. Chunks without a present
 * page are skipped, unless the words of absent pages are to be counted on, too.
 */
static unsigned long nprdma_clear_words(struct nprdma_kregion *region, u32 bits,
					unsigned long first, unsigned long end,
					bool touch, struct nprdma_hull *hull)
{
	unsigned long lost = 0;
	unsigned long page, stop;
	u32 word;

	for (page = first; page < end; page = stop) {
		stop = min(end, round_down(page, NPRDMA_CHUNK_PAGES) +
				NPRDMA_CHUNK_PAGES);
		if (!region->chunks[page / NPRDMA_CHUNK_PAGES].present &&
		    !touch)
			continue;

		for (; page < stop; page++) {
			word = region->states.words[page];
			if (!(word & bits) && !touch)
				continue;
			WRITE_ONCE(region->states.words[page],
				   nprdma_state_next(word, word &
						     NPRDMA_PAGE_BITS & ~bits));
			if (!(word & bits))
				continue;
			if (!lost++)
				hull->first = page;
			hull->end = page + 1;
		}
	}
	return lost;
}

/*
 * Last step of page-out: pages that a device may have written are marked dirty,
 * since the page table of the CPU does not show writes of a device, and the
 * entries are cleared. The frame still belongs to the process: the caller runs
 * in a notifier, or no notification has come since the page was put in.
 */
static void nprdma_forget(struct nprdma_kregion *region, u32 bits,
			  const struct nprdma_hull *hull)
{
	unsigned long page, *entry;

	for (page = hull->first; page < hull->end; page++) {
		if (!region->chunks[page / NPRDMA_CHUNK_PAGES].present) {
			page |= NPRDMA_CHUNK_PAGES - 1;
			continue;
		}
		entry = nprdma_kregion_entry(region, page);
		if (*entry & NPRDMA_ENTRY_W)
			nprdma_mark_dirty(*entry >> NPRDMA_ENTRY_SHIFT);
		*entry &= ~NPRDMA_ENTRY_W;
		if ((bits & NPRDMA_PAGE_R) && *entry) {
			*entry = 0;
			region->chunks[page / NPRDMA_CHUNK_PAGES].present--;
			region->stats.present--;
		}
	}
}

/*
 * Take pages away from devices, with the lock held, in the order of
 * ARCHITECTURE 3: states, views, flush with drain. The kernel may take the
 * pages when this has returned. R implies W. With @touch, words of pages that
 * lose no bit change as well. Neither sleeps nor allocates. Returns the number
 * of pages that lost a bit.
 */
unsigned long nprdma_kregion_clear(struct nprdma_kregion *region, u32 bits,
				   unsigned long first, unsigned long n,
				   bool touch)
{
	struct nprdma_hull hull = { 0, 0 };
	unsigned long lost;

	lockdep_assert_held(&region->lock);

	if (bits & NPRDMA_PAGE_R)
		bits |= NPRDMA_PAGE_W;
	lost = nprdma_clear_words(region, bits, first, first + n, touch, &hull);
	if (!lost)
		return 0;

	/*
	 * A reader of the new data of a page, also a device, sees that its state
	 * has changed
	 */
	dma_mb();
	n = hull.end - hull.first;
	nprdma_kregion_repoint(region, bits, hull.first, n, NULL);
	nprdma_kregion_flush(region, bits, hull.first, n);
	nprdma_forget(region, bits, &hull);
	return lost;
}

/*
 * Count a revocation by the user, with the lock held. Frames of these pages
 * that were looked up before are not put in any more. The number is recorded
 * per batch, so that frequent revocations do not prevent other pages from being
 * populated.
 */
static void nprdma_count_revocation(struct nprdma_kregion *region,
				    unsigned long first, unsigned long n)
{
	__u32 *count = &region->states.header->revocations;
	unsigned long end = first + n;
	unsigned long page;

	lockdep_assert_held(&region->lock);

	WRITE_ONCE(*count, *count + 1);
	for (page = first; page < end;
	     page = round_down(page, NPRDMA_BATCH) + NPRDMA_BATCH)
		nprdma_kregion_last(region, page)->revoked = *count;
}

/*
 * Note the notification in progress at these pages, with the lock held: frames
 * of them that were looked up before are not put in any more.
 */
static void nprdma_note_notification(struct nprdma_kregion *region,
				     unsigned long seq, unsigned long first,
				     unsigned long n)
{
	unsigned long end = first + n;
	unsigned long page;

	for (page = first; page < end;
	     page = round_down(page, NPRDMA_BATCH) + NPRDMA_BATCH)
		WRITE_ONCE(nprdma_kregion_last(region, page)->notified, seq);
}

/*
 * nprdma_kregion_clear() at the user's request, in parts, which are added to
 * @sum. May sleep. Returns -EINTR if the process was killed, as large regions
 * take long; a region that ends goes on to its end.
 */
int nprdma_kregion_revoke(struct nprdma_kregion *region, u32 bits,
			  unsigned long first, unsigned long n, bool touch,
			  u64 *sum)
{
	unsigned long end = first + n;
	unsigned long lost;

	for (; first < end; first += n) {
		if (!READ_ONCE(region->dead) && fatal_signal_pending(current))
			return -EINTR;
		n = min(end - first, NPRDMA_CLEAR_BATCH);
		spin_lock(&region->lock);
		nprdma_count_revocation(region, first, n);
		lost = nprdma_kregion_clear(region, bits, first, n, touch);
		region->stats.revoked += lost;
		spin_unlock(&region->lock);
		*sum += lost;
		cond_resched();
	}
	return 0;
}

/*
 * The kernel is about to take pages, or to change their protection. Called by
 * any part of the kernel, such as reclaim or compaction, and for any process,
 * with unknown locks held. The region's lock may be released between batches.
 * Page-ins that began before fail at the pages of earlier batches, and are taken
 * back at those of later ones; new ones wait until this has returned.
 *
 * The kernel tells of an unmapping before it lets go of the address space, so
 * pages are retired before anything else can be mapped there.
 */
static bool nprdma_invalidate(struct mmu_interval_notifier *notifier,
			      const struct mmu_notifier_range *range,
			      unsigned long cur_seq)
{
	struct nprdma_kregion *region =
		container_of(notifier, struct nprdma_kregion, notifier);
	unsigned long region_end = region->start +
				   (region->npages << PAGE_SHIFT);
	unsigned long first, end, n, lost = 0;

	first = (max(range->start, region->start) - region->start) >> PAGE_SHIFT;
	end = (min(range->end, region_end) - region->start + PAGE_SIZE - 1) >>
	      PAGE_SHIFT;

	spin_lock(&region->lock);
	mmu_interval_set_seq(notifier, cur_seq);
	region->stats.events++;
	while (first < end) {
		n = min(end - first, NPRDMA_CLEAR_BATCH);
		nprdma_note_notification(region, cur_seq, first, n);
		if (region->retired && range->event == MMU_NOTIFY_UNMAP)
			bitmap_set(region->retired + BIT_WORD(first),
				   first % BITS_PER_LONG, n);
		lost += nprdma_kregion_clear(region, NPRDMA_PAGE_BITS, first,
					     n, false);
		first += n;
		if (first == end)
			break;
		/* Let waiters have the lock, even if this must not sleep */
		spin_unlock(&region->lock);
		if (mmu_notifier_range_blockable(range))
			cond_resched();
		spin_lock(&region->lock);
	}
	region->stats.invalidated += lost;
	spin_unlock(&region->lock);
	return true;
}

static const struct mmu_interval_notifier_ops nprdma_notifier_ops = {
	.invalidate = nprdma_invalidate,
};

int nprdma_kregion_charge(struct nprdma_kregion *region, long bytes)
{
	int ret = nprdma_charge(region->ctx->user, bytes);

	if (!ret)
		atomic_long_add(bytes, &region->bytes);
	return ret;
}

void nprdma_kregion_uncharge(struct nprdma_kregion *region, long bytes)
{
	atomic_long_sub(bytes, &region->bytes);
	nprdma_uncharge(region->ctx->user, bytes);
}

void nprdma_kregion_get(struct nprdma_kregion *region)
{
	kref_get(&region->ref);
}

static unsigned long nprdma_num_chunks(const struct nprdma_kregion *region)
{
	return DIV_ROUND_UP(region->npages, NPRDMA_CHUNK_PAGES);
}

/* nprdma_kregions_destroy() has undone the rest, or it was never done */
static void nprdma_kregion_free(struct kref *ref)
{
	struct nprdma_kregion *region =
		container_of(ref, struct nprdma_kregion, ref);

	WARN_ON(!list_empty(&region->views));
	nprdma_kregion_uncharge(region, atomic_long_read(&region->bytes));
	nprdma_uncharge_region(region->ctx->user);
	vfree(region->states.header);
	kvfree(region->chunks);
	mutex_destroy(&region->attach_lock);
	mutex_destroy(&region->reg_lock);
	nprdma_ctx_put(region->ctx);
	kfree(region);
}

/* May sleep */
void nprdma_kregion_put(struct nprdma_kregion *region)
{
	kref_put(&region->ref, nprdma_kregion_free);
}

static struct nprdma_kregion *nprdma_kregion_init(struct nprdma_ctx *ctx,
						  unsigned long start,
						  unsigned long npages)
{
	struct nprdma_kregion *region;

	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		return NULL;

	kref_init(&region->ref);
	kref_get(&ctx->ref);
	region->ctx = ctx;
	region->mm = ctx->mm;
	region->start = start;
	region->npages = npages;
	region->serial = atomic64_inc_return(&nprdma_serial);
	region->tree = RB_ROOT_CACHED;
	mutex_init(&region->reg_lock);
	xa_init_flags(&region->registrations,
		      XA_FLAGS_ALLOC1 | XA_FLAGS_ACCOUNT);
	spin_lock_init(&region->lock);
	INIT_LIST_HEAD(&region->views);
	mutex_init(&region->attach_lock);
	INIT_LIST_HEAD(&region->devices);
	return region;
}

/* Bytes of header and states of a region */
static size_t nprdma_states_memory(unsigned long npages)
{
	return PAGE_SIZE + PAGE_ALIGN(npages * sizeof(u32));
}

static int nprdma_kregion_alloc_states(struct nprdma_kregion *region,
				       bool retire)
{
	size_t retired = retire ? PAGE_ALIGN(BITS_TO_BYTES(region->npages)) : 0;
	size_t chunks = nprdma_num_chunks(region) * sizeof(*region->chunks);
	struct nprdma_states_header *header;
	int ret;

	region->states.size = nprdma_states_memory(region->npages) + retired;
	ret = nprdma_kregion_charge(region, sizeof(*region) + chunks +
				    region->states.size);
	if (ret)
		return ret;

	region->chunks = kvzalloc(chunks, NPRDMA_GFP_LARGE);
	if (!region->chunks)
		return -ENOMEM;

	header = __vmalloc(region->states.size, NPRDMA_GFP_LARGE | __GFP_ZERO);
	if (!header)
		return -ENOMEM;

	region->states.header = header;
	region->states.words = (void *)header + PAGE_SIZE;
	if (retire)
		region->retired = (void *)header +
				  nprdma_states_memory(region->npages);
	header->magic = NPRDMA_STATES_MAGIC;
	header->abi = NPRDMA_ABI_VERSION;
	header->address = region->start;
	header->length = (u64)region->npages << PAGE_SHIFT;
	header->signature = region->ctx->signature;
	header->states_offset = PAGE_SIZE;
	header->states_size = region->states.size;
	header->id = region->serial;
	return 0;
}

/*
 * Make a region that is not watched yet. Returns an ERR_PTR() with what
 * NPRDMA_IOC_REGION_CREATE returns for limits and memory.
 */
struct nprdma_kregion *nprdma_kregion_alloc(struct nprdma_ctx *ctx,
					    unsigned long start,
					    unsigned long npages, bool retire)
{
	struct nprdma_kregion *region;
	int ret;

	ret = nprdma_charge_region(ctx->user);
	if (ret)
		return ERR_PTR(ret);

	region = nprdma_kregion_init(ctx, start, npages);
	if (!region) {
		nprdma_uncharge_region(ctx->user);
		return ERR_PTR(-ENOMEM);
	}

	ret = nprdma_kregion_alloc_states(region, retire);
	if (ret) {
		nprdma_kregion_put(region);
		return ERR_PTR(ret);
	}
	return region;
}

/*
 * Receive notifications for the range of a region, until
 * nprdma_kregion_unwatch(). Returns 0; -EDQUOT: too many regions do so; or an
 * error of mmu_interval_notifier_insert().
 */
int nprdma_kregion_watch(struct nprdma_kregion *region)
{
	int ret = nprdma_overlap_add(&region->place, region->mm, region->start,
				     region->npages);

	if (ret)
		return ret;
	ret = mmu_interval_notifier_insert(&region->notifier, region->mm,
					   region->start,
					   region->npages << PAGE_SHIFT,
					   &nprdma_notifier_ops);
	if (ret)
		nprdma_overlap_remove(&region->place);
	else
		/*
		 * While another notification is delivered, the kernel only
		 * remembers a new notifier, which then misses what is unmapped.
		 * This waits until it is in place.
		 */
		mmu_interval_read_begin(&region->notifier);
	return ret;
}

/* May sleep */
void nprdma_kregion_unwatch(struct nprdma_kregion *region)
{
	mmu_interval_notifier_remove(&region->notifier);
	nprdma_overlap_remove(&region->place);
}

/* Free the tables of frames of a dead region. May sleep. */
void nprdma_kregion_free_tables(struct nprdma_kregion *region)
{
	unsigned long i, freed = 0;
	void *table;

	for (i = 0; i < nprdma_num_chunks(region); i++) {
		spin_lock(&region->lock);
		table = region->chunks[i].table;
		region->chunks[i].table = NULL;
		spin_unlock(&region->lock);
		if (table) {
			free_page((unsigned long)table);
			freed += PAGE_SIZE;
		}
		cond_resched();
	}
	nprdma_kregion_uncharge(region, freed);
}
