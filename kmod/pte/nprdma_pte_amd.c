// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Finds the I/O page table of a PCI function behind an AMD IOMMU in the same way
 * as the hardware. What the bits mean is from Linux's driver: the specification
 * (48882) has not been read, which is one reason for allow_amd. The IOMMU is a
 * PCI function itself, of which a capability has the address of its registers.
 * These have the device table, with an entry for each bus and function. Only
 * tables of version 1 are known here, in which the host translates.
 *
 * The top of such a table grows if an address is mapped that is too large. It
 * then becomes a table below the new top, so leafs that were looked up stay.
 */

#include <linux/bitfield.h>
#include <linux/io.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/mm.h>
#include <linux/version.h>

#include "nprdma_pte.h"

/* Subclass of PCI functions that are IOMMUs, and their capability */
#define AMD_CLASS		0x0806
#define AMD_CAP			0x0f
#define AMD_CAP_LOW		4
#define AMD_CAP_HIGH		8
#define AMD_CAP_NPCACHE		BIT(26)
#define AMD_LOW_ADDR		GENMASK(31, 14)

#define AMD_DEVTAB		0x00
#define AMD_CONTROL		0x18
#define AMD_REGS_SIZE		0x1000

#define AMD_DEVTAB_SIZE		GENMASK_ULL(8, 0)
#define AMD_CONTROL_ENABLE	BIT_ULL(0)
#define AMD_CONTROL_COHERENT	BIT_ULL(10)
#define AMD_CONTROL_SEGMENTS	GENMASK_ULL(36, 34)

#define AMD_ADDR		GENMASK_ULL(51, 12)

/* Entry of a function, its first of 4 words; a guest table is version 2 */
#define AMD_DTE_WORDS		4
#define AMD_DTE_VALID		(BIT_ULL(0) | BIT_ULL(1))
#define AMD_DTE_DIRTY		GENMASK_ULL(8, 7)
#define AMD_DTE_MODE		GENMASK_ULL(11, 9)
#define AMD_DTE_GUEST		BIT_ULL(55)
#define AMD_MAX_LEVELS		6

struct amd_unit {
	u64	devtab;
	u64	control;
	u32	cap;
};

static int amd_read_unit(struct pci_dev *iommu, struct amd_unit *unit,
			 struct nprdma_reason *why)
{
	int cap = pci_find_capability(iommu, AMD_CAP);
	void __iomem *regs;
	u32 low, high;

	if (!cap ||
	    pci_read_config_dword(iommu, cap, &unit->cap) ||
	    pci_read_config_dword(iommu, cap + AMD_CAP_LOW, &low) ||
	    pci_read_config_dword(iommu, cap + AMD_CAP_HIGH, &high))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the AMD IOMMU does not say where its registers are");
	regs = ioremap((u64)high << 32 | (low & AMD_LOW_ADDR), AMD_REGS_SIZE);
	if (!regs)
		return nprdma_reason_set(why, -ENOMEM, "out of memory");
	unit->devtab = readq(regs + AMD_DEVTAB);
	unit->control = readq(regs + AMD_CONTROL);
	iounmap(regs);
	return 0;
}

static int amd_check_unit(const struct amd_unit *unit,
			  struct nprdma_reason *why)
{
	if (!(unit->control & AMD_CONTROL_ENABLE))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's AMD IOMMU does not translate");
	/* The kernel's driver never cleans caches for this IOMMU */
	if (!(unit->control & AMD_CONTROL_COHERENT))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "page walks of the device's AMD IOMMU are not coherent");
	if (unit->control & AMD_CONTROL_SEGMENTS)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's AMD IOMMU has its device table in segments");
	return 0;
}

/* The first word of a function's entry; 0, so not valid, if there is none */
static u64 amd_entry(const struct amd_unit *unit, u16 id)
{
	u64 bytes = (FIELD_GET(AMD_DEVTAB_SIZE, unit->devtab) + 1) * PAGE_SIZE;
	phys_addr_t table = unit->devtab & AMD_ADDR;
	u64 *words;

	if (id >= bytes / (AMD_DTE_WORDS * sizeof(u64)) ||
	    !pfn_valid(PHYS_PFN(table)))
		return 0;
	words = phys_to_virt(table);
	return READ_ONCE(words[id * AMD_DTE_WORDS]);
}

static struct pci_dev *amd_unit_of(struct pci_dev *pdev)
{
	return to_pci_dev(pdev->dev.iommu->iommu_dev->dev->parent);
}

#define AMD_KERNEL_IN(_major, _minor, _first, _end) \
	(LINUX_VERSION_CODE >= KERNEL_VERSION(_major, _minor, _first) && \
	 LINUX_VERSION_CODE < KERNEL_VERSION(_major, _minor, _end))

/*
 * Whether two flushes in a row are one. iommu_completion_wait() of the kernel's
 * driver returns at once if another CPU has queued the command to wait and that
 * is not done. Until upstream d2a0cac that CPU held the lock of the command queue
 * meanwhile, so the second flush began only when the first one was done. From
 * 1e75a82 on no call returns early. Kernels in between never wait in some cases.
 */
static bool amd_kernel_waits(void)
{
	return !(AMD_KERNEL_IN(6, 6, 128, 148) || AMD_KERNEL_IN(6, 12, 75, 101) ||
		 AMD_KERNEL_IN(6, 18, 16, 42) ||
		 (LINUX_VERSION_CODE >= KERNEL_VERSION(6, 19, 6) &&
		  LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 6)));
}

static int amd_root(struct pci_dev *pdev, struct nprdma_pte_root *root,
		    struct nprdma_reason *why)
{
	struct amd_unit unit;
	u64 entry;
	int ret;

	if (!amd_kernel_waits())
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "this kernel does not wait for flushes of AMD's IOMMU (it has upstream commit d2a0cac without 1e75a82)");
	ret = amd_read_unit(amd_unit_of(pdev), &unit, why);
	if (!ret)
		ret = amd_check_unit(&unit, why);
	if (ret)
		return ret;
	/* One read, because the top and the number of levels belong together */
	entry = amd_entry(&unit, pci_dev_id(pdev));
	if ((entry & AMD_DTE_VALID) != AMD_DTE_VALID)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the AMD IOMMU has no entry for the device");
	if (entry & AMD_DTE_GUEST)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's I/O page table is of AMD's version 2 (kernel parameter amd_iommu=pgtbl_v1)");
	if (entry & AMD_DTE_DIRTY)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the AMD IOMMU tracks which pages the device has written");
	root->format = &nprdma_pte_amd_v1;
	root->top = entry & AMD_ADDR;
	root->levels = FIELD_GET(AMD_DTE_MODE, entry);
	if (!root->levels || root->levels > AMD_MAX_LEVELS)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the AMD IOMMU passes the device's DMA through");
	root->coherent = true;
	root->flags = unit.cap & AMD_CAP_NPCACHE ?
		      NPRDMA_DEVICE_CACHING_MODE : 0;
	/* The driver rounds a range to a power of two that contains it */
	root->max_order = BITS_PER_LONG - 1 - PAGE_SHIFT;
	return 0;
}

static bool amd_is_kind(struct device *iommu)
{
	return iommu->parent && dev_is_pci(iommu->parent) &&
	       to_pci_dev(iommu->parent)->class >> 8 == AMD_CLASS;
}

static const char *amd_mode(const struct nprdma_pte_root *root)
{
	return "version 1";
}

const struct nprdma_pte_unit_ops nprdma_pte_amd = {
	.name = "AMD",
	.source = "the device table",
	.identity_remedy = "kernel parameters amd_iommu=force_isolation and iommu.passthrough=0, no iommu=pt",
	.flushes = 2,		/* see amd_kernel_waits() */
	.is_kind = amd_is_kind,
	.root = amd_root,
	.generic_root = nprdma_pte_generic_amd,
	.mode = amd_mode,
};

/* An entry says of what level the table is to which it leads; 0: none, a leaf */
#define AMD_PTE_PRESENT		BIT_ULL(0)
#define AMD_PTE_NEXT		GENMASK_ULL(11, 9)
#define AMD_PTE_READ		BIT_ULL(61)
#define AMD_PTE_WRITE		BIT_ULL(62)

static bool amd_leads_to(u64 entry, unsigned int level)
{
	return (entry & AMD_PTE_PRESENT) &&
	       FIELD_GET(AMD_PTE_NEXT, entry) == level;
}

static bool amd_is_table(u64 entry, unsigned int level)
{
	return amd_leads_to(entry, level - 1);
}

/* Not if the size is in the address (7), so that this leaf is a part of one */
static bool amd_is_leaf(u64 entry)
{
	return amd_leads_to(entry, 0);
}

const struct nprdma_pte_format nprdma_pte_amd_v1 = {
	.address = AMD_ADDR,
	.read = AMD_PTE_READ,
	.write = AMD_PTE_WRITE,
	.is_table = amd_is_table,
	.is_leaf = amd_is_leaf,
};
