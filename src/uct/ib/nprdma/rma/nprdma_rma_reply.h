/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_REPLY_H_
#define UCT_NPRDMA_RMA_REPLY_H_

#include "nprdma_rma_types.h"

/*
 * Replies of a peer's service, handled according to their kind.
 */

/**
 * End the first wait of an endpoint. The endpoint may be destroyed in the call;
 * the caller keeps its RMA side by uct_nprdma_rma_enter().
 *
 * @param [in] iface   Interface.
 * @param [in] rma     RMA side of the endpoint.
 * @param [in] wait    First of rma->waits; freed.
 * @param [in] data    Payload of the reply, wait->length bytes; NULL if status
 *                     is an error.
 * @param [in] status  Status of the request.
 */
void uct_nprdma_rma_reply_done(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma,
                               uct_nprdma_rma_wait_t *wait, const void *data,
                               ucs_status_t status);


/**
 * Handle the completion of a receive of uct_nprdma_conn_post_recv().
 *
 * @param [in] iface  Interface.
 * @param [in] conn   Connection of kind SVC.
 * @param [in] index  Index of the receive.
 * @param [in] wc     Its completion, possibly an error.
 *
 * @return Number of operations completed.
 */
unsigned
uct_nprdma_rma_handle_reply(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_conn_t *conn, uint32_t index,
                            const struct ibv_wc *wc);

#endif
