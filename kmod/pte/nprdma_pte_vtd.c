// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Finds the I/O page table of a PCI function in the same way as the hardware
 * (Intel VT-d specification, chapters 8 and 9). The kernel knows the unit and
 * the address of its registers, which have the root table. Then bus and
 * function select the page table, in scalable mode together with the PASID of
 * requests without one.
 *
 * This does not depend on structures of the kernel's driver. The tables are
 * read without its locks: the entries of a function are set up before a driver
 * is bound, and removed after it is unbound.
 */

#include <linux/bitfield.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/kstrtox.h>
#include <linux/mm.h>

#include "nprdma_pte.h"

/* Registers, all in the first page of the unit */
#define VTD_CAP			0x08
#define VTD_ECAP		0x10
#define VTD_GSTS		0x1c
#define VTD_RTADDR		0x20
#define VTD_REGS_SIZE		0x1000

#define VTD_CAP_RWBF		BIT_ULL(4)
#define VTD_CAP_CM		BIT_ULL(7)
#define VTD_CAP_PSI		BIT_ULL(39)
#define VTD_CAP_MAMV		GENMASK_ULL(53, 48)
#define VTD_CAP_DWD		BIT_ULL(54)
#define VTD_CAP_DRD		BIT_ULL(55)
#define VTD_ECAP_C		BIT_ULL(0)
#define VTD_ECAP_SMPWC		BIT_ULL(48)
#define VTD_GSTS_TES		BIT(31)
#define VTD_GSTS_QIES		BIT(26)
#define VTD_RTADDR_TTM		GENMASK_ULL(11, 10)

enum {
	VTD_TTM_LEGACY	 = 0,
	VTD_TTM_SCALABLE = 1,
};

/* All entries: the present bit, and the address if there is one */
#define VTD_PRESENT		BIT_ULL(0)
#define VTD_ADDR		GENMASK_ULL(51, 12)

/* Context entry, legacy: 2 words per function */
#define VTD_CTX_TT		GENMASK_ULL(3, 2)
#define VTD_CTX_TT_PASS_THROUGH	2
#define VTD_CTX_AW		GENMASK_ULL(2, 0)

/* Context entry, scalable: 4 words per function, 128 functions per table */
#define VTD_SM_CTX_PDTS		GENMASK_ULL(11, 9)
#define VTD_SM_CTX_RID_PASID	GENMASK_ULL(19, 0)

/* PASID table entry: 8 words */
#define VTD_PASID_PER_TABLE	64
#define VTD_PASID_PGTT		GENMASK_ULL(8, 6)
#define VTD_PASID_AW		GENMASK_ULL(4, 2)
#define VTD_PASID_FSPM		GENMASK_ULL(3, 2)

enum {
	VTD_PGTT_FIRST	= 1,
	VTD_PGTT_SECOND	= 2,
};

struct vtd_unit {
	u64	cap;
	u64	ecap;
	u64	rtaddr;
	u32	gsts;
};

/* A word of a table in memory; 0, so not present, if there is no such memory */
static u64 vtd_word(u64 table, unsigned int index)
{
	phys_addr_t phys = table & VTD_ADDR;
	u64 *words;

	if (!pfn_valid(PHYS_PFN(phys)))
		return 0;
	words = phys_to_virt(phys);
	return READ_ONCE(words[index]);
}

/* A file in sysfs that the kernel's driver of the unit has, or NULL */
static struct device_attribute *vtd_attribute(const struct device *unit,
					      const char *name)
{
	const struct attribute_group **group;
	struct attribute **attr;

	for (group = unit->groups; group && *group; group++) {
		for (attr = (*group)->attrs; attr && *attr; attr++)
			if (!strcmp((*attr)->name, name))
				return container_of(*attr,
						    struct device_attribute,
						    attr);
	}
	return NULL;
}

/*
 * The physical address of the registers of a unit. No function and no public
 * structure of the kernel has it, only the text in sysfs. Returns 0;
 * -EOPNOTSUPP; -ENOMEM.
 */
static int vtd_find_registers(struct device *unit, u64 *address)
{
	struct device_attribute *attr = vtd_attribute(unit, "address");
	char *text = (char *)get_zeroed_page(GFP_KERNEL);
	int ret = -EOPNOTSUPP;

	if (!text)
		return -ENOMEM;
	if (attr && attr->show && attr->show(unit, attr, text) > 0 &&
	    !kstrtou64(text, 16, address))
		ret = 0;
	free_page((unsigned long)text);
	return ret;
}

static int vtd_read_unit(u64 address, struct vtd_unit *unit)
{
	void __iomem *regs = ioremap(address, VTD_REGS_SIZE);

	if (!regs)
		return -ENOMEM;
	unit->cap = readq(regs + VTD_CAP);
	unit->ecap = readq(regs + VTD_ECAP);
	unit->rtaddr = readq(regs + VTD_RTADDR);
	unit->gsts = readl(regs + VTD_GSTS);
	iounmap(regs);
	return 0;
}

static int vtd_check_unit(const struct vtd_unit *unit,
			  struct nprdma_reason *why)
{
	if (!(unit->gsts & VTD_GSTS_TES))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's VT-d unit does not translate");
	/*
	 * Linux uses the queue if the unit has one (ECAP.QI). Through the
	 * registers it does not ask for reads to be drained.
	 */
	if (!(unit->gsts & VTD_GSTS_QIES))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's VT-d unit has no invalidation queue, or the kernel does not use it");
	/* Without draining, a write may hit a page that was taken away */
	if (!(unit->cap & VTD_CAP_DWD) || !(unit->cap & VTD_CAP_DRD))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's VT-d unit cannot drain DMA in flight");
	if (unit->cap & VTD_CAP_RWBF)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's VT-d unit requires write-buffer flushing");
	return 0;
}

static int vtd_legacy_root(const struct vtd_unit *unit, struct pci_dev *pdev,
			   struct nprdma_pte_root *root,
			   struct nprdma_reason *why)
{
	u64 ctx, lo, hi;

	ctx = vtd_word(unit->rtaddr, pdev->bus->number * 2);
	if (!(ctx & VTD_PRESENT))
		goto absent;
	lo = vtd_word(ctx, pdev->devfn * 2);
	hi = vtd_word(ctx, pdev->devfn * 2 + 1);
	if (!(lo & VTD_PRESENT))
		goto absent;
	if (FIELD_GET(VTD_CTX_TT, lo) >= VTD_CTX_TT_PASS_THROUGH)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the VT-d unit passes the device's DMA through");
	root->format = &nprdma_pte_second_stage;
	root->top = lo & VTD_ADDR;
	root->levels = FIELD_GET(VTD_CTX_AW, hi) + 2;
	root->coherent = unit->ecap & VTD_ECAP_C;
	return 0;
absent:
	return nprdma_reason_set(why, -EOPNOTSUPP,
				 "the VT-d unit has no context for the device");
}

static int vtd_pasid_root(u64 table, unsigned int index,
			  struct nprdma_pte_root *root,
			  struct nprdma_reason *why)
{
	u64 second = vtd_word(table, index * 8);
	u64 first = vtd_word(table, index * 8 + 2);

	if (!(second & VTD_PRESENT))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the VT-d unit has no PASID entry for the device");
	switch (FIELD_GET(VTD_PASID_PGTT, second)) {
	case VTD_PGTT_FIRST:
		root->format = &nprdma_pte_first_stage;
		root->flags |= NPRDMA_DEVICE_FIRST_STAGE;
		root->top = first & VTD_ADDR;
		root->levels = FIELD_GET(VTD_PASID_FSPM, first) + 4;
		return 0;
	case VTD_PGTT_SECOND:
		root->format = &nprdma_pte_second_stage;
		root->top = second & VTD_ADDR;
		root->levels = FIELD_GET(VTD_PASID_AW, second) + 2;
		return 0;
	default:
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the VT-d unit passes the device's DMA through, or nests it");
	}
}

static int vtd_scalable_root(const struct vtd_unit *unit, struct pci_dev *pdev,
			     struct nprdma_pte_root *root,
			     struct nprdma_reason *why)
{
	unsigned int devfn = pdev->devfn % 128;
	u64 ctx, dir, table;
	u32 pasid, size;

	ctx = vtd_word(unit->rtaddr, pdev->bus->number * 2 + pdev->devfn / 128);
	if (!(ctx & VTD_PRESENT))
		goto absent;
	dir = vtd_word(ctx, devfn * 4);
	if (!(dir & VTD_PRESENT))
		goto absent;
	pasid = FIELD_GET(VTD_SM_CTX_RID_PASID, vtd_word(ctx, devfn * 4 + 1));
	size = 1u << (FIELD_GET(VTD_SM_CTX_PDTS, dir) + 7);
	/* vtd_word() reads within one page, and this is the first one */
	if (pasid / VTD_PASID_PER_TABLE >=
	    min_t(u32, size, PAGE_SIZE / sizeof(u64)))
		goto absent;
	table = vtd_word(dir, pasid / VTD_PASID_PER_TABLE);
	if (!(table & VTD_PRESENT))
		goto absent;
	root->flags |= NPRDMA_DEVICE_SCALABLE;
	root->coherent = unit->ecap & VTD_ECAP_SMPWC;
	return vtd_pasid_root(table, pasid % VTD_PASID_PER_TABLE, root, why);
absent:
	return nprdma_reason_set(why, -EOPNOTSUPP,
				 "the VT-d unit has no context for the device");
}

/*
 * Pages in the largest invalidation. The limit is for second-stage translations
 * only: invalidations of the first stage may have any size (section 11.4.2 of
 * the specification, MAMV). A unit without page-selective invalidation (PSI)
 * has no limit either, because the kernel's driver invalidates the domain.
 */
static unsigned int vtd_max_order(const struct vtd_unit *unit, u32 flags)
{
	unsigned int most = BITS_PER_LONG - 1 - PAGE_SHIFT;

	if ((flags & NPRDMA_DEVICE_FIRST_STAGE) || !(unit->cap & VTD_CAP_PSI))
		return most;
	return min_t(unsigned int, FIELD_GET(VTD_CAP_MAMV, unit->cap), most);
}

static int vtd_root(struct pci_dev *pdev, struct nprdma_pte_root *root,
		    struct nprdma_reason *why)
{
	struct vtd_unit unit;
	u64 address;
	int ret;

	ret = vtd_find_registers(pdev->dev.iommu->iommu_dev->dev, &address);
	if (ret == -EOPNOTSUPP)
		return nprdma_reason_set(why, ret,
					 "the kernel does not say where the registers of the VT-d unit are");
	if (!ret)
		ret = vtd_read_unit(address, &unit);
	if (ret)
		return nprdma_reason_set(why, ret, "out of memory");
	ret = vtd_check_unit(&unit, why);
	if (ret)
		return ret;

	switch (FIELD_GET(VTD_RTADDR_TTM, unit.rtaddr)) {
	case VTD_TTM_LEGACY:
		ret = vtd_legacy_root(&unit, pdev, root, why);
		break;
	case VTD_TTM_SCALABLE:
		ret = vtd_scalable_root(&unit, pdev, root, why);
		break;
	default:
		ret = nprdma_reason_set(why, -EOPNOTSUPP,
					"the VT-d unit is in a mode that is not supported");
	}
	if (!ret && (root->levels < 3 || root->levels > 5))
		ret = nprdma_reason_set(why, -EOPNOTSUPP,
					"the device's I/O page table has %u levels",
					root->levels);
	if (unit.cap & VTD_CAP_CM)
		root->flags |= NPRDMA_DEVICE_CACHING_MODE;
	root->max_order = vtd_max_order(&unit, root->flags);
	return ret;
}

/* The kernel's driver names its units so, and they have no parent */
static bool vtd_is_kind(struct device *iommu)
{
	return strstarts(dev_name(iommu), "dmar");
}

static const char *vtd_mode(const struct nprdma_pte_root *root)
{
	if (root->flags & NPRDMA_DEVICE_FIRST_STAGE)
		return "scalable mode, first stage";
	return root->flags & NPRDMA_DEVICE_SCALABLE ?
	       "scalable mode, second stage" : "legacy mode";
}

const struct nprdma_pte_unit_ops nprdma_pte_vtd = {
	.name = "Intel VT-d",
	.source = "the root table",
	.identity_remedy = "kernel parameter iommu.passthrough=0, no iommu=pt; or write DMA to the group's type in sysfs while no driver is bound",
	.flushes = 1,
	.is_kind = vtd_is_kind,
	.root = vtd_root,
	.generic_root = nprdma_pte_generic_vtd,
	.mode = vtd_mode,
};

/* Large pages have this bit in both stages */
#define VTD_PTE_LARGE		BIT_ULL(7)

/* First stage, as the CPU's: an entry that is present may be read */
#define VTD_FS_PRESENT		BIT_ULL(0)
#define VTD_FS_WRITE		BIT_ULL(1)

static bool first_is_leaf(u64 entry)
{
	return entry & VTD_FS_PRESENT;
}

static bool first_is_table(u64 entry, unsigned int level)
{
	return first_is_leaf(entry) && !(entry & VTD_PTE_LARGE);
}

const struct nprdma_pte_format nprdma_pte_first_stage = {
	.address = VTD_ADDR,
	.read = VTD_FS_PRESENT,
	.write = VTD_FS_WRITE,
	.is_table = first_is_table,
	.is_leaf = first_is_leaf,
};

/* Second stage: an entry is present if it may be read or written */
#define VTD_SS_READ		BIT_ULL(0)
#define VTD_SS_WRITE		BIT_ULL(1)

static bool second_is_leaf(u64 entry)
{
	return entry & (VTD_SS_READ | VTD_SS_WRITE);
}

static bool second_is_table(u64 entry, unsigned int level)
{
	return second_is_leaf(entry) && !(entry & VTD_PTE_LARGE);
}

const struct nprdma_pte_format nprdma_pte_second_stage = {
	.address = VTD_ADDR,
	.read = VTD_SS_READ,
	.write = VTD_SS_WRITE,
	.is_table = second_is_table,
	.is_leaf = second_is_leaf,
};
