// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Stands for an RDMA device in sysfs, which nprdma.ko requires of a device: a
 * child of the PCI function in class "infiniband". That of a subfunction is a
 * child of an auxiliary device, as with mlx5_core. A class of this name can be
 * made because ib_core is not loaded.
 */

#include <linux/auxiliary_bus.h>
#include <linux/device.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "nprdma_edu_rdma.h"

static char *rdma = "function";
module_param(rdma, charp, 0444);
MODULE_PARM_DESC(rdma, "whose RDMA device edu_0 is: of the \"function\", of a \"subfunction\", or \"none\"");

static struct class edu_class = {
	.name = "infiniband",
};

static struct device *edu_rdma;
static struct auxiliary_device *edu_sub;

static void release_sub(struct device *dev)
{
	kfree(to_auxiliary_dev(dev));
}

static int add_sub(struct pci_dev *pdev)
{
	struct auxiliary_device *sub = kzalloc(sizeof(*sub), GFP_KERNEL);
	int ret;

	if (!sub)
		return -ENOMEM;
	sub->name = "sf";
	sub->dev.parent = &pdev->dev;
	sub->dev.release = release_sub;
	ret = auxiliary_device_init(sub);
	if (ret) {
		kfree(sub);
		return ret;
	}
	ret = auxiliary_device_add(sub);
	if (ret) {
		auxiliary_device_uninit(sub);
		return ret;
	}
	edu_sub = sub;
	return 0;
}

int nprdma_edu_rdma_add(struct pci_dev *pdev)
{
	int ret;

	if (!strcmp(rdma, "none"))
		return 0;
	if (!strcmp(rdma, "subfunction")) {
		ret = add_sub(pdev);
		if (ret)
			return ret;
	}
	edu_rdma = device_create(&edu_class,
				 edu_sub ? &edu_sub->dev : &pdev->dev,
				 MKDEV(0, 0), NULL, "edu_0");
	if (IS_ERR(edu_rdma)) {
		ret = PTR_ERR(edu_rdma);
		edu_rdma = NULL;
		nprdma_edu_rdma_remove();
		return ret;
	}
	return 0;
}

void nprdma_edu_rdma_remove(void)
{
	if (edu_rdma)
		device_unregister(edu_rdma);
	edu_rdma = NULL;
	if (edu_sub) {
		auxiliary_device_delete(edu_sub);
		auxiliary_device_uninit(edu_sub);
	}
	edu_sub = NULL;
}

int nprdma_edu_rdma_init(void)
{
	return class_register(&edu_class);
}

void nprdma_edu_rdma_exit(void)
{
	class_unregister(&edu_class);
}
