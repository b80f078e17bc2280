// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include <linux/generic_pt/iommu.h>

/* 6.19: functions return the root of an I/O page table, if they are built in */
void nprdma_probe(struct iommu_domain *domain,
		  struct pt_iommu_vtdss_hw_info *ss,
		  struct pt_iommu_x86_64_hw_info *fs);
void nprdma_probe(struct iommu_domain *domain,
		  struct pt_iommu_vtdss_hw_info *ss,
		  struct pt_iommu_x86_64_hw_info *fs)
{
#if !defined(CONFIG_IOMMU_PT_VTDSS) || !defined(CONFIG_IOMMU_PT_X86_64)
#error "not those of VT-d"
#endif
	pt_iommu_vtdss_hw_info(NULL, ss);
	pt_iommu_x86_64_hw_info(NULL, fs);
	iommupt_from_domain(domain);
}
