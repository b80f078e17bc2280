// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include <linux/module.h>

/* This compiles with all kernel headers that can be used */
int nprdma_probe(void);
int nprdma_probe(void)
{
	return !THIS_MODULE;
}
