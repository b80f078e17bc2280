/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_EDU_TARGET_H
#define NPRDMA_EDU_TARGET_H

#include <linux/dma-buf.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>

#include "nprdma_edu.h"

struct nprdma_window;

/**
 * struct nprdma_edu - the device
 * @lock: protects all of it, and all targets; held during DMA
 * @pdev: the function, NULL while there is none
 * @regs: its registers
 * @bounce: a page that DMA of the engine reads and writes
 * @bounce_dma: its address for the device
 * @files: open files
 * @pages: pages that windows can be pointed at; user space maps them
 */
struct nprdma_edu {
	struct mutex		lock; /* of all of it */
	struct pci_dev		*pdev;
	void __iomem		*regs;
	void			*bounce;
	dma_addr_t		bounce_dma;
	struct list_head	files;
	void			*pages;
};

/**
 * struct nprdma_edu_file - an open file, and its target
 * @link: in the device's list
 * @edu: the device
 * @attach: imported dma-buf, or NULL
 * @sgt: its addresses
 * @window: window, if that is the target, or NULL
 * @rest: pages that its absent entries point at
 */
struct nprdma_edu_file {
	struct list_head		link;
	struct nprdma_edu		*edu;
	struct dma_buf_attachment	*attach;
	struct sg_table			*sgt;
	struct nprdma_window		*window;
	struct page			*rest;
};

/* With the device's lock held, and while there is a device */
int nprdma_edu_import(struct nprdma_edu_file *file,
		      struct nprdma_edu_import *arg);
int nprdma_edu_make_window(struct nprdma_edu_file *file,
			   struct nprdma_edu_window *arg);
int nprdma_edu_point(struct nprdma_edu_file *file,
		     const struct nprdma_edu_point *arg);
int nprdma_edu_flip(struct nprdma_edu_file *file, struct nprdma_edu_flip *arg);
int nprdma_edu_address(struct nprdma_edu_file *file, u64 offset,
		       dma_addr_t *addr);

/* Without a target, does nothing */
void nprdma_edu_release(struct nprdma_edu_file *file);

#endif
