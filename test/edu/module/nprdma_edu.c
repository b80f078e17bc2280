// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Test driver for QEMU's "edu" PCI function, which can only do DMA. It imports
 * dma-bufs like RDMA drivers do.
 */

#include <linux/auxiliary_bus.h>
#include <linux/device.h>
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/iopoll.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "nprdma_edu.h"

MODULE_INFO(import_ns, "DMA_BUF");

static unsigned int dma_bits = 28;
module_param(dma_bits, uint, 0444);
MODULE_PARM_DESC(dma_bits, "address bits of the device, as QEMU's dma_mask");

static char *function = "";
module_param(function, charp, 0444);
MODULE_PARM_DESC(function, "PCI address of the device, where there are several");

/* Registers of the DMA engine, and where its buffer is on the device's side */
#define EDU_DMA_SRC	0x80
#define EDU_DMA_DST	0x88
#define EDU_DMA_COUNT	0x90
#define EDU_DMA_CMD	0x98
#define EDU_DMA_START	BIT(0)
#define EDU_DMA_TO_RAM	BIT(1)
#define EDU_BUFFER	0x40000

/* The device */
static struct edu {
	struct mutex		lock; /* of all, held during DMA */
	struct pci_dev		*pdev; /* NULL while there is none */
	void __iomem		*regs;
	void			*bounce; /* page for the engine */
	dma_addr_t		bounce_dma;
	struct list_head	files;
} the_edu = {
	.lock = __MUTEX_INITIALIZER(the_edu.lock),
	.files = LIST_HEAD_INIT(the_edu.files),
};

/* An open file, and what it has imported */
struct edu_file {
	struct list_head		link;
	struct edu			*edu;
	struct dma_buf_attachment	*attach;
	struct sg_table			*sgt;
};

#ifdef NPRDMA_HAVE_INVALIDATE_MAPPINGS
#define invalidate_op	invalidate_mappings
#else
#define invalidate_op	move_notify
#endif

/* Never called: RDMA drivers without page faults cannot move mappings */
static void edu_moved(struct dma_buf_attachment *attach)
{
	WARN_ONCE(1, "nprdma_edu: an exporter of pinned memory moved it\n");
}

static const struct dma_buf_attach_ops edu_attach_ops = {
	.invalidate_op	= edu_moved,
};

static void edu_import_end(struct edu_file *file)
{
	struct dma_buf *dmabuf;

	if (!file->attach)
		return;
	dmabuf = file->attach->dmabuf;
	dma_resv_lock(dmabuf->resv, NULL);
	if (file->sgt) {
		dma_buf_unmap_attachment(file->attach, file->sgt,
					 DMA_BIDIRECTIONAL);
		dma_buf_unpin(file->attach);
	}
	dma_resv_unlock(dmabuf->resv);
	dma_buf_detach(dmabuf, file->attach);
	dma_buf_put(dmabuf);
	file->attach = NULL;
	file->sgt = NULL;
}

static int edu_import(struct edu_file *file,
		      struct nprdma_edu_import *arg)
{
	struct dma_buf_attachment *attach;
	struct dma_buf *dmabuf;
	struct sg_table *sgt;
	int ret;

	if (file->attach)
		return -EBUSY;
	dmabuf = dma_buf_get(arg->fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	attach = dma_buf_dynamic_attach(dmabuf, &file->edu->pdev->dev,
					&edu_attach_ops, file);
	if (IS_ERR(attach)) {
		dma_buf_put(dmabuf);
		return PTR_ERR(attach);
	}
	file->attach = attach;

	dma_resv_lock(dmabuf->resv, NULL);
	ret = dma_buf_pin(attach);
	if (!ret) {
		sgt = dma_buf_map_attachment(attach, DMA_BIDIRECTIONAL);
		if (IS_ERR(sgt)) {
			ret = PTR_ERR(sgt);
			dma_buf_unpin(attach);
		} else {
			file->sgt = sgt;
		}
	}
	dma_resv_unlock(dmabuf->resv);
	if (ret) {
		edu_import_end(file);
		return ret;
	}
	arg->segments = sgt->nents;
	arg->size = dmabuf->size;
	return 0;
}

static int edu_address(struct edu_file *file, u64 offset, dma_addr_t *addr)
{
	struct scatterlist *sg;
	int i;

	if (!file->sgt)
		return -EINVAL;
	for_each_sgtable_dma_sg(file->sgt, sg, i) {
		if (offset < sg_dma_len(sg)) {
			*addr = sg_dma_address(sg) + offset;
			return 0;
		}
		offset -= sg_dma_len(sg);
	}
	return -ERANGE;
}

/* One direction of one transfer. A DMA of QEMU's device takes 100 ms. */
static int edu_transfer(struct edu *edu, dma_addr_t ram, u32 count,
			bool to_ram)
{
	u64 cmd;

	writeq(to_ram ? EDU_BUFFER : ram, edu->regs + EDU_DMA_SRC);
	writeq(to_ram ? ram : EDU_BUFFER, edu->regs + EDU_DMA_DST);
	writeq(count, edu->regs + EDU_DMA_COUNT);
	writeq(EDU_DMA_START | (to_ram ? EDU_DMA_TO_RAM : 0),
	       edu->regs + EDU_DMA_CMD);
	return readq_poll_timeout(edu->regs + EDU_DMA_CMD, cmd,
				  !(cmd & EDU_DMA_START), 1000, 10000000);
}

static int edu_dma(struct edu_file *file,
		   const struct nprdma_edu_dma *arg)
{
	struct edu *edu = file->edu;
	dma_addr_t addr;
	int ret;

	if (!arg->length || arg->length > NPRDMA_EDU_MAX_DMA ||
	    offset_in_page(arg->offset) + arg->length > PAGE_SIZE)
		return -EINVAL;
	ret = edu_address(file, arg->offset, &addr);
	if (ret)
		return ret;

	if (arg->write) {
		if (copy_from_user(edu->bounce, u64_to_user_ptr(arg->data),
				   arg->length))
			return -EFAULT;
		return edu_transfer(edu, edu->bounce_dma, arg->length, false) ?:
		       edu_transfer(edu, addr, arg->length, true);
	}
	/* Data of the previous transfer must not pass for this one's */
	memset(edu->bounce, 0xee, PAGE_SIZE);
	ret = edu_transfer(edu, edu->bounce_dma, arg->length, false) ?:
	      edu_transfer(edu, addr, arg->length, false) ?:
	      edu_transfer(edu, edu->bounce_dma, arg->length, true);
	if (!ret && copy_to_user(u64_to_user_ptr(arg->data), edu->bounce,
				 arg->length))
		ret = -EFAULT;
	return ret;
}

union edu_arg {
	struct nprdma_edu_info		info;
	struct nprdma_edu_import	import;
	struct nprdma_edu_dma		dma;
};

/* Called with the device's lock held, while the device exists */
static int edu_do(struct edu_file *file, unsigned int cmd,
		  union edu_arg *arg)
{
	switch (cmd) {
	case NPRDMA_EDU_IOC_INFO:
		strscpy(arg->info.name, pci_name(file->edu->pdev),
			sizeof(arg->info.name));
		return 0;
	case NPRDMA_EDU_IOC_IMPORT:
		return edu_import(file, &arg->import);
	case NPRDMA_EDU_IOC_RELEASE:
		edu_import_end(file);
		return 0;
	case NPRDMA_EDU_IOC_DMA:
		return edu_dma(file, &arg->dma);
	default:
		return -ENOTTY;
	}
}

static long edu_ioctl(struct file *filp, unsigned int cmd, unsigned long user)
{
	struct edu_file *file = filp->private_data;
	struct edu *edu = file->edu;
	union edu_arg arg = { };
	int ret;

	if (_IOC_SIZE(cmd) > sizeof(arg))
		return -ENOTTY;
	if ((_IOC_DIR(cmd) & _IOC_WRITE) &&
	    copy_from_user(&arg, (void __user *)user, _IOC_SIZE(cmd)))
		return -EFAULT;
	mutex_lock(&edu->lock);
	ret = edu->pdev ? edu_do(file, cmd, &arg) : -ENODEV;
	mutex_unlock(&edu->lock);
	if ((_IOC_DIR(cmd) & _IOC_READ) &&
	    copy_to_user((void __user *)user, &arg, _IOC_SIZE(cmd)))
		return -EFAULT;
	return ret;
}

static int edu_open(struct inode *inode, struct file *filp)
{
	struct edu_file *file = kzalloc(sizeof(*file), GFP_KERNEL);

	if (!file)
		return -ENOMEM;
	file->edu = &the_edu;
	filp->private_data = file;
	mutex_lock(&the_edu.lock);
	list_add(&file->link, &the_edu.files);
	mutex_unlock(&the_edu.lock);
	return 0;
}

static int edu_release(struct inode *inode, struct file *filp)
{
	struct edu_file *file = filp->private_data;

	mutex_lock(&the_edu.lock);
	edu_import_end(file);
	list_del(&file->link);
	mutex_unlock(&the_edu.lock);
	kfree(file);
	return 0;
}

static const struct file_operations edu_fops = {
	.owner		= THIS_MODULE,
	.open		= edu_open,
	.release	= edu_release,
	.unlocked_ioctl	= edu_ioctl,
};

static struct miscdevice edu_misc = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "nprdma_edu",
	.fops	= &edu_fops,
	.mode	= 0600,
};

/*
 * Stands for an RDMA device in sysfs, which nprdma.ko requires of a device: a
 * child of the PCI function in class "infiniband". That of a subfunction is a
 * child of an auxiliary device, as with mlx5_core. A class of this name can be
 * made because ib_core is not loaded.
 */
static char *rdma = "function";
module_param(rdma, charp, 0444);
MODULE_PARM_DESC(rdma, "whose RDMA device edu_0 is: of the \"function\", of a \"subfunction\", or \"none\"");

static struct class edu_class = {
	.name = "infiniband",
};

static struct device *edu_rdma;
static struct auxiliary_device *edu_sub;

static void edu_release_sub(struct device *dev)
{
	kfree(to_auxiliary_dev(dev));
}

static int edu_add_sub(struct pci_dev *pdev)
{
	struct auxiliary_device *sub = kzalloc(sizeof(*sub), GFP_KERNEL);
	int ret;

	if (!sub)
		return -ENOMEM;
	sub->name = "sf";
	sub->dev.parent = &pdev->dev;
	sub->dev.release = edu_release_sub;
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

static void edu_rdma_remove(void)
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

static int edu_rdma_add(struct pci_dev *pdev)
{
	int ret;

	if (!strcmp(rdma, "none"))
		return 0;
	if (!strcmp(rdma, "subfunction")) {
		ret = edu_add_sub(pdev);
		if (ret)
			return ret;
	}
	edu_rdma = device_create(&edu_class,
				 edu_sub ? &edu_sub->dev : &pdev->dev,
				 MKDEV(0, 0), NULL, "edu_0");
	if (IS_ERR(edu_rdma)) {
		ret = PTR_ERR(edu_rdma);
		edu_rdma = NULL;
		edu_rdma_remove();
		return ret;
	}
	return 0;
}

static int edu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct edu *edu = &the_edu;
	int ret;

	if (function[0] && strcmp(function, pci_name(pdev)))
		return -ENODEV;
	ret = pcim_enable_device(pdev);
	if (ret)
		return ret;
	ret = pcim_iomap_regions(pdev, BIT(0), "nprdma_edu");
	if (ret)
		return ret;
	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(dma_bits));
	if (ret)
		return ret;
	pci_set_master(pdev);

	mutex_lock(&edu->lock);
	if (edu->pdev) {
		ret = -EBUSY;
		goto unlock;
	}
	edu->bounce = dmam_alloc_coherent(&pdev->dev, PAGE_SIZE,
					  &edu->bounce_dma, GFP_KERNEL);
	if (!edu->bounce) {
		ret = -ENOMEM;
		goto unlock;
	}
	ret = edu_rdma_add(pdev);
	if (ret)
		goto unlock;
	edu->regs = pcim_iomap_table(pdev)[0];
	edu->pdev = pdev;
unlock:
	mutex_unlock(&edu->lock);
	return ret;
}

/* Ends all use of the device at once, as ib_core does */
static void edu_remove(struct pci_dev *pdev)
{
	struct edu_file *file;

	mutex_lock(&the_edu.lock);
	list_for_each_entry(file, &the_edu.files, link)
		edu_import_end(file);
	the_edu.pdev = NULL;
	edu_rdma_remove();
	mutex_unlock(&the_edu.lock);
	pci_clear_master(pdev);
}

static const struct pci_device_id edu_ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{ }
};
MODULE_DEVICE_TABLE(pci, edu_ids);

static struct pci_driver edu_driver = {
	.name		= "nprdma_edu",
	.id_table	= edu_ids,
	.probe		= edu_probe,
	.remove		= edu_remove,
};

static int __init edu_init(void)
{
	int ret;

	ret = class_register(&edu_class);
	if (ret)
		return ret;
	ret = pci_register_driver(&edu_driver);
	if (ret)
		goto err_rdma;
	ret = misc_register(&edu_misc);
	if (ret)
		goto err_driver;
	return 0;

err_driver:
	pci_unregister_driver(&edu_driver);
err_rdma:
	class_unregister(&edu_class);
	return ret;
}
module_init(edu_init);

static void __exit edu_exit(void)
{
	misc_deregister(&edu_misc);
	pci_unregister_driver(&edu_driver);
	class_unregister(&edu_class);
}
module_exit(edu_exit);

MODULE_DESCRIPTION("Importer of nprdma regions on QEMU's edu device, for tests");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
