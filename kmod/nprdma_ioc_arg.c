// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Arguments of ioctls, which may be of a newer version than this module. None is
 * older: no structure has grown since a release. nprdma_uapi.h has the rules.
 */

#include "nprdma_ioc_arg.h"

#include <linux/mm.h>
#include <linux/uaccess.h>

/* All arguments begin like this */
struct nprdma_ioc_head {
	u32 size;
	u32 flags;
};

/*
 * Copy an argument that may be of a newer version, of at least @size bytes, with
 * no other flags than @flags. Returns 0, -EFAULT, -EINVAL or -E2BIG as
 * nprdma_uapi.h says.
 */
long nprdma_ioc_arg_in(void *arg, size_t size, u32 flags,
		       const void __user *from)
{
	struct nprdma_ioc_head *head = arg;
	u32 user_size;
	int ret;

	if (get_user(user_size, (const u32 __user *)from))
		return -EFAULT;
	if (user_size < size)
		return -EINVAL;
	if (user_size > PAGE_SIZE)
		return -E2BIG;
	ret = copy_struct_from_user(arg, size, from, user_size);
	if (ret)
		return ret;
	return (head->flags & ~flags) ? -EINVAL : 0;
}
