/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ODP_CHECK_H_
#define UCT_NPRDMA_ODP_CHECK_H_

#include "nprdma_odp.h"

/*
 * On-demand paging is used without verification. Therefore a device has to show
 * first, on memory that is not there, that it moves the right bytes and follows
 * the address space.
 */

/**
 * WRITE and READ between two ranges of this process over a loopback connection,
 * each twice, with all pages taken away in between.
 *
 * @param [in]    dev  Open device.
 * @param [inout] odp  reg_cost is set. Its local regions are used.
 *
 * @return NULL, or the reason in words why the device must not be used; a
 *         constant. The details are logged for debugging.
 */
const char *uct_nprdma_odp_check(uct_nprdma_device_t *dev,
                                 uct_nprdma_odp_t *odp);

#endif
