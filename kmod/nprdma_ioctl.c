// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The calls of nprdma_uapi.h. Arguments are copied and checked here, once, and
 * not again in the functions that are called.
 */

#include "nprdma_ioctl.h"
#include "nprdma_ioc_arg.h"
#include "nprdma_ctx.h"
#include "nprdma_dmabuf.h"
#include "nprdma_kpopulate.h"
#include "nprdma_kreg.h"
#include "nprdma_kregion.h"
#include "nprdma_kregions.h"
#include "nprdma_states_file.h"
#include "pte/nprdma_kdevice.h"

#include <linux/file.h>
#include <linux/nospec.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/uaccess.h>

union nprdma_ioc_arg {
	struct nprdma_ioc_query query;
	struct nprdma_ioc_check_device check_device;
	struct nprdma_ioc_region_create region_create;
	struct nprdma_ioc_region_destroy region_destroy;
	struct nprdma_ioc_export export;
	struct nprdma_ioc_register reg;
	struct nprdma_ioc_unregister unreg;
	struct nprdma_ioc_populate populate;
	struct nprdma_ioc_invalidate invalidate;
	struct nprdma_ioc_stats stats;
};

/*
 * A call in progress. A descriptor is installed only when its number has been
 * copied to the caller.
 */
struct nprdma_call {
	struct nprdma_ctx *ctx;
	union nprdma_ioc_arg arg;
	struct nprdma_kregion *region;	/* a reference, or NULL */
	struct file *file;	/* to be installed at fd */
	int fd;
};

static int nprdma_call_find(struct nprdma_call *call, u32 region)
{
	call->region = nprdma_kregions_find(call->ctx, region);
	return call->region ? 0 : -ENOENT;
}

/*
 * Find a region, and its pages that hold bytes.
 *
 * Returns 0; -ENOENT: no region; -EINVAL: no bytes; -ERANGE: not inside.
 */
static int nprdma_call_find_pages(struct nprdma_call *call, u32 region,
				  u64 address, u64 length,
				  unsigned long *first, unsigned long *n)
{
	u64 size;

	if (nprdma_call_find(call, region))
		return -ENOENT;
	if (!length)
		return -EINVAL;
	size = (u64)call->region->npages << PAGE_SHIFT;
	if (address < call->region->start || length > size ||
	    address - call->region->start > size - length)
		return -ERANGE;

	address -= call->region->start;
	*first = address >> PAGE_SHIFT;
	*n = ((address + length - 1) >> PAGE_SHIFT) - *first + 1;
	return 0;
}

static int nprdma_call_query(struct nprdma_call *call)
{
	struct nprdma_ioc_query *query = &call->arg.query;
	struct nprdma_user *user = call->ctx->user;
	struct nprdma_reason why = { "" };

	if (query->reserved)
		return -EINVAL;

	query->abi = NPRDMA_ABI_VERSION;
	query->features = NPRDMA_IOC_FEATURE_RETIRE;
	if (nprdma_device_support(&why))
		query->features |= NPRDMA_IOC_FEATURE_DEVICES;
	query->signature = call->ctx->signature;
	query->max_region_bytes = READ_ONCE(nprdma_max_region_bytes);
	query->user_bytes = atomic_long_read(&user->bytes);
	query->max_user_bytes = READ_ONCE(nprdma_max_user_bytes);
	query->user_regions = atomic_long_read(&user->regions);
	query->max_user_regions = READ_ONCE(nprdma_max_user_regions);
	strscpy_pad(query->why, why.text, sizeof(query->why));
	return 0;
}

/*
 * One at a time for each user, so that few calls wait for a device, however many
 * processes ask
 */
static int nprdma_check_found(struct nprdma_user *user, struct device *dev,
			      struct nprdma_ioc_check_device *arg,
			      struct nprdma_reason *why)
{
	int ret;

	if (mutex_lock_interruptible(&user->check_lock))
		return nprdma_reason_set(why, -EINTR, "a signal came first");
	ret = nprdma_device_check(dev, arg, why);
	if (!ret || ret == -EOPNOTSUPP)
		nprdma_device_log(dev, ret, why);
	mutex_unlock(&user->check_lock);
	if (arg->device) {
		arg->iova_bytes = nprdma_user_iova(user, dev);
		arg->max_iova_bytes =
			nprdma_max_user_iova(arg->max_iova_bytes);
	}
	return ret;
}

static int nprdma_call_check_device(struct nprdma_call *call)
{
	struct nprdma_ioc_check_device *arg = &call->arg.check_device;
	struct nprdma_reason why = { "" };
	struct device *dev;
	int ret;

	if (!arg->name[0] ||
	    strnlen(arg->name, sizeof(arg->name)) == sizeof(arg->name))
		return -EINVAL;
	if (memchr_inv(arg->reserved, 0, sizeof(arg->reserved)))
		return -EINVAL;

	memset_after(arg, 0, why);
	dev = nprdma_device_find(arg->name);
	if (IS_ERR(dev)) {
		ret = nprdma_reason_set(&why, PTR_ERR(dev), "no device %s",
					arg->name);
	} else {
		ret = nprdma_check_found(call->ctx->user, dev, arg, &why);
		put_device(dev);
	}
	strscpy_pad(arg->why, why.text, sizeof(arg->why));
	return ret;
}

static int nprdma_call_region_create(struct nprdma_call *call)
{
	struct nprdma_ioc_region_create *create = &call->arg.region_create;
	u64 address = create->address, length = create->length;
	int ret;

	if (!length || (address | length) & ~PAGE_MASK ||
	    length > TASK_SIZE || address > TASK_SIZE - length)
		return -EINVAL;
	if (length > READ_ONCE(nprdma_max_region_bytes))
		return -EFBIG;

	call->fd = get_unused_fd_flags(O_CLOEXEC);
	if (call->fd < 0)
		return call->fd;

	ret = nprdma_kregions_create(call->ctx, address, length,
				     create->flags & NPRDMA_IOC_REGION_RETIRE,
				     &call->region);
	if (ret)
		goto err_fd;

	call->file = nprdma_states_file(call->region);
	if (IS_ERR(call->file)) {
		ret = PTR_ERR(call->file);
		call->file = NULL;
		nprdma_kregions_destroy(call->ctx, call->region->id);
		goto err_fd;
	}

	create->region = call->region->id;
	create->states_fd = call->fd;
	create->signature = call->ctx->signature;
	create->states_offset = PAGE_SIZE;
	create->states_size = call->region->states.size;
	return 0;

err_fd:
	put_unused_fd(call->fd);
	return ret;
}

static void nprdma_undo_region_create(struct nprdma_call *call)
{
	nprdma_kregions_destroy(call->ctx, call->arg.region_create.region);
}

static int nprdma_call_region_destroy(struct nprdma_call *call)
{
	if (call->arg.region_destroy.reserved)
		return -EINVAL;
	return nprdma_kregions_destroy(call->ctx,
				       call->arg.region_destroy.region);
}

static int nprdma_call_export(struct nprdma_call *call)
{
	struct dma_buf *dmabuf;
	int ret;

	ret = nprdma_call_find(call, call->arg.export.region);
	if (ret)
		return ret;
	if (!nprdma_device_support(NULL))
		return -EOPNOTSUPP;
	ret = nprdma_ctx_rest_pages(call->ctx);
	if (ret)
		return ret;

	call->fd = get_unused_fd_flags(O_CLOEXEC);
	if (call->fd < 0)
		return call->fd;

	dmabuf = nprdma_dmabuf_create(call->region);
	if (IS_ERR(dmabuf)) {
		put_unused_fd(call->fd);
		return PTR_ERR(dmabuf);
	}
	call->file = dmabuf->file;
	call->arg.export.fd = call->fd;
	return 0;
}

static int nprdma_call_register(struct nprdma_call *call)
{
	struct nprdma_ioc_register *reg = &call->arg.reg;
	unsigned long first, n;
	int ret;

	if (reg->registration)
		return -EINVAL;
	ret = nprdma_call_find_pages(call, reg->region, reg->address,
				     reg->length, &first, &n);
	if (ret)
		return ret;
	return nprdma_kreg_add(call->region, first, first + n - 1,
			       reg->flags & NPRDMA_IOC_REGISTER_READMIT,
			       &reg->registration);
}

static int nprdma_call_unregister(struct nprdma_call *call)
{
	struct nprdma_ioc_unregister *unreg = &call->arg.unreg;
	int ret;

	ret = nprdma_call_find(call, unreg->region);
	if (ret)
		return ret;
	return nprdma_kreg_drop(call->region, unreg->registration);
}

static void nprdma_undo_register(struct nprdma_call *call)
{
	nprdma_kreg_drop(call->region, call->arg.reg.registration);
}

static int nprdma_call_populate(struct nprdma_call *call)
{
	struct nprdma_ioc_populate *arg = &call->arg.populate;
	unsigned long first, n;
	int ret;

	if (arg->revocations &&
	    !(arg->flags & NPRDMA_IOC_POPULATE_UNLESS_REVOKED))
		return -EINVAL;
	ret = nprdma_call_find_pages(call, arg->region, arg->address,
				     arg->length, &first, &n);
	if (ret)
		return ret;
	return nprdma_kpopulate(call->region, first, n, arg);
}

static int nprdma_call_invalidate(struct nprdma_call *call)
{
	struct nprdma_ioc_invalidate *arg = &call->arg.invalidate;
	unsigned long first, n;
	int ret;

	if (!arg->bits || arg->bits & ~NPRDMA_PAGE_BITS)
		return -EINVAL;
	ret = nprdma_call_find_pages(call, arg->region, arg->address,
				     arg->length, &first, &n);
	if (ret)
		return ret;
	arg->invalidated = 0;
	return nprdma_kregion_revoke(call->region, arg->bits, first, n,
				     arg->flags & NPRDMA_IOC_INVALIDATE_TOUCH,
				     &arg->invalidated);
}

static void nprdma_add_all_stats(struct nprdma_ioc_stats *stats,
				 struct nprdma_ctx *ctx)
{
	struct nprdma_kregion *region;
	unsigned long id = 0;

	while ((region = nprdma_kregions_next(ctx, &id)) != NULL) {
		nprdma_kregions_add_stats(region, stats);
		nprdma_kregion_put(region);
	}
	mutex_lock(&ctx->lock);
	if (ctx->signature_page)
		stats->bytes += NPRDMA_CTX_REST_BYTES;
	nprdma_stats_add(stats, &ctx->stats);
	mutex_unlock(&ctx->lock);
}

static int nprdma_call_stats(struct nprdma_call *call)
{
	struct nprdma_ioc_stats *stats = &call->arg.stats;

	if (stats->reserved)
		return -EINVAL;
	if (stats->region && nprdma_call_find(call, stats->region))
		return -ENOENT;

	*stats = (struct nprdma_ioc_stats) {
		.size = stats->size,
		.region = stats->region,
	};
	if (call->region)
		nprdma_kregions_add_stats(call->region, stats);
	else
		nprdma_add_all_stats(stats, call->ctx);
	return 0;
}

/* A structure that grows after a release needs the size of its first version */
static const struct nprdma_call_type {
	int (*call)(struct nprdma_call *call);
	/* If the caller cannot get the result; NULL: nothing to undo */
	void (*undo)(struct nprdma_call *call);
	size_t size;
	u32 flags;
} nprdma_call_types[] = {
#define NPRDMA_CALL(_nr, _name, ...) \
	[_IOC_NR(_nr)] = { \
		.call = nprdma_call_##_name, \
		.size = sizeof(struct nprdma_ioc_##_name), \
		__VA_ARGS__ \
	}
	NPRDMA_CALL(NPRDMA_IOC_QUERY, query),
	NPRDMA_CALL(NPRDMA_IOC_CHECK_DEVICE, check_device),
	NPRDMA_CALL(NPRDMA_IOC_REGION_CREATE, region_create,
		    .undo = nprdma_undo_region_create,
		    .flags = NPRDMA_IOC_REGION_RETIRE),
	NPRDMA_CALL(NPRDMA_IOC_REGION_DESTROY, region_destroy),
	NPRDMA_CALL(NPRDMA_IOC_EXPORT, export),
	NPRDMA_CALL(NPRDMA_IOC_REGISTER, register,
		    .undo = nprdma_undo_register,
		    .flags = NPRDMA_IOC_REGISTER_READMIT),
	NPRDMA_CALL(NPRDMA_IOC_UNREGISTER, unregister),
	NPRDMA_CALL(NPRDMA_IOC_POPULATE, populate,
		    .flags = NPRDMA_IOC_POPULATE_WRITE |
			     NPRDMA_IOC_POPULATE_RESIDENT |
			     NPRDMA_IOC_POPULATE_UNLESS_REVOKED),
	NPRDMA_CALL(NPRDMA_IOC_INVALIDATE, invalidate,
		    .flags = NPRDMA_IOC_INVALIDATE_TOUCH),
	NPRDMA_CALL(NPRDMA_IOC_STATS, stats),
#undef NPRDMA_CALL
};

/* Copy the result of a call to the caller, and install the file */
static int nprdma_call_end(const struct nprdma_call_type *type,
			   struct nprdma_call *call, int ret, void __user *to)
{
	if (!copy_to_user(to, &call->arg, type->size)) {
		if (call->file)
			fd_install(call->fd, call->file);
	} else {
		if (call->file) {
			put_unused_fd(call->fd);
			fput(call->file);
		}
		if (!ret && type->undo)
			type->undo(call);
		ret = ret ? ret : -EFAULT;
	}
	if (call->region)
		nprdma_kregion_put(call->region);
	return ret;
}

long nprdma_ioctl(struct file *file, unsigned int cmd, unsigned long argp)
{
	void __user *user = (void __user *)argp;
	const struct nprdma_call_type *type;
	struct nprdma_call call = {
		.ctx = file->private_data,
	};
	unsigned int nr = _IOC_NR(cmd);
	int ret;

	if (cmd != _IO(NPRDMA_IOC_TYPE, nr) ||
	    nr >= ARRAY_SIZE(nprdma_call_types))
		return -ENOTTY;
	/* A forked child, another program, or a receiver of the descriptor */
	if (call.ctx->mm != current->mm)
		return -EPERM;

	type = &nprdma_call_types[array_index_nospec(nr,
					ARRAY_SIZE(nprdma_call_types))];
	ret = nprdma_ioc_arg_in(&call.arg, type->size, type->flags, user);
	if (ret)
		return ret;
	return nprdma_call_end(type, &call, type->call(&call), user);
}
