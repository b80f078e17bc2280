/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_IOC_ARG_H
#define NPRDMA_IOC_ARG_H

#include <linux/compiler.h>
#include <linux/types.h>

long nprdma_ioc_arg_in(void *arg, size_t size, u32 flags,
		       const void __user *from);

#endif
