// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * From now on, readers of the firmware's table of VT-d units get another
 * address for the registers of the first one, where there is a copy of them.
 * The kernel's own driver has read the table before. For a test only.
 */

#include <linux/acpi.h>
#include <linux/io.h>
#include <linux/module.h>

/* The registers that describe the unit and its tables */
#define NPRDMA_DMAR_BYTES 0x40

static unsigned long registers;
module_param(registers, ulong, 0400);
MODULE_PARM_DESC(registers, "Physical address of the registers");

static struct acpi_table_header *nprdma_dmar;
static struct acpi_dmar_hardware_unit *nprdma_dmar_unit;
static u64 nprdma_dmar_address;

static int nprdma_dmar_copy(void)
{
	void __iomem *from = ioremap(nprdma_dmar_unit->address,
				     NPRDMA_DMAR_BYTES);
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
	int ret;

	if (ACPI_FAILURE(acpi_get_table(ACPI_SIG_DMAR, 0, &nprdma_dmar)))
		return -ENODEV;
	nprdma_dmar_unit = (void *)nprdma_dmar +
			   sizeof(struct acpi_table_dmar);
	if (nprdma_dmar_unit->header.type != ACPI_DMAR_TYPE_HARDWARE_UNIT) {
		acpi_put_table(nprdma_dmar);
		return -ENODEV;
	}
	ret = nprdma_dmar_copy();
	if (ret) {
		acpi_put_table(nprdma_dmar);
		return ret;
	}
	nprdma_dmar_address = nprdma_dmar_unit->address;
	nprdma_dmar_unit->address = registers;
	return 0;
}

static void __exit nprdma_dmar_exit(void)
{
	nprdma_dmar_unit->address = nprdma_dmar_address;
	acpi_put_table(nprdma_dmar);
}

module_init(nprdma_dmar_init);
module_exit(nprdma_dmar_exit);

MODULE_DESCRIPTION("Makes up a VT-d unit, for a test of nprdma");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
