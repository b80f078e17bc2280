// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * A negative control: while this is loaded, nprdma.ko re-points views without
 * a flush of the IOMMU. So devices may access a page that they have lost.
 */

#include <linux/kprobes.h>
#include <linux/module.h>

/* Replaces the flush */
static noinline notrace void nprdma_no_flush_return(void)
{
	barrier();
}

NOKPROBE_SYMBOL(nprdma_no_flush_return);

static int nprdma_no_flush_enter(struct kprobe *probe, struct pt_regs *regs)
{
	instruction_pointer_set(regs, (unsigned long)nprdma_no_flush_return);
	return 1;
}

NOKPROBE_SYMBOL(nprdma_no_flush_enter);

static struct kprobe nprdma_no_flush = {
	.symbol_name = "nprdma_kregion_flush",
	.pre_handler = nprdma_no_flush_enter,
};

/* A kprobe that is optimized to a jump cannot redirect the call */
static int __init nprdma_no_flush_init(void)
{
	int ret = register_kprobe(&nprdma_no_flush);

	if (!ret && IS_ENABLED(CONFIG_OPTPROBES) &&
	    !kprobe_ftrace(&nprdma_no_flush)) {
		pr_err("not based on ftrace\n");
		unregister_kprobe(&nprdma_no_flush);
		ret = -EOPNOTSUPP;
	}
	return ret;
}

static void __exit nprdma_no_flush_exit(void)
{
	unregister_kprobe(&nprdma_no_flush);
}

module_init(nprdma_no_flush_init);
module_exit(nprdma_no_flush_exit);
MODULE_DESCRIPTION("Test of nprdma.ko: views without a flush");
MODULE_LICENSE("GPL");
