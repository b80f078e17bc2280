/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_ERROR_H_
#define UCT_NPRDMA_RMA_ERROR_H_

#include "nprdma_rma_types.h"

/*
 * Log messages about failed operations.
 */

/**
 * Log an operation that failed at the target. Many users do not check the
 * status of each operation, so the first failure of an endpoint is logged as an
 * error, later ones for debugging.
 *
 * @param [in] iface    Interface.
 * @param [in] rma      RMA side of the endpoint.
 * @param [in] name     Name of the operation.
 * @param [in] address  Remote address.
 * @param [in] length   Length in bytes.
 * @param [in] status   Status that the user gets.
 */
void uct_nprdma_rma_report(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                           const char *name, uint64_t address, size_t length,
                           ucs_status_t status);


/**
 * Log an operation with a local buffer that could not be accessed, as
 * uct_nprdma_rma_report().
 *
 * @param [in] iface   Interface.
 * @param [in] rma     RMA side of the endpoint.
 * @param [in] is_get  Nonzero for a get.
 * @param [in] buffer  Part of the buffer that was accessed.
 * @param [in] length  Its length in bytes.
 */
void uct_nprdma_rma_report_local(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma, int is_get,
                                 const void *buffer, size_t length);


/**
 * Log the failures that a reply reports: that of its own request, and that of
 * the first earlier request without a reply. Slices log their failures
 * themselves.
 *
 * @param [in] iface      Interface.
 * @param [in] rma        RMA side of the endpoint.
 * @param [in] wait       Wait of the reply; wait->failed is the status of the
 *                        earlier request.
 * @param [in] failed_sn  Sequence number of the earlier request.
 * @param [in] status     Status of the request of the reply.
 */
void uct_nprdma_rma_report_reply(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma,
                                 const uct_nprdma_rma_wait_t *wait,
                                 uint32_t failed_sn, ucs_status_t status);

/**
 * Report an operation that a device with on-demand paging could not execute.
 * It ends its endpoint. Other reasons than the memory are not reported here.
 *
 * @param [in] iface    Interface.
 * @param [in] rma      RMA side of the endpoint.
 * @param [in] is_get   Nonzero for a get.
 * @param [in] buffer   The part of the buffer of this process.
 * @param [in] address  The part of the memory of the peer.
 * @param [in] length   Its length in bytes.
 * @param [in] status   Reason of the failure of the connection.
 */
void uct_nprdma_rma_report_on_demand(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_rma_t *rma, int is_get,
                                     const void *buffer, uint64_t address,
                                     size_t length, ucs_status_t status);

#endif
