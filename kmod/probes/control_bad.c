// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include <linux/module.h>

/* No kernel has this function, so this never compiles */
int nprdma_probe(void);
int nprdma_probe(void)
{
	return nprdma_no_such_function();
}
