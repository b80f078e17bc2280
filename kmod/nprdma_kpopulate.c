// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * How pages get into regions: the page-in half of ARCHITECTURE 3. No reference
 * to a page is held. A page is put in under the region's lock, and only if no
 * notification of its batch has come since the page was looked up. Every later
 * notification takes the same lock before the kernel takes the page.
 *
 * Notifications of other pages of the region do not count. While memory is
 * short, or KSM merges pages, there may be some all the time.
 */

#include "nprdma_kpopulate.h"
#include "nprdma_kreg.h"
#include "nprdma_kregion.h"

#include <linux/hmm.h>
#include <linux/hugetlb.h>
#include <linux/jiffies.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/userfaultfd_k.h>

/*
 * A batch whose pages are taken away repeatedly fails after this number of
 * tries, but not before this time, since the duration of a try varies.
 */
#define NPRDMA_TRIES    64
#define NPRDMA_PATIENCE HZ

/* Consecutive pages in one chunk. Sets have bit i for page first + i. */
struct nprdma_batch {
	unsigned long first;
	unsigned int n;
	u32 bits;		/* they are to get */
	bool resident;
	unsigned long seq;	/* of the notifier, before the look-up */
	u32 revocations;	/* of the region, at the look-up */
	bool unless_revoked;	/* revocations is the caller's, and older */
	unsigned long refused;	/* never given to a device */
	unsigned long anon;	/* only if the page is anonymous */
	unsigned long pfns[NPRDMA_BATCH];	/* of hmm_range_fault() */
};

enum nprdma_kind {
	NPRDMA_KIND_ALLOWED,
	NPRDMA_KIND_ANON,	/* private mapping: copied pages only */
	NPRDMA_KIND_REFUSED,
};

#ifndef VM_SHADOW_STACK
#define VM_SHADOW_STACK 0
#endif

/*
 * A write by a device causes no page fault, from which file systems would learn
 * of it. So pages that a file system writes back are refused. Memory without
 * ordinary pages is refused, too, and so are shadow stacks: their page table
 * entries look writable, but the process may not write them.
 */
static enum nprdma_kind nprdma_vma_kind(struct vm_area_struct *vma)
{
	if (vma->vm_flags & (VM_IO | VM_PFNMAP | VM_MIXEDMAP | VM_SHADOW_STACK))
		return NPRDMA_KIND_REFUSED;
	if (vma_is_anonymous(vma) || is_vm_hugetlb_page(vma))
		return NPRDMA_KIND_ALLOWED;
	if (!vma->vm_file)
		return NPRDMA_KIND_REFUSED;
	if (shmem_mapping(vma->vm_file->f_mapping))
		return NPRDMA_KIND_ALLOWED;
	return (vma->vm_flags & VM_SHARED) ? NPRDMA_KIND_REFUSED :
	       NPRDMA_KIND_ANON;
}

static unsigned long nprdma_batch_address(const struct nprdma_kregion *region,
					  const struct nprdma_batch *batch)
{
	return region->start + (batch->first << PAGE_SHIFT);
}

/*
 * Find which pages of a batch are allowed, with the mmap lock held. Unless only
 * resident pages are asked for, the batch ends before one that is not. Pages
 * that are not mapped fail in the look-up.
 *
 * Returns 0, or -EOPNOTSUPP if the first page is not allowed.
 */
static int nprdma_batch_check(struct nprdma_kregion *region,
			      struct nprdma_batch *batch)
{
	unsigned long start = nprdma_batch_address(region, batch);
	unsigned long end = start + ((unsigned long)batch->n << PAGE_SHIFT);
	VMA_ITERATOR(vmi, region->mm, start);
	struct vm_area_struct *vma;
	enum nprdma_kind kind;
	unsigned long pages;

	batch->refused = 0;
	batch->anon = 0;
	for_each_vma_range(vmi, vma, end) {
		kind = nprdma_vma_kind(vma);
		pages = GENMASK((min(vma->vm_end, end) - 1 - start) >>
				PAGE_SHIFT,
				(max(vma->vm_start, start) - start) >>
				PAGE_SHIFT);
		if (kind == NPRDMA_KIND_REFUSED)
			batch->refused |= pages;
		else if (kind == NPRDMA_KIND_ANON)
			batch->anon |= pages;
	}

	if (batch->resident || !batch->refused)
		return 0;
	batch->n = __ffs(batch->refused);
	return batch->n ? 0 : -EOPNOTSUPP;
}

/*
 * Whether a page cannot be brought in because a userfaultfd has to supply it,
 * or to allow the write. hmm_range_fault() does not wait for that, and reports
 * the same as for memory that is not mapped. The process itself waits. With the
 * mmap lock held.
 */
static bool nprdma_batch_awaits_user(struct nprdma_kregion *region,
				     const struct nprdma_batch *batch)
{
	struct vm_area_struct *vma;
	vm_flags_t needed = VM_READ;

	if (batch->bits & NPRDMA_PAGE_W)
		needed |= VM_WRITE;
	vma = vma_lookup(region->mm, nprdma_batch_address(region, batch));
	return vma && userfaultfd_armed(vma) &&
	       (vma->vm_flags & needed) == needed;
}

/*
 * Look pages up, and bring them in unless only resident ones are asked for. A
 * request for reading does not break copy-on-write.
 *
 * The wait for the sequence number lasts until the notifications up to it are
 * over. Each other one has a greater number. The number is taken with the lock
 * held, so that the process cannot unmap other pages of the region between it
 * and the look-up, which compares the number of all of the region.
 *
 * Returns -EBUSY if a notification of any page of the region has come
 * meanwhile.
 */
static int nprdma_batch_look_up(struct nprdma_kregion *region,
				struct nprdma_batch *batch)
{
	struct hmm_range range = {
		.notifier = &region->notifier,
		.start = nprdma_batch_address(region, batch),
		.hmm_pfns = batch->pfns,
	};
	int ret;

	if (!batch->resident) {
		range.default_flags = HMM_PFN_REQ_FAULT;
		if (batch->bits & NPRDMA_PAGE_W)
			range.default_flags |= HMM_PFN_REQ_WRITE;
	}

	memset(batch->pfns, 0, sizeof(batch->pfns));
	if (mmap_read_lock_killable(region->mm))
		return -EINTR;
	if (!batch->unless_revoked)
		batch->revocations =
			READ_ONCE(region->states.header->revocations);
	batch->seq = mmu_interval_read_begin(&region->notifier);
	range.notifier_seq = batch->seq;
	ret = nprdma_batch_check(region, batch);
	if (!ret) {
		range.end = range.start +
			    ((unsigned long)batch->n << PAGE_SHIFT);
		ret = hmm_range_fault(&range);
		/* Of a larger batch the failing page is not known */
		if (ret == -EFAULT && batch->n == 1 &&
		    nprdma_batch_awaits_user(region, batch))
			ret = -ENODATA;
	}
	mmap_read_unlock(region->mm);
	/* -EPERM: the mapping is not writable */
	return (ret == -EPERM) ? -EFAULT : ret;
}

/*
 * Whether one of the pages has been notified of since. Exact with the lock
 * held.
 *
 * mmu_interval_read_retry() answers for all of the region, and would do so for
 * ever where the kernel takes pages all the time. So its number is also kept
 * for each batch of pages. It may not wrap around between look-up and commit,
 * however long the thread is not scheduled there.
 */
static bool nprdma_batch_is_notified(struct nprdma_kregion *region,
				     const struct nprdma_batch *batch)
{
	BUILD_BUG_ON(BITS_PER_LONG < 64);
	return mmu_interval_read_retry(&region->notifier, batch->seq) &&
	       READ_ONCE(nprdma_kregion_last(region, batch->first)->notified) >
	       batch->seq;
}

/*
 * Look pages up until no notification disturbs it, or one of these pages is
 * notified of. Each time more of them are mapped.
 */
static int nprdma_batch_fault(struct nprdma_kregion *region,
			      struct nprdma_batch *batch)
{
	unsigned int tries = 0;
	int ret;

	do {
		ret = nprdma_batch_look_up(region, batch);
	} while (ret == -EBUSY && ++tries < NPRDMA_TRIES &&
		 !nprdma_batch_is_notified(region, batch));
	return ret;
}

/* The pages that were looked up and, if they stay mapped, may be put in */
static unsigned long nprdma_batch_usable(const struct nprdma_batch *batch)
{
	unsigned long needed = HMM_PFN_VALID;
	unsigned long usable = 0;
	struct page *page;
	unsigned int i;

	if (batch->bits & NPRDMA_PAGE_W)
		needed |= HMM_PFN_WRITE;
	for (i = 0; i < batch->n; i++) {
		if ((batch->refused & BIT(i)) ||
		    (batch->pfns[i] & (needed | HMM_PFN_ERROR)) != needed)
			continue;
		page = hmm_pfn_to_page(batch->pfns[i]);
		if (!is_zone_device_page(page) &&
		    (!((batch->anon >> i) & 1) || PageAnon(page)))
			usable |= BIT(i);
	}
	return usable;
}

/* The pages that lack one of the bits */
static unsigned long nprdma_batch_absent(const struct nprdma_kregion *region,
					 const struct nprdma_batch *batch)
{
	const u32 *words = region->states.words + batch->first;
	unsigned long absent = 0;
	unsigned int i;

	for (i = 0; i < batch->n; i++) {
		if (batch->bits & ~READ_ONCE(words[i]))
			absent |= BIT(i);
	}
	return absent;
}

static unsigned long nprdma_batch_frame(const struct nprdma_batch *batch,
					unsigned int i)
{
	return page_to_pfn(hmm_pfn_to_page(batch->pfns[i]));
}

static void nprdma_batch_remember(struct nprdma_kregion *region,
				  const struct nprdma_batch *batch,
				  unsigned int i)
{
	unsigned long frame = nprdma_batch_frame(batch, i);
	unsigned long page = batch->first + i;
	unsigned long *entry = nprdma_kregion_entry(region, page);
	u32 word = region->states.words[page];

	if (!*entry) {
		region->chunks[page / NPRDMA_CHUNK_PAGES].present++;
		region->stats.present++;
	} else {
		WARN_ON_ONCE(*entry >> NPRDMA_ENTRY_SHIFT != frame);
	}
	*entry = frame << NPRDMA_ENTRY_SHIFT | NPRDMA_ENTRY_PRESENT;
	if (batch->bits & NPRDMA_PAGE_W)
		*entry |= NPRDMA_ENTRY_W;
	/* A reader of the bits finds the views re-pointed */
	smp_store_release(&region->states.words[page],
			  nprdma_state_next(word, batch->bits));
}

/*
 * Put the pages of a batch in, with the lock held: views, flush, states.
 * Pages that have the bits are skipped. The batch ends before a page that
 * cannot be used, unless only resident pages are asked for.
 *
 * Returns the number of pages that got a bit.
 */
static unsigned int nprdma_batch_commit(struct nprdma_kregion *region,
					struct nprdma_batch *batch)
{
	unsigned long absent = nprdma_batch_absent(region, batch);
	unsigned long set = absent & nprdma_batch_usable(batch);
	unsigned long frame;
	unsigned int i;

	if (!batch->resident && set != absent) {
		batch->n = __ffs(absent & ~set);
		set &= BIT(batch->n) - 1;
	}
	if (!set)
		return 0;

	for_each_set_bit(i, &set, batch->n) {
		frame = nprdma_batch_frame(batch, i);
		/* Reclaim would drop a clean page that a device has written */
		if (batch->bits & NPRDMA_PAGE_W)
			nprdma_mark_dirty(frame);
		nprdma_kregion_repoint(region, batch->bits, batch->first + i, 1,
				       &frame);
	}
	nprdma_kregion_flush(region, batch->bits, batch->first, batch->n);
	for_each_set_bit(i, &set, batch->n)
		nprdma_batch_remember(region, batch, i);
	return hweight_long(set);
}

/* Make sure that the table of the chunk of a batch exists */
static int nprdma_batch_table(struct nprdma_kregion *region,
			      const struct nprdma_batch *batch)
{
	struct nprdma_chunk *chunk =
		&region->chunks[batch->first / NPRDMA_CHUNK_PAGES];
	unsigned long *table;
	int ret;

	if (READ_ONCE(chunk->table))
		return 0;

	ret = nprdma_kregion_charge(region, PAGE_SIZE);
	if (ret)
		return ret;

	table = (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
	if (!table) {
		nprdma_kregion_uncharge(region, PAGE_SIZE);
		return -ENOMEM;
	}

	spin_lock(&region->lock);
	if (!chunk->table && !region->dead) {
		WRITE_ONCE(chunk->table, table);
		table = NULL;
	}
	spin_unlock(&region->lock);
	if (table) {
		free_page((unsigned long)table);
		nprdma_kregion_uncharge(region, PAGE_SIZE);
	}
	return 0;
}

/* Whether the user has revoked one of the pages since. With the lock held. */
static bool nprdma_batch_is_revoked(struct nprdma_kregion *region,
				    const struct nprdma_batch *batch)
{
	u32 last = nprdma_kregion_last(region, batch->first)->revoked;
	u32 now = region->states.header->revocations;

	/* Compare ages, since the number wraps around */
	return now - last < now - batch->revocations;
}

/*
 * Put pages in that were looked up, unless the kernel has notified of one of
 * them since, or the user has revoked one.
 *
 * Returns 0; -EAGAIN: look them up again; -ESTALE: one was revoked; -EACCES:
 * the first page is not registered; -ENOENT: the region is dead; -EOPNOTSUPP:
 * the first page cannot be used.
 */
static int nprdma_batch_put_in(struct nprdma_kregion *region,
			       struct nprdma_batch *batch, u64 *populated)
{
	unsigned int count;
	int ret = 0;

	spin_lock(&region->lock);
	if (region->dead) {
		ret = -ENOENT;
	} else if (nprdma_batch_is_revoked(region, batch)) {
		region->stats.retries++;
		ret = batch->unless_revoked ? -ESTALE : -EAGAIN;
	} else if (nprdma_batch_is_notified(region, batch)) {
		region->stats.retries++;
		ret = -EAGAIN;
	} else {
		/* The registration may have ended since the look-up */
		batch->n = nprdma_kreg_covered(region, batch->first, batch->n);
		if (!batch->n) {
			ret = -EACCES;
		} else {
			count = nprdma_batch_commit(region, batch);
			region->stats.populated += count;
			*populated += count;
			if (!batch->n)
				ret = -EOPNOTSUPP;
		}
	}
	spin_unlock(&region->lock);
	return ret;
}

/*
 * Mark the present pages of a batch accessed. No page table shows what devices
 * access, so without this reclaim takes first what devices use most.
 *
 * The mark is the accessed bit of the process's mapping, and the CPU sets it in
 * a read. For anonymous pages reclaim goes by that bit. folio_mark_accessed()
 * sets another one, which hardly counts for them.
 *
 * The address space is the current one (nprdma_ioctl()). While its lock is
 * held, nothing else can be mapped where a state has the bits, for example
 * registers, of which a read may have an effect. This is a hint: a page that is
 * being taken away stays away, and nobody waits.
 */
static void nprdma_batch_use(struct nprdma_kregion *region,
			     const struct nprdma_batch *batch)
{
	unsigned long address = nprdma_batch_address(region, batch);
	unsigned long present;
	unsigned int i;

	if (!mmap_read_trylock(region->mm))
		return;
	present = ~nprdma_batch_absent(region, batch);
	pagefault_disable();
	for_each_set_bit(i, &present, batch->n)
		fault_in_readable((void __user *)(address + i * PAGE_SIZE), 1);
	pagefault_enable();
	mmap_read_unlock(region->mm);
}

/* One try. Returns -EAGAIN if a page was taken away meanwhile. */
static int nprdma_batch_try(struct nprdma_kregion *region,
			    struct nprdma_batch *batch, u64 *populated)
{
	int ret;

	spin_lock(&region->lock);
	batch->n = nprdma_kreg_covered(region, batch->first, batch->n);
	/* A dead region has no registrations either */
	ret = region->dead ? -ENOENT : batch->n ? 0 : -EACCES;
	spin_unlock(&region->lock);
	if (ret)
		return ret;
	if (!nprdma_batch_absent(region, batch))
		return 0;

	ret = nprdma_batch_fault(region, batch);
	while (ret == -EFAULT && batch->n > 1) {
		/* The failing page is not reported: search for it */
		batch->n /= 2;
		ret = nprdma_batch_fault(region, batch);
	}
	if (ret)
		return (ret == -EBUSY) ? -EAGAIN : ret;

	/* Without resident pages, no table of frames is made */
	if (batch->resident && !nprdma_batch_usable(batch))
		return 0;
	ret = nprdma_batch_table(region, batch);
	if (ret)
		return ret;
	return nprdma_batch_put_in(region, batch, populated);
}

static int nprdma_batch_populate(struct nprdma_kregion *region,
				 struct nprdma_batch *batch,
				 struct nprdma_ioc_populate *arg)
{
	unsigned long patience = jiffies + NPRDMA_PATIENCE;
	unsigned int tries;
	int ret;

	for (tries = 1; ; tries++) {
		ret = nprdma_batch_try(region, batch, &arg->populated);
		if (!ret)
			nprdma_batch_use(region, batch);
		if (ret != -EAGAIN)
			return ret;

		/*
		 * Bringing pages in may make reclaim take other pages of the
		 * batch. A smaller batch makes progress.
		 */
		batch->n = max(batch->n / 2, 1U);
		arg->retries++;
		if (signal_pending(current))
			return -EINTR;
		if (tries >= NPRDMA_TRIES && time_after(jiffies, patience))
			return -EBUSY;
		cond_resched();
	}
}

/*
 * Make pages of the current address space present, as @arg asks for, and fill
 * its output. Returns 0, or what NPRDMA_IOC_POPULATE returns for the page at
 * which it ended.
 */
int nprdma_kpopulate(struct nprdma_kregion *region, unsigned long page,
		     unsigned long n, struct nprdma_ioc_populate *arg)
{
	unsigned long end = page + n;
	struct nprdma_batch batch = {
		.bits = arg->flags & NPRDMA_IOC_POPULATE_WRITE ?
			NPRDMA_PAGE_BITS : NPRDMA_PAGE_R,
		.resident = arg->flags & NPRDMA_IOC_POPULATE_RESIDENT,
		.unless_revoked = arg->flags &
				  NPRDMA_IOC_POPULATE_UNLESS_REVOKED,
		.revocations = arg->revocations,
	};
	int ret = 0;

	arg->populated = 0;
	arg->retries = 0;
	while (page < end) {
		batch.first = page;
		batch.n = min(end - page, NPRDMA_BATCH - page % NPRDMA_BATCH);
		ret = nprdma_batch_populate(region, &batch, arg);
		if (ret)
			break;

		page += batch.n;
		/* After one batch, so that a repeated call makes progress */
		if (page < end && signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		cond_resched();
	}
	arg->done = region->start + (page << PAGE_SHIFT);

	if (ret == -EFAULT || ret == -ENODATA || ret == -EOPNOTSUPP) {
		spin_lock(&region->lock);
		region->stats.misses++;
		spin_unlock(&region->lock);
	}
	return ret;
}
