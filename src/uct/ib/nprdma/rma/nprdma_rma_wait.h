/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_WAIT_H_
#define UCT_NPRDMA_RMA_WAIT_H_

#include "nprdma_rma_types.h"

/*
 * Receives that are posted for replies. Replies come in the order of the
 * requests, and receives are taken in the order in which they were posted.
 *
 * An endpoint that again and again sends a store, waits for it to be done and
 * sends the next has the receive for the next reply posted while a store
 * travels, as a spare: that much sooner the next one leaves. A spare cannot be
 * taken back, so the reply after it goes there, whatever it answers. If that
 * reply does not fit, a NOP is sent before, whose reply uses the spare up.
 *
 * Spares are few and not counted with what is awaited: that an endpoint keeps
 * one takes nothing from the others, nor does it keep anybody awake or have the
 * peer asked whether it is alive.
 */

/**
 * Have a receive posted for a reply. Must be followed by sending the request.
 *
 * @param [in] length   Payload of the reply if all goes well.
 * @param [in] kind     What for.
 * @param [in] is_redo  For redo or verification, which have a share.
 *
 * @return The wait, for the caller to fill in what the kind needs, or NULL:
 *         later.
 */
uct_nprdma_rma_wait_t *
uct_nprdma_rma_wait_add(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        uint32_t length, uct_nprdma_rma_kind_t kind,
                        int is_redo);


/** Give back a wait that is not in rma->waits any more. */
void uct_nprdma_rma_wait_free(uct_nprdma_rma_res_t *res,
                              uct_nprdma_rma_wait_t *wait);


/**
 * A store that stands alone has been sent: post a spare behind it if more of
 * its kind are to be expected, and if there is one to be had.
 */
void uct_nprdma_rma_spare_post(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma);


/** Give the spare back, if there is one; the queue pair receives no more. */
void uct_nprdma_rma_spare_free(uct_nprdma_rma_res_t *res,
                               uct_nprdma_rma_t *rma);

#endif
