/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_REPOINT_H
#define NPRDMA_REPOINT_H

#include <linux/types.h>

struct nprdma_kregion;

void nprdma_kregion_repoint(struct nprdma_kregion *region, u32 bits,
			    unsigned long first, unsigned long n,
			    const unsigned long *pfns);
void nprdma_kregion_flush(struct nprdma_kregion *region, u32 bits,
			  unsigned long first, unsigned long n);

#endif
