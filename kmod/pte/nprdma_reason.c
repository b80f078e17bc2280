// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include "nprdma_reason.h"

#include <linux/kernel.h>

/*
 * Write a reason, one line without a newline, and return @err, so that a check
 * can end with this call. Without @why it is discarded.
 */
int nprdma_reason_set(struct nprdma_reason *why, int err, const char *fmt, ...)
{
	va_list ap;

	if (why) {
		va_start(ap, fmt);
		vscnprintf(why->text, sizeof(why->text), fmt, ap);
		va_end(ap);
	}
	return err;
}
