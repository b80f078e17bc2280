// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The states descriptor of a region: the file by which processes map its page
 * states, read-only.
 */

#include "nprdma_states_file.h"
#include "nprdma_ioc_arg.h"
#include "nprdma_kregion.h"

#include <linux/anon_inodes.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/uaccess.h>

/*
 * As remap_vmalloc_range(), which refuses memory of __vmalloc(), the only
 * function of its kind that accounts
 */
static int nprdma_states_insert(const struct nprdma_states *states,
				struct vm_area_struct *vma)
{
	unsigned long npages = states->size >> PAGE_SHIFT;
	unsigned long first = vma->vm_pgoff;
	unsigned long i;
	int ret = 0;

	if (first > npages || vma_pages(vma) > npages - first)
		return -EINVAL;
	for (i = 0; !ret && i < vma_pages(vma); i++)
		ret = vm_insert_page(vma, vma->vm_start + (i << PAGE_SHIFT),
				     vmalloc_to_page((void *)states->header +
						     ((first + i) << PAGE_SHIFT)));
	return ret;
}

/*
 * Read-only is enforced three times: the file is not open for writing, a
 * writable mapping is refused, and mprotect() cannot make a mapping writable
 * later.
 */
static int nprdma_states_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct nprdma_kregion *region = file->private_data;

	if (vma->vm_flags & (VM_WRITE | VM_EXEC))
		return -EPERM;
	/* Not VM_SHARED, which is off as the file is open for reading only */
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;

#ifdef HAVE_VM_FLAGS_MOD
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
		     VM_MAYWRITE | VM_MAYEXEC);
#else
	vma->vm_flags |= VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP;
	vma->vm_flags &= ~(VM_MAYWRITE | VM_MAYEXEC);
#endif
	return nprdma_states_insert(&region->states, vma);
}

static int nprdma_states_release(struct inode *inode, struct file *file)
{
	nprdma_kregion_put(file->private_data);
	return 0;
}

static long nprdma_states_ioctl(struct file *file, unsigned int cmd,
				unsigned long argp)
{
	struct nprdma_kregion *region = file->private_data;
	struct nprdma_ioc_states_info info;
	long ret;

	if (cmd != NPRDMA_IOC_STATES_INFO)
		return -ENOTTY;

	ret = nprdma_ioc_arg_in(&info, sizeof(info), 0, (void __user *)argp);
	if (ret)
		return ret;
	info.abi = NPRDMA_ABI_VERSION;
	info.owner = current->mm == region->mm;
	info.address = region->start;
	info.length = (u64)region->npages << PAGE_SHIFT;
	info.signature = region->ctx->signature;
	info.states_offset = PAGE_SIZE;
	info.states_size = region->states.size;
	info.id = region->serial;
	return copy_to_user((void __user *)argp, &info, sizeof(info)) ?
	       -EFAULT : 0;
}

static const struct file_operations nprdma_states_fops = {
	.owner		= THIS_MODULE,
	.mmap		= nprdma_states_mmap,
	.release	= nprdma_states_release,
	.unlocked_ioctl	= nprdma_states_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
	.llseek		= noop_llseek,
};

/*
 * Make the file by which the states of a region are mapped. It holds a
 * reference of the region.
 */
struct file *nprdma_states_file(struct nprdma_kregion *region)
{
	struct file *file;

	nprdma_kregion_get(region);
	file = anon_inode_getfile("[nprdma-states]", &nprdma_states_fops,
				  region, O_RDONLY);
	if (IS_ERR(file))
		nprdma_kregion_put(region);
	return file;
}
