// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include <linux/acpi.h>
#include <linux/cc_platform.h>
#include <linux/iommu.h>
#include <linux/pci.h>

#include "nprdma_kdevice.h"
#include "nprdma_pte.h"
#include "nprdma_window.h"

/* Pages of the trial window: more than a leaf table, not a multiple of 8 */
#define TRIAL_PAGES	1027

static bool has_acpi_table(const char *signature)
{
	struct acpi_table_header *table;

	if (acpi_disabled ||
	    ACPI_FAILURE(acpi_get_table((char *)signature, 0, &table)))
		return false;
	acpi_put_table(table);
	return true;
}

/**
 * nprdma_device_support - check whether this machine can re-point windows
 * @why: reason if not
 *
 * Context: process, may sleep.
 * Return: false if no device can pass nprdma_device_check().
 */
bool nprdma_device_support(struct nprdma_reason *why)
{
	int err = 0;

	if (!IS_ENABLED(CONFIG_INTEL_IOMMU))
		/*
		 * Arm requires break-before-make: the address of a valid entry
		 * must not change, so there would be a hole.
		 */
		err = nprdma_reason_set(why, -EOPNOTSUPP,
					"only Intel VT-d is supported, and this kernel has no driver for it");
	else if (has_acpi_table(ACPI_SIG_IVRS))
		err = nprdma_reason_set(why, -EOPNOTSUPP,
					"AMD IOMMUs are not supported until they are tested");
	else if (!has_acpi_table(ACPI_SIG_DMAR))
		err = nprdma_reason_set(why, -EOPNOTSUPP,
					"the machine has no Intel VT-d, or its firmware disabled it (no ACPI table DMAR)");
	else if (cc_platform_has(CC_ATTR_MEM_ENCRYPT))
		err = nprdma_reason_set(why, -EOPNOTSUPP,
					"memory encryption is not supported");
	return !err;
}

static int is_rdma_device(struct device *dev, void *name)
{
	return dev->class && !strcmp(dev->class->name, "infiniband") &&
	       !strcmp(dev_name(dev), name);
}

/**
 * nprdma_device_find - look up a device
 * @name: a PCI address like "0000:3b:00.0", or the name of an RDMA device
 *
 * An RDMA device is looked for among the children of PCI functions, so that
 * this module does not need ib_core.
 *
 * Context: process, may sleep.
 * Return: the PCI function with a reference, for put_device();
 * ERR_PTR(-ENODEV) if there is no such device.
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
	if (!domain)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "no IOMMU translates for the device (kernel parameter intel_iommu=on)");
	if (domain->type == IOMMU_DOMAIN_IDENTITY)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the IOMMU passes the device's DMA through (kernel parameter iommu.passthrough=0, no iommu=pt; or write DMA to the group's type in sysfs while no driver is bound)");
	if (!iommu_is_dma_domain(domain))
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device's IOMMU domain is not the kernel's, but for example VFIO's");
	if (to_pci_dev(dev)->untrusted)
		return nprdma_reason_set(why, -EOPNOTSUPP,
					 "the device is on an external port, so that its DMA may be bounced");
	return 0;
}

/**
 * nprdma_device_root - check a device, and find its I/O page table
 * @dev: the device
 * @domain: result: IOMMU domain of its DMA addresses; stays the same while a
 *	driver is bound
 * @root: result
 * @why: reason if it is refused
 *
 * Context: process, may sleep.
 * Return: 0; -ENODEV if it is not a PCI function; -EOPNOTSUPP; -ENOMEM.
 */
int nprdma_device_root(struct device *dev, struct iommu_domain **domain,
		       struct nprdma_pte_root *root, struct nprdma_reason *why)
{
	int ret;

	if (!dev_is_pci(dev))
		return nprdma_reason_set(why, -ENODEV, "not a PCI device");
	if (!nprdma_device_support(why))
		return -EOPNOTSUPP;
	*domain = iommu_get_domain_for_dev(dev);
	ret = check_domain(dev, *domain, why);
	if (ret)
		return ret;
	ret = check_aliases(to_pci_dev(dev), why);
	if (ret)
		return ret;
	return nprdma_pte_root(to_pci_dev(dev), *domain, root, why);
}

static int try_window(struct device *dev, bool writable,
		      struct nprdma_reason *why)
{
	struct nprdma_window *win;
	struct page *rest;
	int ret = 0;

	rest = nprdma_rest_alloc(0);
	if (!rest)
		return nprdma_reason_set(why, -ENOMEM, "out of memory");
	win = nprdma_window_create(dev, rest, TRIAL_PAGES, writable, why);
	if (IS_ERR(win))
		ret = PTR_ERR(win);
	else
		nprdma_window_destroy(win);
	nprdma_rest_free(rest);
	return ret;
}

static void describe(struct pci_dev *pdev, const struct nprdma_pte_root *root,
		     struct nprdma_reason *why)
{
	nprdma_reason_set(why, 0,
			  "%s: Intel VT-d, %s, %u levels, found by %s, page walks %s, ATS %s",
			  pci_name(pdev),
			  root->first_stage ? "scalable mode, first stage" :
			  root->scalable ? "scalable mode, second stage" :
			  "legacy mode", root->levels,
			  root->generic ? "DMAR and generic_pt" : "DMAR",
			  root->coherent ? "coherent" : "not coherent",
#ifdef CONFIG_PCI_ATS
			  pdev->ats_enabled ? "on" : "off"
#else
			  "not built"
#endif
			  );
}

/**
 * nprdma_device_check - check whether a device can have windows
 * @dev: the device
 * @why: description of the device, or the reason for which it is refused
 *
 * Makes a small window of either kind, with all the checks of a real one.
 *
 * Context: process, may sleep; takes the device's lock.
 * Return: 0; -ENODEV if it is not a PCI function, or has no driver, so that its
 * next driver may change the domain; -EOPNOTSUPP; -ENOMEM; -EINTR if the
 * process was killed.
 */
int nprdma_device_check(struct device *dev, struct nprdma_reason *why)
{
	struct nprdma_pte_root root;
	struct iommu_domain *domain;
	int ret;

	device_lock(dev);
	if (!dev->driver)
		ret = nprdma_reason_set(why, -ENODEV,
					"no driver is bound to the device");
	else
		ret = nprdma_device_root(dev, &domain, &root, why);
	if (!ret)
		ret = try_window(dev, false, why);
	if (!ret)
		ret = try_window(dev, true, why);
	if (!ret)
		describe(to_pci_dev(dev), &root, why);
	device_unlock(dev);
	return ret;
}
