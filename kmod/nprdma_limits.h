/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_LIMITS_H
#define NPRDMA_LIMITS_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include <linux/uidgid.h>

struct device;
struct seq_file;

/*
 * Kernel memory and regions of all contexts of one user. Cgroups limit memory as
 * far as it can be charged to them. I/O page tables cannot: the DMA API allocates
 * them. I/O addresses and regions are not memory. So the module has limits of
 * its own, for each user and in total.
 */
struct nprdma_user {
	struct list_head list;
	kuid_t uid;
	unsigned int contexts;	/* under the lock of the list */
	atomic_long_t bytes;
	atomic_long_t regions;
	struct list_head iovas;	/* under the same lock */
	struct mutex check_lock;	/* held while a device is checked */
};

/* Parameters of the module, which may change at any time */
extern unsigned long nprdma_max_region_bytes;
extern unsigned long nprdma_max_user_bytes;
extern unsigned long nprdma_max_user_regions;

void nprdma_limits_init(void);

struct nprdma_user *nprdma_user_get(void);
void nprdma_user_put(struct nprdma_user *user);

int nprdma_charge(struct nprdma_user *user, long bytes);
void nprdma_uncharge(struct nprdma_user *user, long bytes);
int nprdma_charge_region(struct nprdma_user *user);
void nprdma_uncharge_region(struct nprdma_user *user);

int nprdma_charge_iova(struct nprdma_user *user, struct device *dev, u64 bytes);
void nprdma_uncharge_iova(struct nprdma_user *user, struct device *dev,
			  u64 bytes);
u64 nprdma_user_iova(struct nprdma_user *user, struct device *dev);

u64 nprdma_max_user_iova(u64 iova_bytes);

int nprdma_limits_show(struct seq_file *seq, void *unused);

#endif
