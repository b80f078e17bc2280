// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * Writes memory like a device: without the page tables, so the page is not
 * marked dirty. For a test only.
 */

#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/uaccess.h>

/* pwrite() of one 32-bit word, at its address in the caller's memory */
static ssize_t nprdma_poke_write(struct file *file, const char __user *from,
				 size_t size, loff_t *address)
{
	struct page *page;
	void *memory;
	u32 word;

	if (size != sizeof(word) || !IS_ALIGNED(*address, sizeof(word)))
		return -EINVAL;
	if (get_user(word, (const u32 __user *)from))
		return -EFAULT;
	/* Without FOLL_WRITE, which would mark the page dirty */
	if (get_user_pages_fast_only(*address & PAGE_MASK, 1, 0, &page) != 1)
		return -ENOENT;

	memory = kmap_local_page(page);
	WRITE_ONCE(*(u32 *)(memory + offset_in_page(*address)), word);
	kunmap_local(memory);
	put_page(page);
	return size;
}

static const struct file_operations nprdma_poke_fops = {
	.owner	= THIS_MODULE,
	.write	= nprdma_poke_write,
	.llseek	= no_seek_end_llseek,
};

static struct miscdevice nprdma_poke = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "nprdma_poke",
	.fops	= &nprdma_poke_fops,
	.mode	= 0600,
};
module_misc_device(nprdma_poke);

MODULE_DESCRIPTION("Writes memory as a device does, for a test of nprdma");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
