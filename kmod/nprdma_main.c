// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * RDMA without pinned memory: /dev/nprdma. doc/kernel.md explains its purpose
 * and why it is safe; nprdma_uapi.h is its interface.
 */

#include "nprdma_ctx.h"
#include "nprdma_debugfs.h"
#include "nprdma_ioctl.h"
#include "nprdma_kregions.h"
#include "nprdma_limits.h"
#include "nprdma_state.h"
#include "pte/nprdma_kdevice.h"

#include <linux/miscdevice.h>
#include <linux/module.h>

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

static int __init nprdma_init(void)
{
	int ret;

	/* A state word stands for one page, as in user space */
	BUILD_BUG_ON(PAGE_SHIFT != NPRDMA_PAGE_SHIFT);

	nprdma_limits_init();
	nprdma_debugfs_init();
	ret = misc_register(&nprdma_device);
	if (ret)
		nprdma_debugfs_exit();
	return ret;
}
module_init(nprdma_init);

static void __exit nprdma_exit(void)
{
	misc_deregister(&nprdma_device);
	nprdma_debugfs_exit();
	nprdma_device_forget();
}
module_exit(nprdma_exit);

MODULE_DESCRIPTION("RDMA without pinned memory, on NICs without page faults");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
MODULE_VERSION(NPRDMA_VERSION);
