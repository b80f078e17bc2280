// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * From now on nprdma.ko sees an SMMU, stream and context with the values that
 * the parameters have, and an I/O page table without entries. For a test only.
 */

#include <linux/gfp.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/string.h>

/* BBML 2, translates; stage 1, with the first context if there are several */
static u32 idr3 = 0x1000, cr0 = 1;
static u64 stream[4] = { 0xb, 2 };
static u64 context[2] = { 0x80000014 };
module_param(idr3, uint, 0);
module_param(cr0, uint, 0);
module_param_array(stream, ullong, NULL, 0);
module_param_array(context, ullong, NULL, 0);

/* A linear table of 64 streams fills a page */
#define NPRDMA_SMMU_STREAMS	6
#define NPRDMA_SMMU_ORDER	2

static u64 *registers;

static noinline notrace void nprdma_smmu_return(void)
{
	barrier();
}

NOKPROBE_SYMBOL(nprdma_smmu_return);

/* What nprdma.ko maps is not the registers */
static int nprdma_smmu_enter(struct kprobe *probe, struct pt_regs *regs)
{
	char caller[KSYM_SYMBOL_LEN];

	sprint_symbol(caller, procedure_link_pointer(regs));
	if (!strstr(caller, "[nprdma]"))
		return 0;
	regs_set_return_value(regs, (unsigned long)registers);
	instruction_pointer_set(regs, (unsigned long)nprdma_smmu_return);
	return 1;
}

NOKPROBE_SYMBOL(nprdma_smmu_enter);

static struct kprobe nprdma_smmu = {
	.symbol_name = "__ioremap_prot",
	.pre_handler = nprdma_smmu_enter,
};

/* A page each for the registers, streams, the context and its table */
static int __init nprdma_smmu_init(void)
{
	u64 *streams, *contexts;
	size_t i;
	int ret;

	registers = (void *)__get_free_pages(GFP_KERNEL | __GFP_ZERO,
					     NPRDMA_SMMU_ORDER);
	if (!registers)
		return -ENOMEM;
	streams = registers + PAGE_SIZE / sizeof(u64);
	contexts = streams + PAGE_SIZE / sizeof(u64);
	*((u32 *)registers + 0x0c / 4) = idr3;
	*((u32 *)registers + 0x20 / 4) = cr0;
	registers[0x80 / 8] = virt_to_phys(streams);
	registers[0x88 / 8] = NPRDMA_SMMU_STREAMS;
	stream[0] |= virt_to_phys(contexts);
	context[1] |= virt_to_phys(contexts) + PAGE_SIZE;
	for (i = 0; i < PAGE_SIZE / 64; i++)
		memcpy(streams + 8 * i, stream, sizeof(stream));
	memcpy(contexts, context, sizeof(context));
	ret = register_kprobe(&nprdma_smmu);
	if (ret)
		free_pages((unsigned long)registers, NPRDMA_SMMU_ORDER);
	return ret;
}

static void __exit nprdma_smmu_exit(void)
{
	unregister_kprobe(&nprdma_smmu);
	free_pages((unsigned long)registers, NPRDMA_SMMU_ORDER);
}

module_init(nprdma_smmu_init);
module_exit(nprdma_smmu_exit);

MODULE_DESCRIPTION("Makes up an SMMU, for a test of nprdma");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
