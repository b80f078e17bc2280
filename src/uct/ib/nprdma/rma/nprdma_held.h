/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_HELD_H_
#define UCT_NPRDMA_HELD_H_

#include "nprdma_opt.h"

/*
 * Operations that are held: accepted, but not started, because they must not
 * overtake an earlier operation of their endpoint (nprdma_order.h), or a
 * request that the target's software has not executed.
 *
 * Each is a uct_nprdma_opt_op_t in opt.order, so flushes, fences and the end of
 * an endpoint know it. A request that is held keeps its operands there, and
 * data to be put in a slot.
 *
 * Once it is sent, the number of the request says whether it is executed, as of
 * every other request, so it leaves opt.order. A reply of its own, until which
 * it stays in opt.order, costs a message of the target. It asks for one only if
 * something waits for the operation: a completion or a result, a flush or fence
 * that began while it was held, or what the NIC is to do afterwards.
 */


/**
 * @return Nonzero if a request of length bytes at an address may be sent at
 *         once; else it has to be given to a function below.
 */
static inline int
uct_nprdma_held_is_clear(uct_nprdma_rma_t *rma, unsigned flags,
                         uint64_t address, size_t length)
{
    uct_nprdma_span_t span;

    if (ucs_likely(ucs_list_is_empty(&rma->opt.order.ops))) {
        return 1;
    }

    span = uct_nprdma_span(address, length);
    return uct_nprdma_order_search(&rma->opt.order, flags, &span) == NULL;
}


/** @return Nonzero if a request could be held if it had to be. */
static inline int uct_nprdma_held_has_room(const uct_nprdma_rma_iface_t *iface,
                                           uct_nprdma_rma_t *rma)
{
    return ucs_list_is_empty(&rma->opt.order.ops) ||
           uct_nprdma_opt_has_op(&iface->res->opt, &rma->opt);
}


/**
 * Hold a put. The data lies in a slot, behind the place of the header.
 *
 * @param [in] slot  Taken over if the put is held, else left to the caller.
 * @param [in] comp  May be NULL.
 *
 * @return UCS_OK or UCS_ERR_NO_RESOURCE.
 */
ucs_status_t uct_nprdma_held_put(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma, uct_nprdma_slot_t *slot,
                                 size_t length, uint64_t remote_addr,
                                 const uct_nprdma_rkey_t *rkey,
                                 uct_completion_t *comp);


/**
 * Hold a get that the target's software does. Arguments as of
 * uct_ep_get_bcopy().
 *
 * @return UCS_OK or UCS_ERR_NO_RESOURCE.
 */
ucs_status_t
uct_nprdma_held_get(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                    uct_unpack_callback_t unpack_cb, void *arg, size_t length,
                    uint64_t remote_addr, const uct_nprdma_rkey_t *rkey,
                    uct_completion_t *comp);


/**
 * Hold an atomic.
 *
 * @param [in] message  The request.
 * @param [in] result   Where the old value goes, or NULL.
 * @param [in] comp     May be NULL.
 *
 * @return UCS_OK or UCS_ERR_NO_RESOURCE.
 */
ucs_status_t uct_nprdma_held_atomic(uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_rma_t *rma,
                                    const uct_nprdma_held_message_t *message,
                                    void *result, const uct_nprdma_rkey_t *rkey,
                                    uct_completion_t *comp);


/** What uct_nprdma_held_add() does where an operation may have to wait. */
int uct_nprdma_held_add_slow(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma, uct_nprdma_order_op_t *op);

/**
 * Add an operation, which has its span and flags, to opt.order.
 *
 * @return Nonzero if it is held.
 */
static UCS_F_ALWAYS_INLINE int
uct_nprdma_held_add(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                    uct_nprdma_order_op_t *op)
{
    if (ucs_likely(ucs_list_is_empty(&rma->opt.order.ops) &&
                   (rma->sn == rma->done_sn))) {
        uct_nprdma_order_add(&rma->opt.order, op);
        return 0;
    }

    return uct_nprdma_held_add_slow(iface, rma, op);
}


/** Let an operation that hangs in no list hang in one. */
static inline void
uct_nprdma_held_hold(uct_nprdma_rma_t *rma, uct_nprdma_order_op_t *op,
                     ucs_list_link_t *list)
{
    rma->opt.num_held_nic += !!(op->flags & UCT_NPRDMA_ORDER_NIC);
    uct_nprdma_order_hold(op, list);
}

/** Take an operation from the list that it hangs in, if there is one. */
static inline void
uct_nprdma_held_unhold(uct_nprdma_rma_t *rma, uct_nprdma_order_op_t *op)
{
    if (ucs_unlikely(op->is_held)) {
        rma->opt.num_held_nic -= !!(op->flags & UCT_NPRDMA_ORDER_NIC);
        uct_nprdma_order_unhold(op);
    }
}


/** What uct_nprdma_held_remove() does where something is held. */
void uct_nprdma_held_release(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma, uct_nprdma_order_op_t *op);

/**
 * Remove an operation that is done, or has failed, from opt.order, and start
 * what was held for it.
 */
static inline void
uct_nprdma_held_remove(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                       uct_nprdma_order_op_t *op)
{
    uct_nprdma_held_unhold(rma, op);
    uct_nprdma_order_remove(&rma->opt.order, op);
    if (ucs_unlikely(!ucs_list_is_empty(&op->waiters))) {
        uct_nprdma_held_release(iface, rma, op);
    }
}


/** The target has executed requests: start what was held for these. */
void uct_nprdma_held_acked(uct_nprdma_rma_iface_t *iface,
                           uct_nprdma_rma_t *rma);


/**
 * Send requests that wait for nothing but resources.
 *
 * @return Number of requests sent.
 */
unsigned
uct_nprdma_held_progress(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma);


/** Reply to a request that was held; see nprdma_rma_reply.c. */
uct_completion_t *
uct_nprdma_held_reply(uct_nprdma_rma_iface_t *iface,
                      uct_nprdma_rma_wait_t *wait, const void *data,
                      ucs_status_t *status);

#endif
