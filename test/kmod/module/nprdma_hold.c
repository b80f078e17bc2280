// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Holds the lock of a PCI function, as a reset or a driver does that is being
 * bound. For a test only.
 */

#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>

/* On a write: the lock is held until the writer gets a signal */
static int nprdma_hold_set(const char *text, const struct kernel_param *param)
{
	struct device *dev;

	dev = bus_find_device_by_name(&pci_bus_type, NULL, text);
	if (!dev)
		return -ENODEV;
	device_lock(dev);
	while (!signal_pending(current))
		schedule_timeout_interruptible(HZ);
	device_unlock(dev);
	put_device(dev);
	return -EINTR;
}

static const struct kernel_param_ops nprdma_hold_ops = {
	.set = nprdma_hold_set,
};
module_param_cb(lock, &nprdma_hold_ops, NULL, 0200);
MODULE_PARM_DESC(lock, "PCI address of the function");

MODULE_DESCRIPTION("Holds the lock of a device, for a test of nprdma");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
