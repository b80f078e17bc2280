/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_REPLY_H_
#define UCT_NPRDMA_RMA_REPLY_H_

#include "nprdma_rma_types.h"

/*
 * Receives that are posted for replies. Replies arrive in the order of the
 * requests, and receives are consumed in the order in which they were posted.
 *
 * An endpoint that repeatedly sends a store and waits until it is done posts
 * the receive for the next reply while the store is in flight. This receive is
 * the spare; with it the next store leaves earlier. A posted receive cannot be
 * taken back, so the next reply consumes the spare, whatever it answers. If
 * that reply does not fit, a NOP is sent first, and its reply consumes the
 * spare.
 *
 * The number of spares is limited, and they do not count as awaited replies.
 * Therefore the spare of an endpoint takes nothing from other endpoints, does
 * not keep the process from sleeping, and causes no probes of the peer.
 */

/* Take a reply with a posted receive, or NULL. The caller sets the
 * fields of its kind, and must send the request next. `slot` is the caller's
 * slot for data, into which the reply is received, and which the caller keeps
 * until the reply is freed at least; or NULL. */
uct_nprdma_rma_reply_t *
uct_nprdma_rma_reply_add(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                         uint32_t length, uct_nprdma_rma_kind_t kind,
                         int is_redo, uct_nprdma_slot_t *slot);


/* A reply with this payload needs no slot for data */
int uct_nprdma_rma_is_small(uint32_t length);


/* The request is one of a large operation, and has a slot for data: for its
 * reply or its message. The slot counts in rma->num_large_slots while the reply
 * is awaited. See uct_nprdma_rma_copy_may_take(). */
void uct_nprdma_rma_reply_set_large(uct_nprdma_rma_res_t *res,
                                    uct_nprdma_rma_reply_t *reply);


/* The reply is not in rma->replies any more. Its slot is freed with it, unless
 * it is the caller's. */
void uct_nprdma_rma_reply_free(uct_nprdma_rma_res_t *res,
                               uct_nprdma_rma_reply_t *reply);


/* A single store has been sent: post a spare if more of them are likely, and if
 * one is available */
void uct_nprdma_rma_spare_post(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma);


/* The queue pair receives no more */
void uct_nprdma_rma_spare_free(uct_nprdma_rma_res_t *res,
                               uct_nprdma_rma_t *rma);

#endif
