// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * From now on, readers of the address of the VT-d unit's registers, as the kernel
 * tells it in sysfs, get another one, where there is a copy of them. For a test
 * only.
 */

#include <linux/acpi.h>
#include <linux/io.h>
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/pci.h>

/* The registers that describe the unit and its tables */
#define NPRDMA_DMAR_BYTES 0x40

static unsigned long registers;
module_param(registers, ulong, 0400);
MODULE_PARM_DESC(registers, "Physical address of the registers");

static struct device *nprdma_dmar_unit;
static const struct attribute_group **nprdma_dmar_kept;

static ssize_t address_show(struct device *dev, struct device_attribute *attr,
			    char *text)
{
	return sysfs_emit(text, "%lx\n", registers);
}

static DEVICE_ATTR_RO(address);

static struct attribute *nprdma_dmar_attrs[] = {
	&dev_attr_address.attr,
	NULL
};
ATTRIBUTE_GROUPS(nprdma_dmar);

static int nprdma_dmar_copy(u64 address)
{
	void __iomem *from = ioremap(address, NPRDMA_DMAR_BYTES);
	void *to = memremap(registers, NPRDMA_DMAR_BYTES, MEMREMAP_WB);
	int ret = from && to ? 0 : -ENOMEM;

	if (!ret)
		memcpy_fromio(to, from, NPRDMA_DMAR_BYTES);
	if (to)
		memunmap(to);
	if (from)
		iounmap(from);
	return ret;
}

static int __init nprdma_dmar_init(void)
{
	struct acpi_dmar_hardware_unit *unit;
	struct acpi_table_header *dmar;
	struct pci_dev *pdev = NULL;
	int ret = -ENODEV;

	for_each_pci_dev(pdev)
		if (pdev->dev.iommu && pdev->dev.iommu->iommu_dev)
			nprdma_dmar_unit = pdev->dev.iommu->iommu_dev->dev;
	if (!nprdma_dmar_unit ||
	    ACPI_FAILURE(acpi_get_table(ACPI_SIG_DMAR, 0, &dmar)))
		return -ENODEV;
	unit = (void *)dmar + sizeof(struct acpi_table_dmar);
	if (unit->header.type == ACPI_DMAR_TYPE_HARDWARE_UNIT)
		ret = nprdma_dmar_copy(unit->address);
	acpi_put_table(dmar);
	if (ret)
		return ret;
	/* The kernel itself looks at them only when it makes the device */
	nprdma_dmar_kept = nprdma_dmar_unit->groups;
	nprdma_dmar_unit->groups = nprdma_dmar_groups;
	return 0;
}

static void __exit nprdma_dmar_exit(void)
{
	nprdma_dmar_unit->groups = nprdma_dmar_kept;
}

module_init(nprdma_dmar_init);
module_exit(nprdma_dmar_exit);

MODULE_DESCRIPTION("Makes up a VT-d unit, for a test of nprdma");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
