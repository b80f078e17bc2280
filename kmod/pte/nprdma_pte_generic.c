// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The root of a domain's table as the kernel's generic page table has it. Its
 * header is public since 6.19, for reading only: there is no function that
 * replaces a leaf.
 */

#include <linux/errno.h>
#include <linux/module.h>

#include "nprdma_pte.h"

#ifdef HAVE_GENERIC_PT

#include <linux/generic_pt/iommu.h>

/* MODULE_IMPORT_NS() takes a string in some kernels, and a symbol in others */
MODULE_INFO(import_ns, "GENERIC_PT_IOMMU");

/* struct nprdma_pte_unit_ops has what it returns */
int nprdma_pte_generic_vtd(struct iommu_domain *domain,
			   struct nprdma_pte_root *root)
{
	struct pt_iommu *pt = iommupt_from_domain(domain);
	struct pt_iommu_x86_64_hw_info fs;
	struct pt_iommu_vtdss_hw_info ss;
	struct pt_iommu_x86_64 *x86_64;
	struct pt_iommu_vtdss *vtdss;
	unsigned int features;

	if (!pt)
		return -ENOENT;
	x86_64 = container_of(pt, struct pt_iommu_x86_64, iommu);
	vtdss = container_of(pt, struct pt_iommu_vtdss, iommu);
	/* Every format begins like this */
	BUILD_BUG_ON(offsetof(struct pt_iommu_x86_64, x86_64_pt.common) !=
		     offsetof(struct pt_iommu_vtdss, vtdss_pt.common));
	features = vtdss->vtdss_pt.common.features;

	*root = (struct nprdma_pte_root) {
		.coherent = !(features & BIT(PT_FEAT_DMA_INCOHERENT)),
		.generic = true,
	};
	if (features & BIT(PT_FEAT_DYNAMIC_TOP))
		return -EOPNOTSUPP;
	/* The VT-d driver always sets this for the first stage */
	if (features & BIT(PT_FEAT_SIGN_EXTEND)) {
		pt_iommu_x86_64_hw_info(x86_64, &fs);
		root->format = &nprdma_pte_first_stage;
		root->top = fs.gcr3_pt;
		root->levels = fs.levels;
	} else {
		pt_iommu_vtdss_hw_info(vtdss, &ss);
		root->format = &nprdma_pte_second_stage;
		root->top = ss.ssptptr;
		/* As in the PASID table entry: 1 means 3 levels */
		root->levels = ss.aw + 2;
	}
	return 0;
}

int nprdma_pte_generic_amd(struct iommu_domain *domain,
			   struct nprdma_pte_root *root)
{
	struct pt_iommu *pt = iommupt_from_domain(domain);
	struct pt_iommu_amdv1_hw_info info;
	struct pt_iommu_amdv1 *table;

	if (!pt)
		return -ENOENT;
	table = container_of(pt, struct pt_iommu_amdv1, iommu);
	pt_iommu_amdv1_hw_info(table, &info);
	*root = (struct nprdma_pte_root) {
		.format = &nprdma_pte_amd_v1,
		.top = info.host_pt_root,
		.levels = info.mode,
		.coherent = true,
		.generic = true,
	};
	return 0;
}

#else

int nprdma_pte_generic_amd(struct iommu_domain *domain,
			   struct nprdma_pte_root *root)
{
	return -ENOENT;
}

int nprdma_pte_generic_vtd(struct iommu_domain *domain,
			   struct nprdma_pte_root *root)
{
	return -ENOENT;
}

#endif
