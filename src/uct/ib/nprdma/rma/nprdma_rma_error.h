/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_ERROR_H_
#define UCT_NPRDMA_RMA_ERROR_H_

#include "nprdma_rma_types.h"

/*
 * What the log says of operations that have failed.
 */

/**
 * An operation has failed at the target. Many users do not look at the status
 * of each operation, so the first one of an endpoint is an error in the log.
 *
 * @param [in] name     Of the operation.
 * @param [in] address  Remote address.
 * @param [in] length   Bytes.
 * @param [in] status   What the user gets.
 */
void uct_nprdma_rma_tell(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                         const char *name, uint64_t address, size_t length,
                         ucs_status_t status);


/**
 * The same for one whose buffer here could not be copied from or to.
 *
 * @param [in] is_get  Nonzero: a get.
 * @param [in] buffer  The part of it that was to be copied.
 * @param [in] length  Bytes of that.
 */
void uct_nprdma_rma_tell_local(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma, int is_get,
                               const void *buffer, size_t length);


/**
 * Tell of what has failed according to a reply: its own request, and the first
 * one before it that has no reply. Slices tell of themselves.
 *
 * @param [in] wait       For the reply; wait->failed of the request before it.
 * @param [in] failed_sn  Number of that request.
 * @param [in] status     How the request of the reply has ended.
 */
void uct_nprdma_rma_tell_reply(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma,
                               const uct_nprdma_rma_wait_t *wait,
                               uint32_t failed_sn, ucs_status_t status);

#endif
