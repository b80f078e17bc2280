// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Lets kernel functions that nprdma.ko calls fail, one at a time, as they do
 * when memory is short or when a signal arrives, which may kill the process.
 * Holds a page-in between its look-up and its end, and advances everything that
 * counts notifications meanwhile. Also makes a mapping look like a shadow stack,
 * which the test machines do not have. For a test only.
 */

#include "nprdma_kregion.h"

#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched/signal.h>
#include <linux/string.h>
#include <linux/workqueue.h>

/*
 * The beginning of the kernel's struct mmu_notifier_subscriptions, which no
 * header has
 */
struct nprdma_force_subscriptions {
	struct hlist_head list;
	bool has_itree;
	spinlock_t lock;	/* of the members behind it */
	unsigned long invalidate_seq;
	unsigned long active_invalidate_ranges;
};

/* Functions that can fail, by their names in different kernels */
struct nprdma_force_point {
	const char *name;
	long value;		/* return value of the failure */
	struct kprobe probe;
	bool is_set;
};

static struct nprdma_force_point nprdma_force_points[] = {
	{ "kmalloc_trace", 0 },
	{ "__kmalloc", 0 },
	{ "__kmalloc_noprof", 0 },
	{ "__kmalloc_cache_noprof", 0 },
	{ "kvmalloc_node", 0 },
	{ "__kvmalloc_node_noprof", 0 },
	{ "__vmalloc", 0 },
	{ "__vmalloc_noprof", 0 },
	{ "get_zeroed_page", 0 },
	{ "get_zeroed_page_noprof", 0 },
	{ "alloc_pages", 0 },
	{ "alloc_pages_noprof", 0 },
	{ "__xa_alloc", -ENOMEM },
	{ "__xa_alloc_cyclic", -ENOMEM },
	{ "sg_alloc_table", -ENOMEM },
	{ "get_unused_fd_flags", -EMFILE },
	{ "anon_inode_getfile", -ENFILE },
	{ "dma_buf_export", -ENFILE },
	{ "mmu_interval_notifier_insert", -EINTR },
	/* Never fails: for `beside` */
	{ "down_read_killable", 0 },
	/* The last one: pages were taken away during the lookup */
	{ "hmm_range_fault", -EBUSY },
};

#define NPRDMA_FORCE_BUSY \
	(&nprdma_force_points[ARRAY_SIZE(nprdma_force_points) - 1])

static int tgid;
module_param(tgid, int, 0600);
MODULE_PARM_DESC(tgid, "Process whose calls fail");

static unsigned int at;
module_param(at, uint, 0600);
MODULE_PARM_DESC(at, "Which of its calls fails: 1 is the first one; 0: none");

static unsigned int calls;
module_param(calls, uint, 0600);
MODULE_PARM_DESC(calls, "How many there were while one was to fail");

static bool fatal;
module_param(fatal, bool, 0600);
MODULE_PARM_DESC(fatal, "What is to fail succeeds, but the process is killed");

static bool busy;
module_param(busy, bool, 0600);
MODULE_PARM_DESC(busy, "Every hmm_range_fault() fails with EBUSY");

static bool hold;
module_param(hold, bool, 0600);
MODULE_PARM_DESC(hold, "A page-in that needs a table of a chunk waits there");

static unsigned int held;
module_param(held, uint, 0400);
MODULE_PARM_DESC(held, "How many page-ins wait");

static bool beside;
module_param(beside, bool, 0600);
MODULE_PARM_DESC(beside, "Whenever a page-in asks for the lock of mappings, other pages of the last region are taken");

static bool begun;
module_param(begun, bool, 0600);
MODULE_PARM_DESC(begun, "When a region is made, a notification is in progress for a while");

static char *forced = "";
module_param(forced, charp, 0400);
MODULE_PARM_DESC(forced, "What failed last");

/* Of the region that the process has created last */
static struct mmu_interval_notifier *nprdma_force_notifier;

/* Replaces the failing function, and keeps the return value */
static noinline notrace void nprdma_force_return(void)
{
	barrier();
}

NOKPROBE_SYMBOL(nprdma_force_return);

/* Replaces get_zeroed_page(), which may sleep as well */
static noinline unsigned long nprdma_force_hold(gfp_t flags)
{
	WRITE_ONCE(held, held + 1);
	while (READ_ONCE(hold) && !fatal_signal_pending(current))
		usleep_range(1000, 2000);
	WRITE_ONCE(held, held - 1);
	return get_zeroed_page(flags);
}

/*
 * As if notifications of the region had begun and ended one after the other:
 * each adds two to the kernel's number.
 */
static int nprdma_force_notify(struct mmu_interval_notifier *notifier,
			       unsigned long n)
{
	struct nprdma_kregion *region =
		container_of(notifier, struct nprdma_kregion, notifier);
	struct nprdma_force_subscriptions *all =
		(void *)notifier->mm->notifier_subscriptions;
	int ret = 0;

	spin_lock(&all->lock);
	spin_lock(&region->lock);
	if (all->active_invalidate_ranges) {
		ret = -EAGAIN;
	} else if (all->invalidate_seq % 2 || !(notifier->invalidate_seq % 2) ||
		   all->invalidate_seq - notifier->invalidate_seq > U16_MAX) {
		/* This kernel has another structure */
		ret = -EOPNOTSUPP;
	} else {
		notifier->invalidate_seq += 2 * n;
		all->invalidate_seq = notifier->invalidate_seq + 1;
		region->stats.events += n;
	}
	spin_unlock(&region->lock);
	spin_unlock(&all->lock);
	return ret;
}

/* The notification that is in progress, which ends with the next real one */
static struct nprdma_force_subscriptions *nprdma_force_begun;

static void nprdma_force_end(struct work_struct *work)
{
	spin_lock(&nprdma_force_begun->lock);
	nprdma_force_begun->active_invalidate_ranges--;
	spin_unlock(&nprdma_force_begun->lock);
	nprdma_force_begun = NULL;
}
static DECLARE_DELAYED_WORK(nprdma_force_work, nprdma_force_end);

static void nprdma_force_begin(struct mm_struct *mm)
{
	struct nprdma_force_subscriptions *all =
		(void *)mm->notifier_subscriptions;

	if (!all || nprdma_force_begun)
		return;
	nprdma_force_begun = all;
	spin_lock(&all->lock);
	all->active_invalidate_ranges++;
	all->invalidate_seq |= 1;
	spin_unlock(&all->lock);
	schedule_delayed_work(&nprdma_force_work, HZ);
}

static bool nprdma_force_is(const struct nprdma_force_point *point,
			    const char *name)
{
	return !strncmp(point->name, name, strlen(name));
}

static bool nprdma_force_fails(struct nprdma_force_point *point)
{
	if (point == NPRDMA_FORCE_BUSY ? !READ_ONCE(busy) : !READ_ONCE(at))
		return false;
	calls++;
	return point == NPRDMA_FORCE_BUSY || calls == at;
}

static unsigned long nprdma_force_caller(struct pt_regs *regs)
{
#ifdef CONFIG_ARM64
	return procedure_link_pointer(regs);
#else
	return regs_get_kernel_stack_nth(regs, 0);
#endif
}

NOKPROBE_SYMBOL(nprdma_force_caller);

static int nprdma_force_enter(struct kprobe *probe, struct pt_regs *regs)
{
	struct nprdma_force_point *point =
		container_of(probe, struct nprdma_force_point, probe);
	char caller[KSYM_SYMBOL_LEN];

	if (task_tgid_nr(current) != READ_ONCE(tgid))
		return 0;
	sprint_symbol(caller, nprdma_force_caller(regs));
	if (!strstr(caller, "[nprdma]"))
		return 0;
	if (nprdma_force_is(point, "mmu_interval_notifier_insert")) {
		nprdma_force_notifier =
			(void *)regs_get_kernel_argument(regs, 0);
		if (READ_ONCE(begun))
			nprdma_force_begin(
				(void *)regs_get_kernel_argument(regs, 1));
	}
	if (nprdma_force_is(point, "down_read_killable")) {
		if (READ_ONCE(beside))
			nprdma_force_notify(nprdma_force_notifier, 1);
		return 0;
	}
	if (READ_ONCE(hold) && nprdma_force_is(point, "get_zeroed_page")) {
		instruction_pointer_set(regs,
					(unsigned long)nprdma_force_hold);
		return 1;
	}
	if (!nprdma_force_fails(point))
		return 0;

	forced = (char *)point->name;
	if (READ_ONCE(fatal)) {
		send_sig(SIGKILL, current, 1);
		return 0;
	}
	regs_set_return_value(regs, point->value);
	instruction_pointer_set(regs, (unsigned long)nprdma_force_return);
	return 1;
}

NOKPROBE_SYMBOL(nprdma_force_enter);

/* On a write: an address in the mapping. A second write undoes it. */
static int nprdma_force_shadow(const char *text,
			       const struct kernel_param *param)
{
#ifdef VM_SHADOW_STACK
	struct vm_area_struct *vma;
	unsigned long address;
	int ret;

	ret = kstrtoul(text, 0, &address);
	if (ret)
		return ret;
	if (!VM_SHADOW_STACK)
		return -EOPNOTSUPP;

	mmap_write_lock(current->mm);
	vma = find_vma(current->mm, address);
	if (!vma)
		ret = -ENOENT;
	else if (vma->vm_flags & VM_SHADOW_STACK)
		vm_flags_clear(vma, VM_SHADOW_STACK);
	else
		vm_flags_set(vma, VM_SHADOW_STACK);
	mmap_write_unlock(current->mm);
	return ret;
#else
	return -EOPNOTSUPP;
#endif
}

/* On a write: a number of notifications of the last region, as if they came */
static int nprdma_force_notified(const char *text,
				 const struct kernel_param *param)
{
	unsigned long n;
	int ret;

	ret = kstrtoul(text, 0, &n);
	if (ret)
		return ret;
	if (!nprdma_force_notifier ||
	    nprdma_force_notifier->mm != current->mm)
		return -ENOENT;
	return nprdma_force_notify(nprdma_force_notifier, n);
}

static const struct kernel_param_ops nprdma_force_notified_ops = {
	.set = nprdma_force_notified,
};
module_param_cb(notified, &nprdma_force_notified_ops, NULL, 0200);
MODULE_PARM_DESC(notified, "How many notifications the last region gets");

static const struct kernel_param_ops nprdma_force_shadow_ops = {
	.set = nprdma_force_shadow,
};
module_param_cb(shadow, &nprdma_force_shadow_ops, NULL, 0200);
MODULE_PARM_DESC(shadow, "Address in a mapping that is to be a shadow stack");

static void nprdma_force_stop(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(nprdma_force_points); i++) {
		if (nprdma_force_points[i].is_set)
			unregister_kprobe(&nprdma_force_points[i].probe);
	}
}

static void nprdma_force_after(struct kprobe *probe, struct pt_regs *regs,
			       unsigned long flags)
{
}

NOKPROBE_SYMBOL(nprdma_force_after);

static int nprdma_force_set(struct nprdma_force_point *point,
			    kprobe_post_handler_t after)
{
	int ret;

	point->probe = (struct kprobe) {
		.symbol_name = point->name,
		.pre_handler = nprdma_force_enter,
		.post_handler = after,
	};
	ret = register_kprobe(&point->probe);
	point->is_set = !ret;
	return ret;
}

/*
 * A kprobe that is optimized to a jump cannot redirect the call, and a kprobe
 * with a post handler is not optimized. A kprobe based on ftrace can redirect
 * the call only without a post handler.
 */
static int nprdma_force_set_any(struct nprdma_force_point *point)
{
	int ret = nprdma_force_set(point, NULL);

	if (ret || kprobe_ftrace(&point->probe))
		return ret;
	unregister_kprobe(&point->probe);
	return nprdma_force_set(point, nprdma_force_after);
}

static int __init nprdma_force_init(void)
{
	struct nprdma_force_point *point = nprdma_force_points;
	int ret = 0;

	for (; point <= NPRDMA_FORCE_BUSY; point++) {
		ret = nprdma_force_set_any(point);
		/* This kernel has another name for the function */
		if (ret && ret != -ENOENT)
			break;
	}
	/* The last function has the same name in all kernels */
	if (ret)
		nprdma_force_stop();
	return ret;
}
module_init(nprdma_force_init);

static void __exit nprdma_force_exit(void)
{
	nprdma_force_stop();
	flush_delayed_work(&nprdma_force_work);
}
module_exit(nprdma_force_exit);

MODULE_DESCRIPTION("Makes calls of nprdma.ko fail, for a test of it");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
