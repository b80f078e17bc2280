/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_ERROR_H_
#define UCT_NPRDMA_RMA_ERROR_H_

#include "nprdma_rma_types.h"

/* Log messages about failed operations */

/* Log an operation that failed at the target. Many users do not check the
 * status of each operation, so the first failure of an endpoint is logged as an
 * error, later ones for debugging. */
void uct_nprdma_rma_report(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                           const char *name, uint64_t address, size_t length,
                           ucs_status_t status);


/* The same for the part of a local buffer that could not be accessed */
void uct_nprdma_rma_report_local(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma, int is_get,
                                 const void *buffer, size_t length);


/* Log the failures that a reply reports: that of its own request, and
 * reply->failed, that of the first earlier request without a reply. Slices log
 * their failures themselves. */
void uct_nprdma_rma_report_reply(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma,
                                 const uct_nprdma_rma_reply_t *reply,
                                 uint32_t failed_sn, ucs_status_t status);

/* Report an operation, with the part of both memories, that a device with
 * on-demand paging could not execute. It ends its endpoint. Other reasons than
 * the memory are not reported here. */
void uct_nprdma_rma_report_on_demand(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_rma_t *rma, int is_get,
                                     const void *buffer, uint64_t address,
                                     size_t length, ucs_status_t status);

#endif
