/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_OP_H_
#define UCT_NPRDMA_OP_H_

#include "nprdma_rma_types.h"

/*
 * Optimistic operations: gets and large puts that the NIC executes, on the
 * assumption that all pages are present, and that are verified afterwards
 * (ARCHITECTURE 3). An operation is cut into slices. A slice is tried until it
 * is verified; after max_tries tries software copies it.
 *
 * This module has the operations; nprdma_op_slice has the steps of a slice.
 */

/**
 * Set up the operations and slices of an interface.
 *
 * @param [in]  iface  Interface; its MD and configuration are set.
 * @param [out] ops    Filled; released with uct_nprdma_op_iface_cleanup().
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t uct_nprdma_op_iface_init(uct_nprdma_rma_iface_t *iface,
                                      uct_nprdma_op_iface_t *ops);

/** Undo uct_nprdma_op_iface_init(). No operation is in progress. */
void uct_nprdma_op_iface_cleanup(uct_nprdma_op_iface_t *ops);

/**
 * Initialize an endpoint without operations; needs no cleanup.
 *
 * @param [out] ops   Filled.
 * @param [in]  mode  What waits for earlier operations.
 */
void uct_nprdma_op_ep_init(uct_nprdma_op_ep_t *ops,
                           uct_nprdma_order_mode_t mode);


/**
 * Start get_bcopy. Arguments as for uct_ep_get_bcopy(), with a length of 1 to
 * UCT_NPRDMA_SVC_MAX_PAYLOAD bytes and an rkey that passes
 * uct_nprdma_op_can_get(); rkey is copied. Posting is possible, see
 * uct_nprdma_rma_begin().
 *
 * @return UCS_INPROGRESS, or UCS_ERR_NO_RESOURCE.
 */
ucs_status_t
uct_nprdma_op_get_bcopy(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_rma_t *rma,
                        uct_unpack_callback_t unpack_cb, void *arg,
                        size_t length, uint64_t remote_addr,
                        const uct_nprdma_rkey_t *rkey, uct_completion_t *comp);


/**
 * Start get_zcopy or put_zcopy. If the NIC cannot reach the memory, software
 * copies. Arguments as for uct_ep_get_zcopy(), with at least one byte in all;
 * iov and rkey are copied. Posting is possible, see uct_nprdma_rma_begin().
 *
 * @return UCS_INPROGRESS, or UCS_ERR_NO_RESOURCE.
 */
ucs_status_t
uct_nprdma_op_zcopy(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                    int is_get, const uct_iov_t *iov, size_t iovcnt,
                    uint64_t remote_addr, const uct_nprdma_rkey_t *rkey,
                    uct_completion_t *comp);


/**
 * @param [in] iface    Interface.
 * @param [in] rkey     Key.
 * @param [in] address  First byte at the target.
 * @param [in] length   Length in bytes.
 *
 * @return Nonzero if the NIC can get from a range to a slot.
 */
static inline int uct_nprdma_op_can_get(uct_nprdma_rma_iface_t *iface,
                                        const uct_nprdma_rkey_t *rkey,
                                        uint64_t address, size_t length)
{
    return (rkey->r_rkey != 0) &&
           uct_nprdma_mem_has_zcopy(uct_nprdma_rma_md(iface)) &&
           uct_nprdma_key_covers(rkey, address, length);
}


/**
 * Continue slices and small operations that lacked resources, redo and
 * verification first. Large operations of the endpoint may post again.
 *
 * @param [in] iface  Interface.
 * @param [in] rma    RMA side of the endpoint.
 *
 * @return Number of slices that continued.
 */
unsigned uct_nprdma_op_progress(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_rma_t *rma);


/**
 * @param [in] iface   Interface whose `res` is there.
 * @param [in] length  Bytes of an operation of the NIC.
 *
 * @return 1 if it is large, otherwise 0.
 */
static inline int uct_nprdma_op_is_large(const uct_nprdma_rma_iface_t *iface,
                                         size_t length)
{
    return length > iface->res->ops.prio_max;
}


/**
 * Let large operations of all endpoints post their next slices, as the quota
 * and the resources allow.
 *
 * @param [in] iface  Interface.
 *
 * @return Number of slices that started.
 */
unsigned uct_nprdma_op_run(uct_nprdma_rma_iface_t *iface);


/**
 * Begin a call of progress, with a quota of its own.
 *
 * @param [in] iface  Interface.
 */
void uct_nprdma_op_begin(uct_nprdma_rma_iface_t *iface);


/**
 * The target's software, not the NIC, has a slice now.
 *
 * @param [in] iface  Interface.
 * @param [in] slice  Slice; not counted in the quota any more.
 */
void uct_nprdma_op_slice_leaves_nic(uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_op_slice_t *slice);

/** The NIC has a slice again; see uct_nprdma_op_slice_leaves_nic(). */
void uct_nprdma_op_slice_returns_to_nic(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_op_slice_t *slice);


/** @return Nonzero if uct_nprdma_op_progress() has to be called again. */
static inline int uct_nprdma_op_is_stalled(uct_nprdma_op_ep_t *ops)
{
    return !ucs_list_is_empty(&ops->unsliced) || ops->sched.is_blocked ||
           !ucs_queue_is_empty(&ops->todo[0]) ||
           !ucs_queue_is_empty(&ops->todo[1]);
}


/**
 * Check whether an endpoint may have one more of a resource that the endpoints
 * of an interface share. As with slots, the more it has the more must be free.
 * What small and large operations have counts separately, so a small one does
 * not wait for the large ones of its endpoint.
 *
 * @param [in] held       What the endpoint has, in operations of this class.
 * @param [in] num_free   What is free.
 * @param [in] num_large  What large operations of all endpoints have.
 * @param [in] max_large  What they may have.
 * @param [in] is_large   Nonzero for a large operation.
 *
 * @return Nonzero if it may have one more.
 */
static inline int
uct_nprdma_op_has_share(unsigned held, unsigned num_free, unsigned num_large,
                        unsigned max_large, int is_large)
{
    unsigned available = is_large ? ucs_min(num_free, max_large - num_large) :
                                    num_free;

    return held < (2 * available);
}


/**
 * @param [in] iface     Operations of the interface.
 * @param [in] ops       Operations of the endpoint.
 * @param [in] is_large  Nonzero for a large operation.
 *
 * @return Nonzero if an endpoint may have one more operation.
 */
static inline int uct_nprdma_op_has_op(const uct_nprdma_op_iface_t *iface,
                                       const uct_nprdma_op_ep_t *ops,
                                       int is_large)
{
    return uct_nprdma_op_has_share(ops->num_ops[is_large], iface->num_free_ops,
                                   iface->num_large_ops,
                                   UCT_NPRDMA_MAX_OPS - UCT_NPRDMA_OP_SMALL_OPS,
                                   is_large);
}


/**
 * Allocate an operation, if the endpoint may have one more. Other arguments as
 * for uct_ep_get_bcopy(); rkey is copied.
 *
 * @param [in] is_large  1 for a large operation, otherwise 0.
 *
 * @return The operation, without a slot; NULL: try again later.
 */
static UCS_F_ALWAYS_INLINE uct_nprdma_op_t *
uct_nprdma_op_new(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                  int is_get, int is_large, uint64_t remote_addr,
                  const uct_nprdma_rkey_t *rkey, uct_completion_t *comp)
{
    uct_nprdma_op_iface_t *ops = &iface->res->ops;
    uct_nprdma_op_t *op;

    if (ucs_unlikely(!uct_nprdma_op_has_op(ops, &rma->ops, is_large))) {
        iface->net.tx.starved |= ucs_list_is_empty(&rma->ops.order.ops);
        ++iface->net.stats->no_resource;
        return NULL;
    }

    --ops->num_free_ops;
    ++rma->ops.num_ops[is_large];
    ops->num_large_ops += is_large;
    op = ucs_list_extract_head(&ops->free_ops, uct_nprdma_op_t, list);
    op->rma            = rma;
    op->comp           = comp;
    op->status         = UCS_OK;
    op->is_request     = 0;
    op->is_get         = is_get;
    op->is_large       = is_large;
    op->has_prefetch   = 0;
    op->is_single_read = 0;
    op->rkey           = *rkey;
    op->address        = remote_addr;
    op->slot           = NULL;
    op->piece          = 0;
    op->offset         = 0;
    return op;
}


/**
 * Start an operation of ops.order that waits for no other. It is not a request.
 *
 * @param [in] iface  Interface.
 * @param [in] op     Operation.
 */
void uct_nprdma_op_release(uct_nprdma_rma_iface_t *iface,
                           uct_nprdma_op_t *op);


/**
 * A held request has been sent without a reply of its own. Its sequence number
 * now shows when it is executed. It has no completion.
 *
 * @param [in] iface  Interface.
 * @param [in] op     Operation; freed.
 */
void uct_nprdma_op_sent(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_op_t *op);


/**
 * Complete an operation that is verified as a whole, or has failed. The
 * completion is called last, because it may destroy the endpoint.
 *
 * @param [in] iface  Interface.
 * @param [in] op     Operation; freed.
 */
void uct_nprdma_op_complete(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_op_t *op);


/**
 * Forget what an endpoint has still to post. No slice of it continues, or
 * starts, after that.
 *
 * @param [in] iface  Interface.
 * @param [in] rma    RMA side of the endpoint; it has failed.
 */
void uct_nprdma_op_stop(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma);


/**
 * Complete all operations of an endpoint with rma->status. They have no
 * outstanding WR and wait for no reply. The caller has called
 * uct_nprdma_op_stop() and uct_nprdma_rma_enter().
 *
 * @param [in] iface  Interface.
 * @param [in] rma    RMA side of the endpoint.
 */
void uct_nprdma_op_purge(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_t *rma);


/**
 * End a slice that is verified, copied, or has failed. The call frees it, and
 * may also free its operation, its endpoint and other objects of the user.
 *
 * @param [in] iface   Interface.
 * @param [in] slice   Slice; freed.
 * @param [in] status  UCS_OK, or an error of the operation.
 */
void uct_nprdma_op_slice_end(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_op_slice_t *slice,
                             ucs_status_t status);

#endif
