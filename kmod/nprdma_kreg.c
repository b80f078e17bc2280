// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Registrations: the pages that may be populated. They are in an interval tree,
 * because they overlap and there may be thousands.
 */

#include "nprdma_kreg.h"
#include "nprdma_kregion.h"

#include <linux/sched.h>
#include <linux/slab.h>

struct nprdma_kreg {
	struct interval_tree_node node;	/* pages, the last one included */
};

/*
 * Registrations that are skipped without releasing the lock, for which
 * notifiers wait
 */
#define NPRDMA_REVOKE_STEPS 256

static void nprdma_kreg_readmit(struct nprdma_kregion *region,
				unsigned long first, unsigned long last)
{
	unsigned long n;

	for (; first <= last; first += n) {
		n = min(last - first + 1, NPRDMA_CLEAR_BATCH);
		spin_lock(&region->lock);
		bitmap_clear(region->retired + BIT_WORD(first),
			     first % BITS_PER_LONG, n);
		spin_unlock(&region->lock);
		cond_resched();
	}
}

/*
 * Register pages @first to @last, which are inside of the region, and @readmit
 * those that are retired. Returns 0, what NPRDMA_IOC_REGISTER returns for limits
 * and memory, or -ENOENT if the region was destroyed meanwhile.
 */
int nprdma_kreg_add(struct nprdma_kregion *region, unsigned long first,
		    unsigned long last, bool readmit, u32 *id)
{
	struct nprdma_kreg *reg;
	int ret;

	ret = nprdma_kregion_charge(region, sizeof(*reg));
	if (ret)
		return ret;

	reg = kmalloc(sizeof(*reg), GFP_KERNEL_ACCOUNT);
	if (!reg) {
		ret = -ENOMEM;
		goto err_uncharge;
	}
	reg->node.start = first;
	reg->node.last = last;

	mutex_lock(&region->reg_lock);
	/* nprdma_kreg_drop_all() takes this lock after `dead` was set */
	if (READ_ONCE(region->dead))
		ret = -ENOENT;
	else
		ret = xa_alloc(&region->registrations, id, reg, xa_limit_31b,
			       GFP_KERNEL_ACCOUNT);
	if (!ret) {
		spin_lock(&region->lock);
		interval_tree_insert(&reg->node, &region->tree);
		region->num_registrations++;
		spin_unlock(&region->lock);
	}
	mutex_unlock(&region->reg_lock);
	if (!ret) {
		if (readmit && region->retired)
			nprdma_kreg_readmit(region, first, last);
		return 0;
	}

	kfree(reg);
err_uncharge:
	nprdma_kregion_uncharge(region, sizeof(*reg));
	return ret;
}

static void nprdma_kreg_remove(struct nprdma_kregion *region,
			       struct nprdma_kreg *reg)
{
	spin_lock(&region->lock);
	interval_tree_remove(&reg->node, &region->tree);
	region->num_registrations--;
	spin_unlock(&region->lock);
}

static void nprdma_kreg_free(struct nprdma_kregion *region,
			     struct nprdma_kreg *reg)
{
	kfree(reg);
	nprdma_kregion_uncharge(region, sizeof(*reg));
}

/*
 * Find the next pages from *first on, up to last, that no registration covers,
 * with the lock held. Advances *first to them, and returns their number.
 * Returns 0 if there are none, and then *first is behind last; or if there are
 * many registrations, and then the caller calls it again.
 */
static unsigned long nprdma_kreg_gap(struct nprdma_kregion *region,
				     unsigned long *first, unsigned long last)
{
	struct interval_tree_node *node;
	unsigned int step;

	for (step = 0; *first <= last && step < NPRDMA_REVOKE_STEPS; step++) {
		node = interval_tree_iter_first(&region->tree, *first, last);
		if (!node)
			return last - *first + 1;
		if (node->start > *first)
			return node->start - *first;
		*first = node->last + 1;
	}
	return 0;
}

static u64 nprdma_kreg_revoke(struct nprdma_kregion *region,
			      unsigned long first, unsigned long last)
{
	unsigned long lost, n;
	u64 revoked = 0;

	while (first <= last) {
		spin_lock(&region->lock);
		n = min(nprdma_kreg_gap(region, &first, last),
			NPRDMA_CLEAR_BATCH);
		nprdma_kregion_count_revocation(region, first, n);
		lost = nprdma_kregion_clear(region, NPRDMA_PAGE_BITS, first, n,
					    false);
		region->counters.revoked += lost;
		spin_unlock(&region->lock);
		revoked += lost;
		first += n;
		cond_resched();
	}
	return revoked;
}

/*
 * End a registration. With @revoke, pages that no other one covers are taken
 * away. Returns 0 or -ENOENT.
 */
int nprdma_kreg_drop(struct nprdma_kregion *region, u32 id, bool revoke,
		     u64 *revoked)
{
	struct nprdma_kreg *reg;

	mutex_lock(&region->reg_lock);
	reg = xa_erase(&region->registrations, id);
	if (reg)
		nprdma_kreg_remove(region, reg);
	mutex_unlock(&region->reg_lock);
	if (!reg)
		return -ENOENT;

	*revoked = revoke ? nprdma_kreg_revoke(region, reg->node.start,
					      reg->node.last) : 0;
	nprdma_kreg_free(region, reg);
	return 0;
}

/* End all registrations of a dead region, which gets no new ones */
void nprdma_kreg_drop_all(struct nprdma_kregion *region)
{
	struct nprdma_kreg *reg;
	unsigned long id;

	mutex_lock(&region->reg_lock);
	xa_for_each(&region->registrations, id, reg) {
		nprdma_kreg_remove(region, reg);
		nprdma_kreg_free(region, reg);
		cond_resched();
	}
	xa_destroy(&region->registrations);
	mutex_unlock(&region->reg_lock);
}

/*
 * Returns how many of n pages from the first one on are registered and not
 * retired. The lock is held.
 */
unsigned long nprdma_kreg_covered(struct nprdma_kregion *region,
				  unsigned long first, unsigned long n)
{
	struct interval_tree_node *node;
	unsigned long end = first + n;
	unsigned long page = first;

	lockdep_assert_held(&region->lock);
	while (page < end) {
		node = interval_tree_iter_first(&region->tree, page, page);
		if (!node)
			break;
		page = node->last + 1;
	}
	end = min(page, end);
	if (region->retired)
		end = find_next_bit(region->retired, end, first);
	return end - first;
}
