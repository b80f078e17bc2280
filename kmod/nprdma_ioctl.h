/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_IOCTL_H
#define NPRDMA_IOCTL_H

#include <linux/fs.h>
#include <linux/types.h>

long nprdma_ioctl(struct file *file, unsigned int cmd, unsigned long argp);

long nprdma_ioctl_copy_in(void *arg, size_t size, size_t min_size, u32 flags,
			  const void __user *from);
long nprdma_ioctl_copy_out(void __user *to, const void *arg, size_t size);

#endif
