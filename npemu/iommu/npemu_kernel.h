/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Regions of the kernel module. The kernel writes their page states. The NIC
 * obeys them like those of an emulated table, but does not write them, and the
 * kernel does not wait for the NIC. npemu/design.md describes the consequences.
 */

#ifndef NPEMU_KERNEL_H
#define NPEMU_KERNEL_H

#include "iommu/npemu_table.h"

/** Is it a states descriptor of the kernel module (nprdma_uapi.h)? */
int npemu_kernel_is_states(int fd);

/** Map the states behind a descriptor, but for `gen`. `table`: the table, until
 * npemu_kernel_close. Returns a description of the error, NULL on success. */
const char *npemu_kernel_open(npemu_table_t *table, int fd, int pid);

/** Unmap what @ref npemu_kernel_open mapped. */
void npemu_kernel_close(npemu_table_t *table);

#endif
