/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The reason for which a device is refused, in words. An errno says only that
 * the device cannot be used. What to change on the machine takes a sentence.
 */

#ifndef NPRDMA_REASON_H
#define NPRDMA_REASON_H

#include <linux/compiler.h>

#include "nprdma_uapi.h"

/* One line of text about a device; empty if there is no reason */
struct nprdma_reason {
	char	text[NPRDMA_WHY_SIZE];
};

__printf(3, 4)
int nprdma_reason_set(struct nprdma_reason *why, int err, const char *fmt, ...);

#endif
