/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_RECV_H_
#define UCT_NPRDMA_RMA_RECV_H_

#include "nprdma_rma_types.h"

/* Replies of a peer's service, handled according to their kind */

/* End the first awaited reply of an endpoint, with its payload or an error. The
 * endpoint may be destroyed in the call; the caller keeps its RMA side by
 * uct_nprdma_rma_enter(). */
void uct_nprdma_rma_reply_done(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma,
                               uct_nprdma_rma_reply_t *reply, const void *data,
                               ucs_status_t status);


/* Handle the completion of a receive of uct_nprdma_conn_post_recv() */
unsigned
uct_nprdma_rma_handle_reply(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_conn_t *conn, uint32_t index,
                            const struct ibv_wc *wc);

#endif
