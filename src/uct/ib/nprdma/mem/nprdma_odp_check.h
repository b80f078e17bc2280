/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ODP_CHECK_H_
#define UCT_NPRDMA_ODP_CHECK_H_

#include "nprdma_odp.h"

/* On-demand paging is used without verification. Therefore a device has to show
 * first, on memory that is not there, that it moves the right bytes and follows
 * the address space. */

/* WRITE and READ between two ranges of this process over a loopback connection,
 * each twice, with all pages taken away in between. NULL, or the reason why the
 * device must not be used; the details are logged for debugging. reg_cost is
 * set. */
const char *uct_nprdma_odp_check(uct_nprdma_device_t *dev,
                                 uct_nprdma_odp_t *odp);

#endif
