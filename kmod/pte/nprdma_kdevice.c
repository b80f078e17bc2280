// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include <linux/acpi.h>
#include <linux/cc_platform.h>
#include <linux/iommu.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/xarray.h>

#include "nprdma_kdevice.h"
#include "nprdma_pte.h"
#include "nprdma_view.h"

/* Of the trial view: more than a leaf table, no multiple of NPRDMA_REST_PAGES */
#define TRIAL_PAGES	1027

/*
 * Each of these is refused, because a page may go to its next owner too early
 * or the kernel's other users suffer. Tests allow them on purpose.
 */
static bool allow_caching_mode;
module_param(allow_caching_mode, bool, 0444);
MODULE_PARM_DESC(allow_caching_mode,
		 "For tests: allow VT-d units in caching mode, as hypervisors have");

static bool allow_ats;
module_param(allow_ats, bool, 0444);
MODULE_PARM_DESC(allow_ats, "For tests: allow devices that cache translations");

static bool allow_amd;
module_param(allow_amd, bool, 0444);
MODULE_PARM_DESC(allow_amd,
		 "Allow AMD IOMMUs, which no test on hardware has covered");

static bool allow_any_device;
module_param(allow_any_device, bool, 0444);
MODULE_PARM_DESC(allow_any_device,
		 "For tests: allow devices that are no RDMA devices");

/* Devices whose description is in the log, and whether they passed */
#define PASSED	xa_mk_value(1)
#define REFUSED	xa_mk_value(2)
static DEFINE_XARRAY(logged);

static unsigned long log_id(struct pci_dev *pdev)
{
	return ((unsigned long)pci_domain_nr(pdev->bus) << 16) |
	       pci_dev_id(pdev);
}

static bool has_acpi_table(const char *signature)
{
	struct acpi_table_header *table;

	if (acpi_disabled ||
	    ACPI_FAILURE(acpi_get_table((char *)signature, 0, &table)))
		return false;
	acpi_put_table(table);
	return true;
}

/* Whether this machine can re-point views at all. May sleep. */
bool nprdma_device_support(struct nprdma_reason *why)
{
	int err = 0;

	if (!IS_ENABLED(CONFIG_X86) && !IS_ENABLED(CONFIG_ARM64))
		err = nprdma_reason_set(why, -EOPNOTSUPP,
					"only the IOMMUs of x86 and arm64 are supported");
	else if (has_acpi_table(ACPI_SIG_IVRS) && !allow_amd)
		err = nprdma_reason_set(why, -EOPNOTSUPP,
					"AMD IOMMUs are experimental: no test on hardware has shown that none writes to a page after its flush (module parameter allow_amd=1)");
	else if (IS_ENABLED(CONFIG_X86) && !has_acpi_table(ACPI_SIG_DMAR) &&
		 !has_acpi_table(ACPI_SIG_IVRS))
		err = nprdma_reason_set(why, -EOPNOTSUPP,
					"the machine has no IOMMU, or its firmware disabled it (no ACPI table DMAR or IVRS)");
	else if (cc_platform_has(CC_ATTR_MEM_ENCRYPT))
		err = nprdma_reason_set(why, -EOPNOTSUPP,
					"memory encryption is not supported (AMD's SME: kernel parameter mem_encrypt=off)");
	return !err;
}

/*
 * Whether this child of a PCI function is the RDMA device @name, or any if that
 * is NULL. The RDMA device of a subfunction is a child of an auxiliary device.
 * Its DMA has the address of the PCI function, so it uses the same domain.
 */
static int is_rdma_device(struct device *dev, void *name)
{
	if (dev->class && !strcmp(dev->class->name, "infiniband"))
		return !name || !strcmp(dev_name(dev), name);
	if (dev->bus && !strcmp(dev->bus->name, "auxiliary"))
		return device_for_each_child(dev, name, is_rdma_device);
	return 0;
}

/*
 * Look up a device, by a PCI address or the name of an RDMA device. That is
 * looked for among the children of PCI functions, and among those of their
 * subfunctions, so that this module does not need ib_core. May sleep. Returns
 * the PCI function with a reference, or ERR_PTR(-ENODEV).
 */
struct device *nprdma_device_find(const char *name)
{
	struct pci_dev *pdev = NULL;
	struct device *dev;

	dev = bus_find_device_by_name(&pci_bus_type, NULL, name);
	if (dev)
		return dev;
	for_each_pci_dev(pdev)
		if (device_for_each_child(&pdev->dev, (void *)name,
					  is_rdma_device))
			return &pdev->dev;
	return ERR_PTR(-ENODEV);
}

/* The IOMMU may translate requests of an alias as those of another function */
static int check_aliases(struct pci_dev *pdev, struct nprdma_reason *why)
{
	struct pci_bus *bus;

	if (pci_domain_nr(pdev->bus) > U16_MAX)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "devices behind Intel VMD are not supported");
	/* Allocated with the first alias */
	if (pdev->dma_alias_mask)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device also uses the PCI address of another function for DMA");
	for (bus = pdev->bus; !pci_is_root_bus(bus); bus = bus->parent) {
		/* Buses of virtual functions have no bridge */
		if (!bus->self)
			continue;
		if (!pci_is_pcie(bus->self) ||
		    pci_pcie_type(bus->self) == PCI_EXP_TYPE_PCI_BRIDGE ||
		    pci_pcie_type(bus->self) == PCI_EXP_TYPE_PCIE_BRIDGE ||
		    (bus->self->dev_flags & PCI_DEV_FLAG_PCIE_BRIDGE_ALIAS))
			return nprdma_reason_set(why, -EOPNOTSUPP,
						 "the device is behind a conventional PCI bridge, %s, that hides its address",
						 pci_name(bus->self));
	}
	return 0;
}

static int check_domain(struct device *dev, struct iommu_domain *domain,
			struct nprdma_reason *why)
{
	const struct nprdma_pte_unit_ops *unit = nprdma_pte_unit(dev);

	if (!domain || !unit)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "no IOMMU that is supported translates for the device (kernel parameter intel_iommu=on, and no amd_iommu=off; on Arm only SMMUv3)");
	if (domain->type == IOMMU_DOMAIN_IDENTITY)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the IOMMU passes the device's DMA through (%s)",
					 unit->identity_remedy);
	if (!iommu_is_dma_domain(domain))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's IOMMU domain is not the kernel's, but for example VFIO's");
	if (to_pci_dev(dev)->untrusted)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device is on an external port, so that its DMA may be bounced");
	return 0;
}

static bool uses_ats(struct pci_dev *pdev)
{
#ifdef CONFIG_PCI_ATS
	return pdev->ats_enabled;
#else
	return false;
#endif
}

/*
 * Caches of translations that a flush may not reach in time. A hypervisor that
 * shadows a table handles a changed entry by removing the old translation and
 * then adding the new one, so the device faults in between.
 */
static int check_caches(struct pci_dev *pdev,
			const struct nprdma_pte_root *root,
			struct nprdma_reason *why)
{
	if ((root->flags & NPRDMA_DEVICE_CACHING_MODE) && !allow_caching_mode)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's %s unit is in caching mode: a hypervisor shadows its tables, and the device would fault while a page is re-pointed",
					 root->unit->name);
	if (uses_ats(pdev) && !allow_ats)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device caches translations itself (ATS), which has not been tested (kernel parameter pci=noats)");
	return 0;
}

/*
 * Check that a device is for RDMA. Other devices are left alone: the lock of one
 * may be held for long, and its IOMMU is not the user's business. May sleep.
 * Returns 0; -ENODEV if it is not a PCI function, or has no driver; -EOPNOTSUPP.
 */
int nprdma_device_check_rdma(struct device *dev, struct nprdma_reason *why)
{
	if (!dev_is_pci(dev))
		return nprdma_reason_set(why, -ENODEV, "not a PCI device");
	if (!READ_ONCE(dev->driver))
		return nprdma_reason_set(why, -ENODEV,
					 "no driver is bound to the device");
	if (!allow_any_device &&
	    !device_for_each_child(dev, NULL, is_rdma_device))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "no RDMA device belongs to the PCI function");
	return 0;
}

/*
 * Check a device, and find its I/O page table and the IOMMU domain of its DMA
 * addresses, which stays the same while a driver is bound. May sleep. Returns
 * 0; -ENODEV if it is not a PCI function, or has no driver; -EOPNOTSUPP;
 * -ENOMEM.
 */
int nprdma_device_root(struct device *dev, struct iommu_domain **domain,
		       struct nprdma_pte_root *root, struct nprdma_reason *why)
{
	int ret;

	ret = nprdma_device_check_rdma(dev, why);
	if (ret)
		return ret;
	if (!nprdma_device_support(why))
		return -EOPNOTSUPP;
	*domain = iommu_get_domain_for_dev(dev);
	ret = check_domain(dev, *domain, why);
	if (ret)
		return ret;
	ret = check_aliases(to_pci_dev(dev), why);
	if (ret)
		return ret;
	ret = nprdma_pte_root(to_pci_dev(dev), *domain, root, why);
	if (ret)
		return ret;
	return check_caches(to_pci_dev(dev), root, why);
}

/*
 * Size of a device's I/O address space, at most 2^63. The caller keeps its driver
 * bound, and with it the domain.
 */
u64 nprdma_device_iova_bytes(struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);
	u64 last = min_not_zero(dma_get_mask(dev), dev->bus_dma_limit);

	if (domain && domain->geometry.force_aperture)
		last = min_t(u64, last, domain->geometry.aperture_end);
	return min_t(u64, last, BIT_ULL(63) - 1) + 1;
}

static int try_view(struct device *dev, bool writable,
		    struct nprdma_reason *why)
{
	struct nprdma_view *view;
	struct page *rest;
	int ret = 0;

	rest = nprdma_rest_alloc(0);
	if (!rest)
		return nprdma_reason_set(why, -ENOMEM, "out of memory");
	view = nprdma_view_create(dev, rest, TRIAL_PAGES, writable, why);
	if (IS_ERR(view))
		ret = PTR_ERR(view);
	else
		nprdma_view_destroy(view);
	nprdma_rest_free(rest);
	return ret;
}

/*
 * Whether the device may reorder its writes. A virtual function has the setting
 * of its physical function.
 */
static bool uses_relaxed_ordering(struct pci_dev *pdev)
{
	u16 control = 0;

	pcie_capability_read_word(pci_physfn(pdev), PCI_EXP_DEVCTL, &control);
	return control & PCI_EXP_DEVCTL_RELAX_EN;
}

static void fill_info(struct pci_dev *pdev, const struct iommu_domain *domain,
		      const struct nprdma_pte_root *root,
		      struct nprdma_ioc_check_device *info)
{
	info->device = NPRDMA_DEVICE_KNOWN | root->flags;
	if (uses_ats(pdev))
		info->device |= NPRDMA_DEVICE_ATS;
	if (uses_relaxed_ordering(pdev))
		info->device |= NPRDMA_DEVICE_RELAXED_ORDERING;
	info->max_order = root->max_order;
	info->page_sizes = domain->pgsize_bitmap;
	info->max_iova_bytes = nprdma_device_iova_bytes(&pdev->dev);
}

static void describe(struct pci_dev *pdev, const struct nprdma_pte_root *root,
		     const struct nprdma_ioc_check_device *info,
		     struct nprdma_reason *why)
{
	nprdma_reason_set(why, 0,
			  "%s: %s, %s%s, %u levels, found by %s%s, page walks %s, caching mode %s, ATS %s, relaxed ordering %s, invalidations of at most 2^%u pages, page sizes %#llx",
			  pci_name(pdev), root->unit->name,
			  root->unit->mode(root), root->implementation,
			  root->levels, root->unit->source,
			  root->generic ? " and generic_pt" : "",
			  root->coherent ? "coherent" : "not coherent",
			  root->flags & NPRDMA_DEVICE_CACHING_MODE ?
			  "on" : "off",
			  uses_ats(pdev) ? "on" : "off",
			  info->device & NPRDMA_DEVICE_RELAXED_ORDERING ?
			  "on" : "off", root->max_order, info->page_sizes);
}

/* The device's lock is held */
static int check_device(struct device *dev,
			struct nprdma_ioc_check_device *info,
			struct nprdma_reason *why)
{
	struct pci_dev *pdev = to_pci_dev(dev);
	struct nprdma_pte_root root = { };
	struct iommu_domain *domain;
	int ret;

	ret = nprdma_device_root(dev, &domain, &root, why);
	if (root.levels)
		fill_info(pdev, domain, &root, info);
	/*
	 * A trial flushes the whole domain twice, which slows down others. An
	 * import repeats all of its checks, so one that succeeds is enough.
	 */
	if (!ret && xa_load(&logged, log_id(pdev)) != PASSED) {
		ret = try_view(dev, false, why);
		if (!ret)
			ret = try_view(dev, true, why);
	}
	if (!ret)
		describe(pdev, &root, info, why);
	return ret;
}

/*
 * Check whether a device can have views, and describe it, or say why not.
 * Until it has passed once, makes a small view of either kind, with all the
 * checks of a real one. May sleep; takes the device's lock. Returns 0; -ENODEV
 * if it has no driver, so that its next driver may change the domain;
 * -EOPNOTSUPP; -ENOMEM; -EINTR if a signal came first.
 */
int nprdma_device_check(struct device *dev, struct nprdma_ioc_check_device *info,
			struct nprdma_reason *why)
{
	int ret;

	ret = nprdma_device_check_rdma(dev, why);
	if (ret)
		return ret;
	if (device_lock_interruptible(dev))
		return nprdma_reason_set(why, -EINTR, "a signal came first");
	ret = check_device(dev, info, why);
	device_unlock(dev);
	return ret;
}

/*
 * Write the result of nprdma_device_check() to the kernel's log, once for each
 * device and result, because every process of a job checks it
 */
void nprdma_device_log(struct device *dev, int err,
		       const struct nprdma_reason *why)
{
	void *now = err ? REFUSED : PASSED;

	/* If there is no memory to remember it, it is printed again */
	if (xa_store(&logged, log_id(to_pci_dev(dev)), now, GFP_KERNEL) == now)
		return;
	if (err)
		dev_info(dev, "nprdma: refused: %s\n", why->text);
	else
		dev_info(dev, "nprdma: %s\n", why->text);
}

/* At the end of the module */
void nprdma_device_forget(void)
{
	xa_destroy(&logged);
}
