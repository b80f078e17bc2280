/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_KPOPULATE_H
#define NPRDMA_KPOPULATE_H

struct nprdma_kregion;
struct nprdma_ioc_populate;

int nprdma_kpopulate(struct nprdma_kregion *region, unsigned long page,
		     unsigned long n, struct nprdma_ioc_populate *arg);

#endif
