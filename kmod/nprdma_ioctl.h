/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_IOCTL_H
#define NPRDMA_IOCTL_H

#include <linux/fs.h>

long nprdma_ioctl(struct file *file, unsigned int cmd, unsigned long argp);

#endif
