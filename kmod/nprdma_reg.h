/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_REG_H
#define NPRDMA_REG_H

#include <linux/types.h>

struct nprdma_region;

int nprdma_reg_add(struct nprdma_region *region, unsigned long first,
		   unsigned long last, u32 *id);
int nprdma_reg_drop(struct nprdma_region *region, u32 id, bool revoke,
		    u64 *revoked);
void nprdma_reg_drop_all(struct nprdma_region *region);
unsigned long nprdma_reg_covered(struct nprdma_region *region,
				 unsigned long first, unsigned long n);

#endif
