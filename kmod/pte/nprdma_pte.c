// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The part of the PTE engine that all formats share: tables of 512 entries of 64
 * bits in several levels.
 */

#include <linux/bits.h>
#include <linux/log2.h>
#include <linux/math.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <asm/cacheflush.h>

#include "nprdma_pte.h"

#define PTE_LEVEL_BITS		9
#define PTE_PER_TABLE		BIT(PTE_LEVEL_BITS)

static unsigned int level_shift(unsigned int level)
{
	return PAGE_SHIFT + PTE_LEVEL_BITS * (level - 1);
}

static u64 *table_of(phys_addr_t phys)
{
	/* Do not follow a wrong root to an address without memory */
	if (!pfn_valid(PHYS_PFN(phys)))
		return NULL;
	return phys_to_virt(phys);
}

/* The table whose entry for @iova is a 4 KiB leaf, NULL if there is none */
static u64 *find_leaf_table(const struct nprdma_pte_root *root,
			    dma_addr_t iova)
{
	u64 *table = table_of(root->top);
	unsigned int level;
	u64 entry;

	/* Behind what the table covers, an index would begin again at 0 */
	if (level_shift(root->levels + 1) < BITS_PER_TYPE(iova) &&
	    iova >> level_shift(root->levels + 1))
		return NULL;
	for (level = root->levels; table && level > 1; level--) {
		entry = READ_ONCE(table[(iova >> level_shift(level)) &
					(PTE_PER_TABLE - 1)]);
		if (!root->format->is_table(entry, level))
			return NULL;
		table = table_of(entry & root->format->address);
	}
	return table;
}

static u64 *leaf_of(const struct nprdma_pte_run *run, unsigned long index)
{
	unsigned long pfn = (run->iova >> PAGE_SHIFT) + index;
	unsigned long first = run->iova >> level_shift(2);

	return &run->tables[(pfn >> PTE_LEVEL_BITS) - first]
			   [pfn & (PTE_PER_TABLE - 1)];
}

/* Check that a leaf has exactly the permissions that were asked for */
static int check_leaf(const struct nprdma_pte_format *format, u64 leaf,
		      bool writable, struct nprdma_reason *why)
{
	if (!format->is_leaf(leaf))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "a mapped page has no 4 KiB entry in the I/O page table that was found");
	leaf ^= format->inverted;
	if ((leaf & format->read) != format->read)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "a mapped page may not be read according to the I/O page table");
	/* For example, one erratum makes the driver map all pages writable */
	if (((leaf & format->write) == format->write) != writable)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the IOMMU driver makes %s mappings although asked not to",
					 writable ? "read-only" : "writable");
	return 0;
}

static const struct nprdma_pte_unit_ops *const units[] = {
#ifdef CONFIG_X86
	&nprdma_pte_vtd,
	&nprdma_pte_amd,
#endif
#ifdef CONFIG_ARM64
	&nprdma_pte_smmu,
#endif
};

/* The kind of the IOMMU that translates for a device, or NULL */
const struct nprdma_pte_unit_ops *nprdma_pte_unit(struct device *dev)
{
	struct device *iommu = NULL;
	size_t i;

	if (dev->iommu && dev->iommu->iommu_dev)
		iommu = dev->iommu->iommu_dev->dev;
	for (i = 0; iommu && i < ARRAY_SIZE(units); i++)
		if (units[i]->is_kind(iommu))
			return units[i];
	return NULL;
}

/*
 * Find the I/O page table of a device, for which nprdma_pte_unit() has found a
 * unit, in the domain that the DMA API uses for it. A driver is bound, or about
 * to be. The unit is examined in any case: it translates, and its capabilities
 * are available only there. May sleep.
 * Returns 0; -EOPNOTSUPP if the table cannot be used; -ENOMEM.
 */
int nprdma_pte_root(struct pci_dev *pdev, struct iommu_domain *domain,
		    struct nprdma_pte_root *root, struct nprdma_reason *why)
{
	const struct nprdma_pte_unit_ops *unit = nprdma_pte_unit(&pdev->dev);
	struct nprdma_pte_root generic;
	int ret;

	*root = (struct nprdma_pte_root) { .unit = unit };
	ret = unit->root(pdev, root, why);
	if (ret || !unit->generic_root)
		return ret;

	ret = unit->generic_root(domain, &generic);
	if (ret == -ENOENT)
		return 0;
	if (ret)
		return nprdma_reason_set(why, ret,
					 "the I/O page table has a format that is not supported");
	if (generic.top != root->top || generic.levels != root->levels ||
	    generic.format != root->format)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the kernel's I/O page table and the one in the registers of the %s unit differ",
					 unit->name);
	root->coherent &= generic.coherent;
	root->generic = true;
	return 0;
}

/*
 * Look up the leafs of a range that the caller has mapped by 4 KiB entries. The
 * permissions of every leaf are checked. The caller, which knows the mapped
 * pages, checks the addresses by nprdma_pte_holds(), and the tables by
 * nprdma_pte_agrees(). May sleep. Returns ERR_PTR(-EOPNOTSUPP) if a check
 * failed, or ERR_PTR(-ENOMEM).
 */
struct nprdma_pte_run *nprdma_pte_find(struct iommu_domain *domain,
				       const struct nprdma_pte_root *root,
				       dma_addr_t iova, unsigned long npages,
				       bool writable, struct nprdma_reason *why)
{
	dma_addr_t last = iova + ((dma_addr_t)(npages - 1) << PAGE_SHIFT);
	unsigned int shift = level_shift(2);
	unsigned long ntables = (last >> shift) - (iova >> shift) + 1;
	struct nprdma_pte_run *run;
	unsigned long i;
	u64 leaf;
	int ret;

	run = kvzalloc(struct_size(run, tables, ntables), GFP_KERNEL_ACCOUNT);
	if (!run) {
		ret = nprdma_reason_set(why, -ENOMEM, "out of memory");
		return ERR_PTR(ret);
	}
	run->domain = domain;
	run->address = root->format->address;
	run->flushes = root->unit->flushes;
	run->iova = iova;
	run->npages = npages;
	run->coherent = root->coherent;
	run->max_order = root->max_order;
	run->ntables = ntables;

	for (i = 0; i < ntables; i++) {
		run->tables[i] = find_leaf_table(root, iova +
						 ((dma_addr_t)i << shift));
		if (!run->tables[i]) {
			ret = nprdma_reason_set(why, -EOPNOTSUPP,
						"the I/O page table that was found does not lead to 4 KiB entries");
			goto err;
		}
	}
	for (i = 0; i < npages; i++) {
		leaf = READ_ONCE(*leaf_of(run, i));
		ret = check_leaf(root->format, leaf, writable, why);
		if (ret)
			goto err;
		if (!(i % PTE_PER_TABLE))
			cond_resched();
	}
	return run;
err:
	nprdma_pte_release(run);
	return ERR_PTR(ret);
}

/* Whether a leaf says @phys */
bool nprdma_pte_holds(const struct nprdma_pte_run *run, unsigned long index,
		      phys_addr_t phys)
{
	return (READ_ONCE(*leaf_of(run, index)) & run->address) == phys;
}

/* Whether both a leaf and iommu_iova_to_phys() say @phys */
bool nprdma_pte_agrees(struct nprdma_pte_run *run, unsigned long index,
		       phys_addr_t phys)
{
	dma_addr_t iova = run->iova + ((dma_addr_t)index << PAGE_SHIFT);

	return nprdma_pte_holds(run, index, phys) &&
	       iommu_iova_to_phys(run->domain, iova) == phys;
}

/*
 * Index of the first page whose leaf is in another table than that of @index;
 * it may be beyond the end of the run
 */
unsigned long nprdma_pte_next_table(const struct nprdma_pte_run *run,
				    unsigned long index)
{
	unsigned long first = run->iova >> PAGE_SHIFT;

	return round_down(first + index, PTE_PER_TABLE) + PTE_PER_TABLE - first;
}

/*
 * Make a leaf point at another page. The device may use either page until the
 * leaf is flushed. The caller serialises calls for the same leaf.
 */
void nprdma_pte_point(struct nprdma_pte_run *run, unsigned long index,
		      phys_addr_t phys)
{
	u64 *leaf = leaf_of(run, index);
	u64 old = READ_ONCE(*leaf);

	if ((old & run->address) == phys)
		return;
	/* One locked store, and a full barrier before the flush that follows */
	xchg(leaf, (old & ~run->address) | phys);
#ifdef CONFIG_X86
	if (!run->coherent)
		clflush_cache_range(leaf, sizeof(*leaf));
#endif
}

static void flush_block(struct nprdma_pte_run *run, unsigned long pfn,
			unsigned long n)
{
	struct iommu_iotlb_gather gather;
	unsigned int i;

	for (i = 0; i < run->flushes; i++) {
		iommu_iotlb_gather_init(&gather);
		iommu_iotlb_gather_add_range(&gather, pfn << PAGE_SHIFT,
					     n << PAGE_SHIFT);
		/* Arm's driver flushes nothing if it does not know the size */
		gather.pgsize = PAGE_SIZE;
		iommu_iotlb_sync(run->domain, &gather);
	}
}

/*
 * When this returns, no access that was translated by an earlier leaf is in
 * progress. In second stage, the kernel's driver asks the unit to drain reads
 * and writes, and the unit can (checked before a device is used). In first
 * stage, the descriptor has no bits for that: the unit always drains before it
 * completes the wait descriptor that follows (VT-d specification, revision
 * 5.10, sections 6.5.2.4 and 6.5.4). The driver waits for that descriptor in
 * both cases. The same call invalidates translations that the device itself
 * caches (ATS). doc/kernel.md has what is known of AMD's and Arm's.
 *
 * An invalidation covers a power of two of pages, aligned to its length. For
 * other ranges in first-stage domains, Linux 6.1 omits the end: it rounds the
 * length up to a power of two and then aligns the address down
 * (qi_flush_piotlb(), and for ATS iommu_flush_iotlb_psi()). So only such blocks
 * are passed to it. A range is in one block of the next larger power of two, or
 * in two adjacent blocks. The pages of the blocks outside of the range cost a
 * page walk each. No block is larger than the unit allows: for those, the
 * driver would invalidate the whole domain. Does not sleep.
 */
void nprdma_pte_flush(struct nprdma_pte_run *run, unsigned long first,
		      unsigned long n)
{
	unsigned long pfn = (run->iova >> PAGE_SHIFT) + first;
	unsigned long block = min(roundup_pow_of_two(n), BIT(run->max_order));
	unsigned long at;

	for (at = round_down(pfn, block); at < pfn + n; at += block)
		flush_block(run, at, block);
}

/*
 * The same for all that a device's domain has mapped and unmapped. The device's
 * driver is bound.
 */
void nprdma_pte_flush_all(struct device *dev, struct iommu_domain *domain)
{
	unsigned int i;

	for (i = 0; i < nprdma_pte_unit(dev)->flushes; i++)
		iommu_flush_iotlb_all(domain);
}

/*
 * Free a run, whose leafs have the addresses that they had when they were
 * found; NULL is allowed
 */
void nprdma_pte_release(struct nprdma_pte_run *run)
{
	kvfree(run);
}
