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
		region->stats.registrations++;
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
	region->stats.registrations--;
	spin_unlock(&region->lock);
	kfree(reg);
	nprdma_kregion_uncharge(region, sizeof(*reg));
}

/* End a registration. Its pages stay as they are. Returns 0 or -ENOENT. */
int nprdma_kreg_drop(struct nprdma_kregion *region, u32 id)
{
	struct nprdma_kreg *reg;

	mutex_lock(&region->reg_lock);
	reg = xa_erase(&region->registrations, id);
	if (reg)
		nprdma_kreg_remove(region, reg);
	mutex_unlock(&region->reg_lock);
	return reg ? 0 : -ENOENT;
}

/* End all registrations of a dead region, which gets no new ones */
void nprdma_kreg_drop_all(struct nprdma_kregion *region)
{
	struct nprdma_kreg *reg;
	unsigned long id;

	mutex_lock(&region->reg_lock);
	xa_for_each(&region->registrations, id, reg) {
		nprdma_kreg_remove(region, reg);
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
