// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Arguments of ioctls, which may be of an older or a newer version than this
 * module: nprdma_uapi.h has the rules.
 */

#include "nprdma_ioc_arg.h"

#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/uaccess.h>

/* All arguments begin like this */
struct nprdma_ioc_head {
	u32 size;
	u32 flags;
};

/*
 * Copy an argument that may be of another version: of at least @min_size bytes,
 * with no other flags than @flags. Returns 0, -EFAULT, -EINVAL or -E2BIG as
 * nprdma_uapi.h says.
 */
long nprdma_ioc_arg_in(void *arg, size_t size, size_t min_size, u32 flags,
		       const void __user *from)
{
	struct nprdma_ioc_head *head = arg;
	u32 user_size;
	int ret;

	if (get_user(user_size, (const u32 __user *)from))
		return -EFAULT;
	if (user_size < min_size)
		return -EINVAL;
	if (user_size > PAGE_SIZE)
		return -E2BIG;
	ret = copy_struct_from_user(arg, size, from, user_size);
	if (ret)
		return ret;
	/* User space may have changed it between the two reads */
	head->size = user_size;
	return (head->flags & ~flags) ? -EINVAL : 0;
}

/* Return an argument that was copied in. Returns 0 or -EFAULT. */
long nprdma_ioc_arg_out(void __user *to, const void *arg, size_t size)
{
	const struct nprdma_ioc_head *head = arg;

	return copy_to_user(to, arg, min_t(size_t, size, head->size)) ?
	       -EFAULT : 0;
}
