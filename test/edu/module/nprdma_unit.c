// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/*
 * From now on nprdma.ko sees an IOMMU that the parameters describe: its
 * registers, and the entry of each device, which leads to an I/O page table
 * without entries. Or the kernel answers nprdma.ko as if it walked another I/O
 * page table. For a test only.
 */

#include <linux/dma-mapping.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/iommu.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/string.h>

static u32 set[8];
static unsigned int nset;
module_param_array(set, uint, &nset, 0);
MODULE_PARM_DESC(set, "Registers of 32 bits: offset, value, and so on");

static u64 entry[8];
static unsigned int nentry;
module_param_array(entry, ullong, &nentry, 0);
MODULE_PARM_DESC(entry, "Of devices; if it is not set, the real ones count");

static u64 context[8] = { 0x80000014 };
module_param_array(context, ullong, NULL, 0);
MODULE_PARM_DESC(context, "To which an SMMU's entry leads");

static bool stuck;
module_param(stuck, bool, 0);
MODULE_PARM_DESC(stuck, "The page of an I/O address is the one that it was first");

#ifdef CONFIG_X86
/* AMD's entries */
#define NPRDMA_UNIT_ENTRY	32
#define NPRDMA_UNIT_MAP		"ioremap"
#define nprdma_unit_caller(regs) regs_get_kernel_stack_nth(regs, 0)
#else
#define NPRDMA_UNIT_ENTRY	64
#define NPRDMA_UNIT_MAP		"__ioremap_prot"
#define nprdma_unit_caller(regs) procedure_link_pointer(regs)
#endif

/* Registers that are copied; none has an effect when it is read */
#define NPRDMA_UNIT_BYTES	0x90

/* A page each for the registers, devices, the context and its table */
#define NPRDMA_UNIT_ORDER	2
static void *pages;

static void nprdma_unit_tables(void)
{
	u64 phys = virt_to_phys(pages);
	u64 *registers = pages;
	size_t at;

	for (at = 0; at < PAGE_SIZE; at += NPRDMA_UNIT_ENTRY)
		memcpy(pages + PAGE_SIZE + at, entry, NPRDMA_UNIT_ENTRY);
	memcpy(pages + 2 * PAGE_SIZE, context, sizeof(context));
	if (IS_ENABLED(CONFIG_X86)) {
		registers[0] = phys + PAGE_SIZE;
	} else {
		registers[0x80 / 8] = phys + PAGE_SIZE;
		registers[0x88 / 8] = ilog2(PAGE_SIZE / NPRDMA_UNIT_ENTRY);
	}
}

/* Replaces what maps the registers; freeing other memory has no effect */
static void __iomem *nprdma_unit_map(phys_addr_t phys, size_t size)
{
	void __iomem *from = ioremap(phys, size);
	u32 *registers = pages;
	unsigned int i;

	for (i = 0; from && i < NPRDMA_UNIT_BYTES / 4; i++)
		registers[i] = readl(from + 4 * i);
	iounmap(from);
	if (nentry)
		nprdma_unit_tables();
	for (i = 0; i + 1 < nset; i += 2)
		registers[set[i] / 4] = set[i + 1];
	return (void __iomem *)pages;
}

/* Replaces iommu_iova_to_phys() */
static phys_addr_t nprdma_unit_stuck(struct iommu_domain *domain,
				     dma_addr_t iova)
{
	static dma_addr_t last = DMA_MAPPING_ERROR;
	static phys_addr_t phys;

	if (iova != last)
		phys = domain->ops->iova_to_phys(domain, iova);
	last = iova;
	return phys;
}

static int nprdma_unit_enter(struct kprobe *probe, struct pt_regs *regs)
{
	char caller[KSYM_SYMBOL_LEN];

	sprint_symbol(caller, nprdma_unit_caller(regs));
	if (!strstr(caller, "[nprdma]"))
		return 0;
	instruction_pointer_set(regs, stuck ? (unsigned long)nprdma_unit_stuck :
					      (unsigned long)nprdma_unit_map);
	return 1;
}

NOKPROBE_SYMBOL(nprdma_unit_enter);

static struct kprobe nprdma_unit = {
	.symbol_name = NPRDMA_UNIT_MAP,
	.pre_handler = nprdma_unit_enter,
};

static int __init nprdma_unit_init(void)
{
	int ret;

	pages = (void *)__get_free_pages(GFP_KERNEL | __GFP_ZERO,
					 NPRDMA_UNIT_ORDER);
	if (!pages)
		return -ENOMEM;
	/* They lead on to the next pages */
	entry[0] |= virt_to_phys(pages) +
		    (IS_ENABLED(CONFIG_X86) ? 3 : 2) * PAGE_SIZE;
	context[1] |= virt_to_phys(pages) + 3 * PAGE_SIZE;
	if (stuck)
		nprdma_unit.symbol_name = "iommu_iova_to_phys";
	ret = register_kprobe(&nprdma_unit);
	if (ret)
		free_pages((unsigned long)pages, NPRDMA_UNIT_ORDER);
	return ret;
}

static void __exit nprdma_unit_exit(void)
{
	unregister_kprobe(&nprdma_unit);
	free_pages((unsigned long)pages, NPRDMA_UNIT_ORDER);
}

module_init(nprdma_unit_init);
module_exit(nprdma_unit_exit);

MODULE_DESCRIPTION("Makes up an IOMMU, for a test of nprdma");
MODULE_AUTHOR("The nprdma authors");
MODULE_LICENSE("GPL");
