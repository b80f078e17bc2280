/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * A refusal that the user can read. An errno says that a device cannot be used;
 * what to change on the machine takes a sentence.
 */

#ifndef NPRDMA_WHY_H
#define NPRDMA_WHY_H

#include <linux/compiler.h>

#include "nprdma_uapi.h"

#define NPRDMA_WHY_MAX	NPRDMA_WHY_SIZE

/**
 * struct nprdma_why - one line of text about a device
 * @text: always NUL-terminated, empty if there is nothing to say
 */
struct nprdma_why {
	char	text[NPRDMA_WHY_MAX];
};

/**
 * nprdma_why_set - give the reason
 * @why: where to; NULL if nobody asks
 * @err: what to return, a negative errno or 0
 * @fmt: the reason, one line without a newline
 *
 * Return: @err, so that a check can end with it.
 */
__printf(3, 4)
int nprdma_why_set(struct nprdma_why *why, int err, const char *fmt, ...);

#endif
