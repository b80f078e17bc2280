// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Test driver for QEMU's "edu" PCI function, which can only do DMA. It imports
 * dma-bufs like RDMA drivers do, and has windows of its own, built from the
 * same objects as nprdma.ko, which tests point directly.
 *
 * Only for disposable guests: any process that opens it may direct DMA anywhere
 * within the target, and files can use each other's targets.
 */

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/iopoll.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/vmalloc.h>

#include "nprdma_edu.h"
#include "nprdma_edu_rdma.h"
#include "nprdma_edu_target.h"

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
#define EDU_BAR_SIZE	0x100000

static struct nprdma_edu the_edu = {
	.lock = __MUTEX_INITIALIZER(the_edu.lock),
	.files = LIST_HEAD_INIT(the_edu.files),
};

/* One direction of one transfer. A DMA of QEMU's device takes 100 ms. */
static int edu_transfer(struct nprdma_edu *edu, dma_addr_t ram, u32 count,
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

static int edu_dma(struct nprdma_edu_file *file,
		   const struct nprdma_edu_dma *arg)
{
	struct nprdma_edu *edu = file->edu;
	dma_addr_t addr;
	int ret;

	if (!arg->length || arg->length > NPRDMA_EDU_MAX_DMA ||
	    offset_in_page(arg->offset) + arg->length > PAGE_SIZE)
		return -EINVAL;
	ret = nprdma_edu_address(file, arg->offset, &addr);
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

static int edu_register(struct nprdma_edu *edu, struct nprdma_edu_register *arg)
{
	if (!IS_ALIGNED(arg->offset, sizeof(u64)) ||
	    arg->offset >= EDU_BAR_SIZE)
		return -EINVAL;
	if (arg->write)
		writeq(arg->value, edu->regs + arg->offset);
	else
		arg->value = readq(edu->regs + arg->offset);
	return 0;
}

static int edu_address(struct nprdma_edu_file *file,
		       struct nprdma_edu_address *arg)
{
	dma_addr_t addr;
	int ret;

	ret = nprdma_edu_address(file, arg->offset, &addr);
	if (!ret)
		arg->address = addr;
	return ret;
}

static void edu_info(struct nprdma_edu *edu, struct nprdma_edu_info *info)
{
	strscpy(info->name, pci_name(edu->pdev), sizeof(info->name));
	info->dma_mask = dma_get_mask(&edu->pdev->dev);
}

union edu_arg {
	struct nprdma_edu_info		info;
	struct nprdma_edu_import	import;
	struct nprdma_edu_window	window;
	struct nprdma_edu_point		point;
	struct nprdma_edu_dma		dma;
	struct nprdma_edu_flip		flip;
	struct nprdma_edu_register	reg;
	struct nprdma_edu_address	address;
};

/* Called with the device's lock held, while the device exists */
static int edu_do(struct nprdma_edu_file *file, unsigned int cmd,
		  union edu_arg *arg)
{
	switch (cmd) {
	case NPRDMA_EDU_IOC_INFO:
		edu_info(file->edu, &arg->info);
		return 0;
	case NPRDMA_EDU_IOC_IMPORT:
		return nprdma_edu_import(file, &arg->import);
	case NPRDMA_EDU_IOC_WINDOW:
		return nprdma_edu_make_window(file, &arg->window);
	case NPRDMA_EDU_IOC_RELEASE:
		nprdma_edu_release(file);
		return 0;
	case NPRDMA_EDU_IOC_POINT:
		return nprdma_edu_point(file, &arg->point);
	case NPRDMA_EDU_IOC_DMA:
		return edu_dma(file, &arg->dma);
	case NPRDMA_EDU_IOC_FLIP:
		return nprdma_edu_flip(file, &arg->flip);
	case NPRDMA_EDU_IOC_REGISTER:
		return edu_register(file->edu, &arg->reg);
	case NPRDMA_EDU_IOC_ADDRESS:
		return edu_address(file, &arg->address);
	default:
		return -ENOTTY;
	}
}

static long edu_ioctl(struct file *filp, unsigned int cmd, unsigned long user)
{
	struct nprdma_edu_file *file = filp->private_data;
	struct nprdma_edu *edu = file->edu;
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
	/* If a window fails, the reason is copied as well */
	if ((_IOC_DIR(cmd) & _IOC_READ) &&
	    copy_to_user((void __user *)user, &arg, _IOC_SIZE(cmd)))
		return -EFAULT;
	return ret;
}

static int edu_open(struct inode *inode, struct file *filp)
{
	struct nprdma_edu_file *file = kzalloc(sizeof(*file), GFP_KERNEL);

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
	struct nprdma_edu_file *file = filp->private_data;

	mutex_lock(&the_edu.lock);
	nprdma_edu_release(file);
	list_del(&file->link);
	mutex_unlock(&the_edu.lock);
	kfree(file);
	return 0;
}

static int edu_mmap(struct file *filp, struct vm_area_struct *vma)
{
	return remap_vmalloc_range(vma, the_edu.pages, vma->vm_pgoff);
}

static const struct file_operations edu_fops = {
	.owner		= THIS_MODULE,
	.open		= edu_open,
	.release	= edu_release,
	.unlocked_ioctl	= edu_ioctl,
	.mmap		= edu_mmap,
};

static struct miscdevice edu_misc = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "nprdma_edu",
	.fops	= &edu_fops,
	.mode	= 0600,
};

static int edu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct nprdma_edu *edu = &the_edu;
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
	ret = nprdma_edu_rdma_add(pdev);
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
	struct nprdma_edu_file *file;

	mutex_lock(&the_edu.lock);
	list_for_each_entry(file, &the_edu.files, link)
		nprdma_edu_release(file);
	the_edu.pdev = NULL;
	nprdma_edu_rdma_remove();
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

	the_edu.pages = vmalloc_user(NPRDMA_EDU_PAGES * PAGE_SIZE);
	if (!the_edu.pages)
		return -ENOMEM;
	ret = nprdma_edu_rdma_init();
	if (ret)
		goto err_free;
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
	nprdma_edu_rdma_exit();
err_free:
	vfree(the_edu.pages);
	return ret;
}
module_init(edu_init);

static void __exit edu_exit(void)
{
	misc_deregister(&edu_misc);
	pci_unregister_driver(&edu_driver);
	nprdma_edu_rdma_exit();
	vfree(the_edu.pages);
}
module_exit(edu_exit);

MODULE_DESCRIPTION("Importer of nprdma regions on QEMU's edu device, for tests");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
