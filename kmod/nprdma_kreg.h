/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_KREG_H
#define NPRDMA_KREG_H

#include <linux/types.h>

struct nprdma_kregion;

int nprdma_kreg_add(struct nprdma_kregion *region, unsigned long first,
		    unsigned long last, bool readmit, u32 *id);
int nprdma_kreg_drop(struct nprdma_kregion *region, u32 id);
void nprdma_kreg_drop_all(struct nprdma_kregion *region);
unsigned long nprdma_kreg_covered(struct nprdma_kregion *region,
				  unsigned long first, unsigned long n);

#endif
