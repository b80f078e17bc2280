/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_HELD_H_
#define UCT_NPRDMA_HELD_H_

#include "nprdma_op.h"

/*
 * Operations that are held: accepted, but not started, because they must not
 * overtake an earlier operation of their endpoint (nprdma_order.h), or a
 * request that the target's software has not executed (ARCHITECTURE 3, overlap
 * and atomics).
 *
 * Each is a uct_nprdma_op_t in ops.order, so that flushes, fences and the
 * end of an endpoint find it. It keeps the operands of a held request, and a
 * slot with the data of a held put.
 *
 * Once a held request is sent, its sequence number shows whether it is
 * executed, as for every other request, and it leaves ops.order. With a reply
 * of its own it stays in ops.order until the reply. A reply costs a message of
 * the target. Therefore the request asks for one only if something waits for
 * the operation: a completion or a result, a flush or fence that began while it
 * was held, or a later operation of the NIC.
 */


/* Whether a request may be sent at once. If not, the caller passes it to a
 * function below. */
static inline int
uct_nprdma_held_is_clear(uct_nprdma_rma_t *rma, unsigned flags,
                         uint64_t address, size_t length)
{
    uct_nprdma_area_t area;

    if (ucs_likely(ucs_list_is_empty(&rma->ops.order.ops))) {
        return 1;
    }

    area = uct_nprdma_area(address, length);
    return uct_nprdma_order_search(&rma->ops.order, flags, &area) == NULL;
}


/* Whether a request could be held, if necessary */
static inline int uct_nprdma_held_has_room(const uct_nprdma_rma_iface_t *iface,
                                           uct_nprdma_rma_t *rma)
{
    return ucs_list_is_empty(&rma->ops.order.ops) ||
           uct_nprdma_op_has_op(&iface->res->ops, &rma->ops, 0);
}


/* Hold a request with these UCT_NPRDMA_ORDER_xx. The data of a put is in a
 * slot, behind the space of the header; the operation owns the slot on success
 * only. A get has an unpack_cb with its arg; the arg of an atomic is for the
 * old value, or NULL. */
ucs_status_t
uct_nprdma_held_request(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        const uct_nprdma_held_message_t *message,
                        unsigned flags, uct_nprdma_slot_t *slot,
                        uct_unpack_callback_t unpack_cb, void *arg,
                        const uct_nprdma_rkey_t *rkey, uct_completion_t *comp);


/* Slow path of uct_nprdma_held_add(): there are earlier operations */
int uct_nprdma_held_add_slow(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma, uct_nprdma_order_op_t *op);

/* Add an operation, whose area and flags are set, to ops.order. Whether it is
 * held. */
static UCS_F_ALWAYS_INLINE int
uct_nprdma_held_add(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                    uct_nprdma_order_op_t *op)
{
    if (ucs_likely(ucs_list_is_empty(&rma->ops.order.ops) &&
                   (rma->sn == rma->done_sn))) {
        uct_nprdma_order_add(&rma->ops.order, op);
        return 0;
    }

    return uct_nprdma_held_add_slow(iface, rma, op);
}


/* An operation that others wait for has left ops.order: start those that need
 * not wait for another one */
void uct_nprdma_held_release(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma, uct_nprdma_order_op_t *op);


/* The target has executed requests: start the operations that waited for
 * them */
void uct_nprdma_held_acked(uct_nprdma_rma_iface_t *iface,
                           uct_nprdma_rma_t *rma);


/* Send held requests that wait for resources only */
unsigned
uct_nprdma_held_progress(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma);


#endif
