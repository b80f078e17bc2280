// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Finds the I/O page table of a PCI function behind an SMMUv3 of Arm in the same
 * way as the hardware: registers, stream table, and for stage 1 the context
 * descriptor. Only pages of 4 KiB are known here.
 *
 * Entries change without break-before-make, in which the device would fault. So
 * IDR3.BBML has to be 2: until the flush, the SMMU uses the old entry or the new
 * one. doc/kernel.md says why the administrator has to allow it nevertheless.
 */

#include <linux/bitfield.h>
#include <linux/dma-map-ops.h>
#include <linux/io.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/math.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/platform_device.h>

#include "nprdma_pte.h"

static bool allow_unordered_update;
module_param(allow_unordered_update, bool, 0444);
MODULE_PARM_DESC(allow_unordered_update,
		 "Allow SMMUs, although Arm leaves the order of accesses open while a page is re-pointed");

#define SMMU_IDR3		0x0c
#define SMMU_IIDR		0x18
#define SMMU_CR0		0x20
#define SMMU_STRTAB_BASE	0x80
#define SMMU_STRTAB_CFG		0x88
#define SMMU_REGS_SIZE		0x1000

#define SMMU_IDR3_BBML		GENMASK(12, 11)
#define SMMU_CR0_ENABLE		BIT(0)
#define SMMU_STRTAB_BITS	GENMASK(5, 0)
#define SMMU_STRTAB_SPLIT	GENMASK(10, 6)
#define SMMU_STRTAB_TWO_LEVELS	GENMASK(17, 16)

/* Of tables of streams and contexts, and of pages */
#define SMMU_ADDR		GENMASK_ULL(51, 6)
#define SMMU_PAGE_ADDR		GENMASK_ULL(47, 12)

/* In the first level: the second one has half of 2^SPAN entries */
#define SMMU_STRTAB_SPAN	GENMASK_ULL(4, 0)

/* Entry of a stream; its words have numbers as in the specification's fields */
#define SMMU_STE_WORDS		8
#define SMMU_STE0_VALID		BIT_ULL(0)
#define SMMU_STE0_CONFIG	GENMASK_ULL(3, 1)
#define SMMU_STE0_STAGE_1	5
#define SMMU_STE0_STAGE_2	6
#define SMMU_STE0_NESTED	7
#define SMMU_STE0_TWO_LEVELS	GENMASK_ULL(5, 4)
#define SMMU_STE0_SUBSTREAMS	GENMASK_ULL(63, 59)
#define SMMU_STE1_DEFAULT	GENMASK_ULL(1, 0)
#define SMMU_STE1_CONTEXT_0	2
#define SMMU_STE2_T0SZ		GENMASK_ULL(37, 32)
#define SMMU_STE2_SL0		GENMASK_ULL(39, 38)
#define SMMU_STE2_GRANULE	GENMASK_ULL(47, 46)
#define SMMU_STE2_DIRTY		BIT_ULL(55)
#define SMMU_STE2_STALL		BIT_ULL(57)

/* Context descriptor */
#define SMMU_CD0_T0SZ		GENMASK_ULL(5, 0)
#define SMMU_CD0_GRANULE	GENMASK_ULL(7, 6)
#define SMMU_CD0_VALID		BIT_ULL(31)
#define SMMU_CD0_DIRTY		BIT_ULL(42)
#define SMMU_CD0_STALL		BIT_ULL(44)

/* By the high bits of an address, which are not translated */
#define SMMU_LEVELS(_unused)	DIV_ROUND_UP(64 - PAGE_SHIFT - (_unused), 9)

static struct device *smmu_of(struct pci_dev *pdev)
{
	return pdev->dev.iommu->iommu_dev->dev->parent;
}

static const u64 *smmu_words(u64 entry)
{
	phys_addr_t phys = entry & SMMU_ADDR;

	return pfn_valid(PHYS_PFN(phys)) ? phys_to_virt(phys) : NULL;
}

/* The entry of a stream, NULL if there is none */
static const u64 *smmu_stream(u64 table, u32 config, u32 id)
{
	unsigned int split = FIELD_GET(SMMU_STRTAB_SPLIT, config);
	const u64 *words = smmu_words(table);

	if (!words || (u64)id >> FIELD_GET(SMMU_STRTAB_BITS, config))
		return NULL;
	if (FIELD_GET(SMMU_STRTAB_TWO_LEVELS, config)) {
		table = words[id >> split];
		words = smmu_words(table);
		id &= BIT(split) - 1;
		if (!words || id >= BIT(FIELD_GET(SMMU_STRTAB_SPAN, table)) / 2)
			return NULL;
	}
	words += id * SMMU_STE_WORDS;
	return words[0] & SMMU_STE0_VALID ? words : NULL;
}

/* The first context of a stream, which has no PASID; NULL if that has none */
static const u64 *smmu_context(const u64 *stream)
{
	const u64 *words = smmu_words(stream[0]);

	if (stream[0] & SMMU_STE0_SUBSTREAMS) {
		if (FIELD_GET(SMMU_STE1_DEFAULT, stream[1]) !=
		    SMMU_STE1_CONTEXT_0)
			return NULL;
		if (words && (stream[0] & SMMU_STE0_TWO_LEVELS))
			words = smmu_words(words[0]);
	}
	return words && (words[0] & SMMU_CD0_VALID) ? words : NULL;
}

static int smmu_check_unit(struct pci_dev *pdev, u32 bbml, u32 iidr,
			   u32 control, struct nprdma_reason *why)
{
	if (!allow_unordered_update)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "SMMUs are experimental: Arm leaves the order of accesses open while a page is re-pointed (module parameter allow_unordered_update=1; without the module: UCX_NPRDMA_MONITOR=odp)");
	if (bbml != 2)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device may fault while a page is re-pointed, because IDR3.BBML of its SMMU is %u, not 2 (IIDR %#x; without the module: UCX_NPRDMA_MONITOR=odp)",
					 bbml, iidr);
	if (!(control & SMMU_CR0_ENABLE))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's SMMU does not translate");
	/* The kernel's driver of SMMUs goes by the firmware, too */
	if (!dev_is_dma_coherent(smmu_of(pdev)) ||
	    !dev_is_dma_coherent(&pdev->dev))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the firmware says that the device or its SMMU is not coherent");
	return 0;
}

static const char *smmu_refused(u64 granule, u64 dirty, u64 stall)
{
	return granule ? "does not use pages of 4 KiB for the device" :
	       dirty ? "tracks which pages the device has written" :
	       stall ? "stalls the device's DMA where it faults" : NULL;
}

/*
 * Linux makes tables with the fewest levels, or several at the top of stage 2.
 * Returns why the table is refused, or NULL.
 */
static const char *smmu_find(const u64 *stream, struct nprdma_pte_root *root)
{
	unsigned int levels;
	const char *refused;
	const u64 *cd;

	if (!stream)
		return "has no entry for the device";
	switch (FIELD_GET(SMMU_STE0_CONFIG, stream[0])) {
	case SMMU_STE0_STAGE_1:
		cd = smmu_context(stream);
		if (!cd)
			return "has no context for the device without a PASID";
		refused = smmu_refused(cd[0] & SMMU_CD0_GRANULE,
				       cd[0] & SMMU_CD0_DIRTY,
				       cd[0] & SMMU_CD0_STALL);
		levels = SMMU_LEVELS(FIELD_GET(SMMU_CD0_T0SZ, cd[0]));
		root->format = &nprdma_pte_smmu_stage_1;
		root->top = cd[1] & SMMU_PAGE_ADDR;
		break;
	case SMMU_STE0_STAGE_2:
		refused = smmu_refused(stream[2] & SMMU_STE2_GRANULE,
				       stream[2] & SMMU_STE2_DIRTY,
				       stream[2] & SMMU_STE2_STALL);
		levels = SMMU_LEVELS(FIELD_GET(SMMU_STE2_T0SZ, stream[2]));
		if (!refused &&
		    FIELD_GET(SMMU_STE2_SL0, stream[2]) + 2 != levels)
			refused = "has several tables at the top for the device";
		root->format = &nprdma_pte_smmu_stage_2;
		root->top = stream[3] & SMMU_PAGE_ADDR;
		break;
	case SMMU_STE0_NESTED:
		return "translates for the device in nested stages";
	default:
		return "passes the device's DMA through, or none of it";
	}
	if (!refused)
		root->levels = levels;
	return refused;
}

static int smmu_root(struct pci_dev *pdev, struct nprdma_pte_root *root,
		     struct nprdma_reason *why)
{
	struct resource *where =
		platform_get_resource(to_platform_device(smmu_of(pdev)),
				      IORESOURCE_MEM, 0);
	struct iommu_fwspec *spec = dev_iommu_fwspec_get(&pdev->dev);
	u32 bbml, iidr, control, config;
	const char *refused;
	void __iomem *regs;
	u64 table;
	int ret;

	regs = where ? ioremap(where->start, SMMU_REGS_SIZE) : NULL;
	if (!regs)
		return nprdma_reason_set(why, -ENOMEM, "out of memory");
	bbml = FIELD_GET(SMMU_IDR3_BBML, readl(regs + SMMU_IDR3));
	iidr = readl(regs + SMMU_IIDR);
	control = readl(regs + SMMU_CR0);
	table = readq(regs + SMMU_STRTAB_BASE);
	config = readl(regs + SMMU_STRTAB_CFG);
	iounmap(regs);
	ret = smmu_check_unit(pdev, bbml, iidr, control, why);
	if (ret)
		return ret;
	if (!spec || spec->num_ids != 1)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the SMMU does not know the device by one number");
	refused = smmu_find(smmu_stream(table, config, spec->ids[0]), root);
	if (refused)
		return nprdma_reason_set(why, -EOPNOTSUPP, "the SMMU %s",
					 refused);
	snprintf(root->implementation, sizeof(root->implementation),
		 ", IIDR %#x, BBML %u", iidr, bbml);
	root->coherent = true;
	/* The kernel's driver covers exactly the range */
	root->max_order = BITS_PER_LONG - 1 - PAGE_SHIFT;
	return 0;
}

static bool smmu_is_kind(struct device *iommu)
{
	return iommu->parent && dev_is_platform(iommu->parent) &&
	       iommu->parent->driver &&
	       !strcmp(iommu->parent->driver->name, "arm-smmu-v3");
}

static const char *smmu_mode(const struct nprdma_pte_root *root)
{
	return root->format == &nprdma_pte_smmu_stage_1 ? "stage 1" : "stage 2";
}

const struct nprdma_pte_unit_ops nprdma_pte_smmu = {
	.name = "Arm SMMUv3",
	.source = "the stream table",
	.identity_remedy = "kernel parameter iommu.passthrough=0",
	/*
	 * After the CMD_SYNC for which the kernel's driver waits, all accesses by
	 * entries that were invalidated are globally observable (4.7.3).
	 */
	.flushes = 1,
	.is_kind = smmu_is_kind,
	.root = smmu_root,
	.mode = smmu_mode,
};

/* A table, or in level 1 a page */
#define SMMU_PTE_TYPE		GENMASK_ULL(1, 0)
#define SMMU_PTE_READ		BIT_ULL(6)
/* Stage 1: may not be written; stage 2: may be */
#define SMMU_PTE_WRITE		BIT_ULL(7)
/* Dirty tracking; one of 16 contiguous pages */
#define SMMU_PTE_REFUSED		GENMASK_ULL(52, 51)

static bool smmu_is_table(u64 entry, unsigned int level)
{
	return (entry & SMMU_PTE_TYPE) == SMMU_PTE_TYPE;
}

static bool smmu_is_leaf(u64 entry)
{
	return (entry & (SMMU_PTE_TYPE | SMMU_PTE_REFUSED)) == SMMU_PTE_TYPE;
}

const struct nprdma_pte_format nprdma_pte_smmu_stage_1 = {
	.address = SMMU_PAGE_ADDR,
	.inverted = SMMU_PTE_WRITE,
	.read = SMMU_PTE_READ,
	.write = SMMU_PTE_WRITE,
	.is_table = smmu_is_table,
	.is_leaf = smmu_is_leaf,
};

const struct nprdma_pte_format nprdma_pte_smmu_stage_2 = {
	.address = SMMU_PAGE_ADDR,
	.read = SMMU_PTE_READ,
	.write = SMMU_PTE_WRITE,
	.is_table = smmu_is_table,
	.is_leaf = smmu_is_leaf,
};
