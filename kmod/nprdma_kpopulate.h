/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_KPOPULATE_H
#define NPRDMA_KPOPULATE_H

#include <linux/types.h>

struct nprdma_kregion;

struct nprdma_kpopulate {
	unsigned long first;	/* in: pages */
	unsigned long n;
	bool write;
	bool resident;
	bool unless_revoked;	/* only pages not revoked since this number */
	u32 revocations;
	unsigned long done;	/* out: pages dealt with, from the first one */
	u64 populated;		/* out: pages that got a bit */
	u64 retries;		/* out: batches done again */
};

int nprdma_kpopulate(struct nprdma_kregion *region,
		     struct nprdma_kpopulate *populate);

#endif
