// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include "nprdma_limits.h"
#include "pte/nprdma_kdevice.h"

#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/device.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

unsigned long nprdma_max_region_bytes = 1UL << 40;
module_param_named(max_region_bytes, nprdma_max_region_bytes, ulong, 0644);
MODULE_PARM_DESC(max_region_bytes, "Longest region, in bytes (default 1 TiB)");

unsigned long nprdma_max_user_regions = 32768;
module_param_named(max_user_regions, nprdma_max_user_regions, ulong, 0644);
MODULE_PARM_DESC(max_user_regions, "Regions that one user may have");

unsigned long nprdma_max_user_bytes;
module_param_named(max_user_bytes, nprdma_max_user_bytes, ulong, 0644);
MODULE_PARM_DESC(max_user_bytes,
		 "Kernel memory that regions of one user may take, in bytes (default 1/32 of the memory)");

static unsigned long max_total_bytes;
module_param(max_total_bytes, ulong, 0644);
MODULE_PARM_DESC(max_total_bytes,
		 "Kernel memory that all regions may take, in bytes (default 1/16 of the memory)");

static unsigned long max_user_iova_bytes;
module_param(max_user_iova_bytes, ulong, 0644);
MODULE_PARM_DESC(max_user_iova_bytes,
		 "I/O addresses that regions of one user may have on a device, in bytes (default 0: a quarter of the device's)");

static unsigned long max_total_iova_bytes;
module_param(max_total_iova_bytes, ulong, 0644);
MODULE_PARM_DESC(max_total_iova_bytes,
		 "I/O addresses that all regions may have on a device, in bytes (default 0: half of the device's)");

/*
 * I/O addresses of a user's regions on one device; exists while there are some.
 * The imports that have them keep the device.
 */
struct nprdma_iova {
	struct list_head list;
	struct device *dev;
	u64 bytes;
};

static DEFINE_MUTEX(nprdma_users_lock);
static LIST_HEAD(nprdma_users);
static atomic_long_t nprdma_total_bytes;

/* Defaults that depend on the memory. A 0 that is set later allows nothing. */
void nprdma_limits_init(void)
{
	unsigned long memory = totalram_pages() << PAGE_SHIFT;

	if (!nprdma_max_user_bytes)
		nprdma_max_user_bytes = memory / 32;
	if (!max_total_bytes)
		max_total_bytes = memory / 16;
}

/*
 * The user for which the current process counts. A user may have many others in
 * a user namespace of its own. They count as their owner.
 */
static kuid_t nprdma_current_user(void)
{
	const struct user_namespace *ns = current_user_ns();
	kuid_t uid = current_uid();

	for (; ns != &init_user_ns; ns = ns->parent)
		uid = ns->owner;
	return uid;
}

/*
 * Get the account of the current user, or make it. Returns NULL if there is no
 * memory.
 */
struct nprdma_user *nprdma_user_get(void)
{
	kuid_t uid = nprdma_current_user();
	struct nprdma_user *user;

	mutex_lock(&nprdma_users_lock);
	list_for_each_entry(user, &nprdma_users, list) {
		if (uid_eq(user->uid, uid))
			goto found;
	}
	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (!user)
		goto out;
	user->uid = uid;
	INIT_LIST_HEAD(&user->iovas);
	mutex_init(&user->check_lock);
	list_add(&user->list, &nprdma_users);
found:
	user->contexts++;
out:
	mutex_unlock(&nprdma_users_lock);
	return user;
}

void nprdma_user_put(struct nprdma_user *user)
{
	mutex_lock(&nprdma_users_lock);
	if (!--user->contexts) {
		WARN_ON(atomic_long_read(&user->bytes) ||
			atomic_long_read(&user->regions) ||
			!list_empty(&user->iovas));
		list_del(&user->list);
		mutex_destroy(&user->check_lock);
		kfree(user);
	}
	mutex_unlock(&nprdma_users_lock);
}

/*
 * Add to a sum unless it exceeds the limit. Of two concurrent calls that do not
 * both fit, both may fail, but not both succeed.
 */
static bool nprdma_add_limited(atomic_long_t *sum, long value,
			       unsigned long limit)
{
	unsigned long result = atomic_long_add_return(value, sum);

	if (result <= limit)
		return true;
	atomic_long_sub(value, sum);
	return false;
}

/* The same for the limit of a user, which CAP_SYS_RESOURCE may exceed */
static bool nprdma_add_user(atomic_long_t *sum, long value,
			    unsigned long limit)
{
	return nprdma_add_limited(sum, value, limit) ||
	       (capable(CAP_SYS_RESOURCE) &&
		nprdma_add_limited(sum, value, LONG_MAX));
}

/*
 * Account for kernel memory before it is allocated. Returns 0; -EDQUOT: over
 * the limit of the user; -ENOSPC: over that of all.
 */
int nprdma_charge(struct nprdma_user *user, long bytes)
{
	if (!nprdma_add_user(&user->bytes, bytes,
			     READ_ONCE(nprdma_max_user_bytes)))
		return -EDQUOT;

	if (!nprdma_add_limited(&nprdma_total_bytes, bytes,
				READ_ONCE(max_total_bytes))) {
		atomic_long_sub(bytes, &user->bytes);
		return -ENOSPC;
	}
	return 0;
}

void nprdma_uncharge(struct nprdma_user *user, long bytes)
{
	atomic_long_sub(bytes, &nprdma_total_bytes);
	atomic_long_sub(bytes, &user->bytes);
}

/* I/O addresses that regions of one user may have, of those of a device */
u64 nprdma_max_user_iova(u64 iova_bytes)
{
	u64 limit = READ_ONCE(max_user_iova_bytes);

	return limit ? limit : iova_bytes / 4;
}

static struct nprdma_iova *nprdma_iova_find(struct nprdma_user *user,
					    struct device *dev)
{
	struct nprdma_iova *iova;

	lockdep_assert_held(&nprdma_users_lock);
	list_for_each_entry(iova, &user->iovas, list) {
		if (iova->dev == dev)
			return iova;
	}
	return NULL;
}

static u64 nprdma_iova_bytes(struct nprdma_user *user, struct device *dev)
{
	struct nprdma_iova *iova = nprdma_iova_find(user, dev);

	return iova ? iova->bytes : 0;
}

static u64 nprdma_iova_total(struct device *dev)
{
	struct nprdma_user *user;
	u64 bytes = 0;

	lockdep_assert_held(&nprdma_users_lock);
	list_for_each_entry(user, &nprdma_users, list)
		bytes += nprdma_iova_bytes(user, dev);
	return bytes;
}

static bool nprdma_fits(u64 used, u64 bytes, u64 limit)
{
	return bytes <= limit && used <= limit - bytes;
}

/* The drivers of the device need addresses, too */
static u64 nprdma_max_total_iova(struct device *dev)
{
	u64 limit = READ_ONCE(max_total_iova_bytes);

	return limit ? limit : nprdma_device_iova_bytes(dev) / 2;
}

/*
 * Account for I/O addresses before they are allocated. CAP_SYS_RESOURCE may
 * exceed the limit of the user. Returns 0; -EDQUOT: over the limit of the user
 * on this device; -ENOSPC: over that of all; -ENOMEM.
 */
int nprdma_charge_iova(struct nprdma_user *user, struct device *dev, u64 bytes)
{
	struct nprdma_iova *iova, *fresh;
	int ret = 0;

	fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);
	if (!fresh)
		return -ENOMEM;
	mutex_lock(&nprdma_users_lock);
	if (!nprdma_fits(nprdma_iova_bytes(user, dev), bytes,
			 nprdma_max_user_iova(nprdma_device_iova_bytes(dev))) &&
	    !capable(CAP_SYS_RESOURCE))
		ret = -EDQUOT;
	else if (!nprdma_fits(nprdma_iova_total(dev), bytes,
			      nprdma_max_total_iova(dev)))
		ret = -ENOSPC;
	if (ret)
		goto unlock;
	iova = nprdma_iova_find(user, dev);
	if (!iova) {
		iova = fresh;
		fresh = NULL;
		iova->dev = dev;
		list_add(&iova->list, &user->iovas);
	}
	iova->bytes += bytes;
unlock:
	mutex_unlock(&nprdma_users_lock);
	kfree(fresh);
	return ret;
}

void nprdma_uncharge_iova(struct nprdma_user *user, struct device *dev,
			  u64 bytes)
{
	struct nprdma_iova *iova;

	mutex_lock(&nprdma_users_lock);
	iova = nprdma_iova_find(user, dev);
	if (!WARN_ON(!iova || iova->bytes < bytes)) {
		iova->bytes -= bytes;
		if (!iova->bytes) {
			list_del(&iova->list);
			kfree(iova);
		}
	}
	mutex_unlock(&nprdma_users_lock);
}

/* I/O addresses that regions of a user have on a device now */
u64 nprdma_user_iova(struct nprdma_user *user, struct device *dev)
{
	u64 bytes;

	mutex_lock(&nprdma_users_lock);
	bytes = nprdma_iova_bytes(user, dev);
	mutex_unlock(&nprdma_users_lock);
	return bytes;
}

int nprdma_charge_region(struct nprdma_user *user)
{
	return nprdma_add_user(&user->regions, 1,
			       READ_ONCE(nprdma_max_user_regions)) ? 0 : -EDQUOT;
}

void nprdma_uncharge_region(struct nprdma_user *user)
{
	atomic_long_dec(&user->regions);
}

/* Memory and regions of users, and their limits, for debugfs */
int nprdma_limits_show(struct seq_file *seq, void *unused)
{
	struct nprdma_iova *iova;
	struct nprdma_user *user;

	seq_printf(seq, "total bytes %ld of %lu\n",
		   atomic_long_read(&nprdma_total_bytes),
		   READ_ONCE(max_total_bytes));
	mutex_lock(&nprdma_users_lock);
	list_for_each_entry(user, &nprdma_users, list) {
		seq_printf(seq,
			   "user %u contexts %u regions %ld of %lu bytes %ld of %lu\n",
			   from_kuid_munged(seq_user_ns(seq), user->uid),
			   user->contexts, atomic_long_read(&user->regions),
			   READ_ONCE(nprdma_max_user_regions),
			   atomic_long_read(&user->bytes),
			   READ_ONCE(nprdma_max_user_bytes));
		list_for_each_entry(iova, &user->iovas, list)
			seq_printf(seq, "  device %s iova %llu of %llu\n",
				   dev_name(iova->dev), iova->bytes,
				   nprdma_max_user_iova(nprdma_device_iova_bytes(iova->dev)));
	}
	mutex_unlock(&nprdma_users_lock);
	return 0;
}
