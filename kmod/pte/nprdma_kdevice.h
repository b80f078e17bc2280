/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Which devices can have views, and why others cannot. In doubt a device is
 * refused: a device that accesses a page after the kernel has taken it may
 * overwrite memory of another process.
 */

#ifndef NPRDMA_KDEVICE_H
#define NPRDMA_KDEVICE_H

#include <linux/device.h>
#include <linux/types.h>

#include "nprdma_reason.h"

struct iommu_domain;
struct nprdma_pte_root;

bool nprdma_device_support(struct nprdma_reason *why);
struct device *nprdma_device_find(const char *name);
int nprdma_device_check_rdma(struct device *dev, struct nprdma_reason *why);
int nprdma_device_check(struct device *dev, struct nprdma_ioc_check_device *info,
			struct nprdma_reason *why);
u64 nprdma_device_iova_bytes(struct device *dev);
void nprdma_device_log(struct device *dev, int err,
		       const struct nprdma_reason *why);
void nprdma_device_forget(void);
int nprdma_device_root(struct device *dev, struct iommu_domain **domain,
		       struct nprdma_pte_root *root, struct nprdma_reason *why);

#endif
