// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * RDMA without pinned memory: /dev/nprdma. doc/kernel.md explains its purpose
 * and why it is safe; nprdma_uapi.h is its interface.
 */

#include "nprdma_ctx.h"
#include "nprdma_ioctl.h"
#include "nprdma_kregions.h"
#include "nprdma_limits.h"
#include "nprdma_uapi.h"
#include "pte/nprdma_kdevice.h"

#include <linux/debugfs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/seq_file.h>

static int nprdma_open(struct inode *inode, struct file *file)
{
	struct nprdma_ctx *ctx = nprdma_ctx_create();

	if (IS_ERR(ctx))
		return PTR_ERR(ctx);
	file->private_data = ctx;
	return 0;
}

/*
 * No call is in progress any more, and none will come. Regions and context stay
 * in memory while devices have views on them and peers map their states.
 */
static int nprdma_release(struct inode *inode, struct file *file)
{
	struct nprdma_ctx *ctx = file->private_data;

	nprdma_ctx_unlist(ctx);
	nprdma_kregions_destroy_all(ctx);
	nprdma_ctx_put(ctx);
	return 0;
}

static const struct file_operations nprdma_fops = {
	.owner		= THIS_MODULE,
	.open		= nprdma_open,
	.release	= nprdma_release,
	.unlocked_ioctl	= nprdma_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
	.llseek		= noop_llseek,
};

/* For root only, until udev gives it to the group of RDMA users */
static struct miscdevice nprdma_device = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "nprdma",
	.fops	= &nprdma_fops,
	.mode	= 0600,
};

static struct dentry *nprdma_debugfs;

/* Regions of all users, their pages and events */
static int contexts_show(struct seq_file *seq, void *unused)
{
	nprdma_ctxs_show(seq, nprdma_kregions_show);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(contexts);

DEFINE_SHOW_ATTRIBUTE(nprdma_limits);

static int __init nprdma_init(void)
{
	int ret;

	/* A state word stands for one page, as in user space */
	BUILD_BUG_ON(PAGE_SHIFT != NPRDMA_PAGE_SHIFT);

	nprdma_limits_init();
	/* Errors are ignored: the module works without debugfs */
	nprdma_debugfs = debugfs_create_dir("nprdma", NULL);
	debugfs_create_file("contexts", 0400, nprdma_debugfs, NULL,
			    &contexts_fops);
	debugfs_create_file("limits", 0400, nprdma_debugfs, NULL,
			    &nprdma_limits_fops);
	ret = misc_register(&nprdma_device);
	if (ret)
		debugfs_remove_recursive(nprdma_debugfs);
	return ret;
}
module_init(nprdma_init);

static void __exit nprdma_exit(void)
{
	misc_deregister(&nprdma_device);
	debugfs_remove_recursive(nprdma_debugfs);
	nprdma_device_forget();
}
module_exit(nprdma_exit);

MODULE_DESCRIPTION("RDMA without pinned memory, on NICs without page faults");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
MODULE_VERSION(NPRDMA_VERSION);
