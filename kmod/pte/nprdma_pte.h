/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The PTE engine: replaces single leafs of a live I/O page table (ARCHITECTURE
 * 7). No kernel up to 7.2 exports a function for that: iommu_map() does not
 * replace, and after iommu_unmap() the device faults until iommu_map().
 *
 * Four functions, find, point, flush and release, work on a run: 4 KiB leafs
 * with contiguous IOVAs, whose tables were looked up once. They rely on the
 * following, which is checked when a run is found:
 *
 *  - The tables that lead to a mapped leaf do not move before the DMA API
 *    unmaps it, which only the owner of the mapping does.
 *  - No other code writes a leaf of a mapped page, except for the accessed and
 *    dirty bits of the first stage, which a replaced leaf may lose.
 *  - The IOMMU reads a 64-bit entry atomically, so it uses the old or the new
 *    one.
 *
 * What depends on the kind of IOMMU stands behind two tables of functions, the
 * unit's and the format's. The root of an I/O page table comes from the tables
 * to which the registers of the unit point, and from the kernel's generic page
 * table if its header is public (7.2). If both are available they have to
 * agree.
 */

#ifndef NPRDMA_PTE_H
#define NPRDMA_PTE_H

#include <linux/iommu.h>
#include <linux/pci.h>
#include <linux/types.h>

#include "nprdma_reason.h"

/* What the entries of a table mean; all have 64 bits, 512 are a table */
struct nprdma_pte_format {
	u64	address;	/* bits of a physical address */
	u64	read, write;	/* a leaf with the right has these bits */
	u64	inverted;	/* of which it lacks these instead */
	/* Whether an entry of this level, above 1, leads to a table */
	bool	(*is_table)(u64 entry, unsigned int level);
	/* Whether an entry of level 1 maps 4 KiB */
	bool	(*is_leaf)(u64 entry);
};

struct nprdma_pte_root;

/* A kind of IOMMU */
struct nprdma_pte_unit_ops {
	const char	*name;
	const char	*source;	/* where the root was found */
	const char	*identity_remedy; /* if it passes DMA through */
	unsigned int	flushes;	/* in a row that are one */
	/* Whether the kernel's driver of an IOMMU is for this kind */
	bool	(*is_kind)(struct device *iommu);
	/*
	 * Find the page table of a function, which has no aliases, as the
	 * hardware does. May sleep. Returns 0; -EOPNOTSUPP; -ENOMEM.
	 */
	int	(*root)(struct pci_dev *pdev, struct nprdma_pte_root *root,
			struct nprdma_reason *why);
	/*
	 * Get the root of a domain of this kind of IOMMU from the kernel.
	 * Returns 0; -ENOENT if this kernel or this domain has no generic page
	 * table; -EOPNOTSUPP if it has another format. NULL if no kernel has one.
	 */
	int	(*generic_root)(struct iommu_domain *domain,
				struct nprdma_pte_root *root);
	const char *(*mode)(const struct nprdma_pte_root *root); /* for a log */
};

/* The I/O page table of a device */
struct nprdma_pte_root {
	const struct nprdma_pte_unit_ops *unit;
	const struct nprdma_pte_format *format;
	phys_addr_t	top;		/* physical address */
	unsigned int	levels;
	/* NPRDMA_DEVICE_xx of the unit */
	u32		flags;
	bool		coherent;	/* the unit snoops CPU caches */
	bool		generic;	/* generic_pt has the same root */
	/* Of the unit, with a comma before it, for a log; may be empty */
	char		implementation[32];
	unsigned int	max_order;	/* log2 of pages of an invalidation */
};

/* Leafs with contiguous IOVAs */
struct nprdma_pte_run {
	struct iommu_domain	*domain;
	u64			address; /* see struct nprdma_pte_format */
	unsigned int		flushes; /* see struct nprdma_pte_unit_ops */
	dma_addr_t		iova;	/* of the first */
	unsigned long		npages;
	bool			coherent; /* see struct nprdma_pte_root */
	unsigned int		max_order; /* likewise */
	unsigned long		ntables;
	u64			*tables[]; /* one for each 2 MiB of IOVA */
};

const struct nprdma_pte_unit_ops *nprdma_pte_unit(struct device *dev);
int nprdma_pte_root(struct pci_dev *pdev, struct iommu_domain *domain,
		    struct nprdma_pte_root *root, struct nprdma_reason *why);

struct nprdma_pte_run *nprdma_pte_find(struct iommu_domain *domain,
				       const struct nprdma_pte_root *root,
				       dma_addr_t iova, unsigned long npages,
				       bool writable,
				       struct nprdma_reason *why);
void nprdma_pte_point(struct nprdma_pte_run *run, unsigned long index,
		      phys_addr_t phys);
void nprdma_pte_flush(struct nprdma_pte_run *run, unsigned long first,
		      unsigned long n);
void nprdma_pte_flush_all(struct device *dev, struct iommu_domain *domain);
void nprdma_pte_release(struct nprdma_pte_run *run);

bool nprdma_pte_holds(const struct nprdma_pte_run *run, unsigned long index,
		      phys_addr_t phys);
bool nprdma_pte_agrees(struct nprdma_pte_run *run, unsigned long index,
		       phys_addr_t phys);
unsigned long nprdma_pte_next_table(const struct nprdma_pte_run *run,
				    unsigned long index);

extern const struct nprdma_pte_format nprdma_pte_first_stage;
extern const struct nprdma_pte_format nprdma_pte_second_stage;
extern const struct nprdma_pte_unit_ops nprdma_pte_vtd;
int nprdma_pte_generic_vtd(struct iommu_domain *domain,
			   struct nprdma_pte_root *root);

extern const struct nprdma_pte_format nprdma_pte_amd_v1;
extern const struct nprdma_pte_unit_ops nprdma_pte_amd;
int nprdma_pte_generic_amd(struct iommu_domain *domain,
			   struct nprdma_pte_root *root);

extern const struct nprdma_pte_format nprdma_pte_smmu_stage_1;
extern const struct nprdma_pte_format nprdma_pte_smmu_stage_2;
extern const struct nprdma_pte_unit_ops nprdma_pte_smmu;

#endif
