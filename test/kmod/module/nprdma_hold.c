// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Holds the lock of a PCI function, as a reset or a driver does that is being
 * bound. For a test only.
 */

#include <linux/completion.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/string.h>

/* Writes of the parameter exclude each other */
static struct device *nprdma_hold_device;
static struct task_struct *nprdma_hold_thread;
static DECLARE_COMPLETION(nprdma_hold_locked);

/* The thread that locks also unlocks */
static int nprdma_hold_run(void *arg)
{
	struct device *dev = arg;

	device_lock(dev);
	complete(&nprdma_hold_locked);
	set_current_state(TASK_IDLE);
	while (!kthread_should_stop()) {
		schedule();
		set_current_state(TASK_IDLE);
	}
	__set_current_state(TASK_RUNNING);
	device_unlock(dev);
	return 0;
}

static void nprdma_hold_stop(void)
{
	if (!nprdma_hold_thread)
		return;
	kthread_stop(nprdma_hold_thread);
	nprdma_hold_thread = NULL;
	put_device(nprdma_hold_device);
}

static int nprdma_hold_start(const char *name)
{
	struct task_struct *thread;
	struct device *dev;

	dev = bus_find_device_by_name(&pci_bus_type, NULL, name);
	if (!dev)
		return -ENODEV;
	reinit_completion(&nprdma_hold_locked);
	thread = kthread_run(nprdma_hold_run, dev, "nprdma_hold");
	if (IS_ERR(thread)) {
		put_device(dev);
		return PTR_ERR(thread);
	}
	wait_for_completion(&nprdma_hold_locked);
	nprdma_hold_device = dev;
	nprdma_hold_thread = thread;
	return 0;
}

static int nprdma_hold_set(const char *text, const struct kernel_param *param)
{
	nprdma_hold_stop();
	return sysfs_streq(text, "none") ? 0 : nprdma_hold_start(text);
}

static const struct kernel_param_ops nprdma_hold_ops = {
	.set = nprdma_hold_set,
};
module_param_cb(lock, &nprdma_hold_ops, NULL, 0200);
MODULE_PARM_DESC(lock, "PCI address of the function, or none");

static int __init nprdma_hold_init(void)
{
	return 0;
}
module_init(nprdma_hold_init);

static void __exit nprdma_hold_exit(void)
{
	nprdma_hold_stop();
}
module_exit(nprdma_hold_exit);

MODULE_DESCRIPTION("Holds the lock of a device, for a test of nprdma");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
