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

/* The MD and the configuration of the interface are set */
ucs_status_t uct_nprdma_op_iface_init(uct_nprdma_rma_iface_t *iface,
                                      uct_nprdma_op_iface_t *ops);

/* No operation is in progress */
void uct_nprdma_op_iface_cleanup(uct_nprdma_op_iface_t *ops);

/* An endpoint without operations needs no cleanup */
void uct_nprdma_op_ep_init(uct_nprdma_op_ep_t *ops,
                           uct_nprdma_order_mode_t mode);


/* As uct_ep_get_bcopy(), of 1 to uct_nprdma_rma_max_payload() bytes that
 * uct_nprdma_op_can_get() accepts. Posting is possible, see
 * uct_nprdma_rma_begin(). */
ucs_status_t
uct_nprdma_op_get_bcopy(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_rma_t *rma,
                        uct_unpack_callback_t unpack_cb, void *arg,
                        size_t length, uint64_t remote_addr,
                        const uct_nprdma_rkey_t *rkey, uct_completion_t *comp);


/* As uct_ep_get_zcopy() and its put, with at least one byte in all. If the NIC
 * cannot reach the memory, software copies. Posting is possible, see
 * uct_nprdma_rma_begin(). */
ucs_status_t
uct_nprdma_op_zcopy(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                    int is_get, const uct_iov_t *iov, size_t iovcnt,
                    uint64_t remote_addr, const uct_nprdma_rkey_t *rkey,
                    uct_completion_t *comp);


/* Whether the NIC can get from a range to a slot */
static inline int uct_nprdma_op_can_get(uct_nprdma_rma_iface_t *iface,
                                        const uct_nprdma_rkey_t *rkey,
                                        uint64_t address, size_t length)
{
    return (rkey->r_rkey != 0) &&
           uct_nprdma_mem_has_zcopy(uct_nprdma_rma_md(iface)) &&
           uct_nprdma_key_covers(rkey, address, length);
}


/* Continue slices and small operations that lacked resources, redo and
 * verification first. Large operations of the endpoint may post again. */
unsigned uct_nprdma_op_progress(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_rma_t *rma);


/* 1 or 0, an index */
static inline int uct_nprdma_op_is_large(const uct_nprdma_rma_iface_t *iface,
                                         size_t length)
{
    return length > iface->res->ops.prio_max;
}


/* Let large operations of all endpoints post their next slices, as the quota
 * and the resources allow */
unsigned uct_nprdma_op_run(uct_nprdma_rma_iface_t *iface);


/* Begin a call of progress, with a quota of its own */
void uct_nprdma_op_begin(uct_nprdma_rma_iface_t *iface);


/* The target's software, not the NIC, has a slice now: it does not count in the
 * quota */
void uct_nprdma_op_slice_leaves_nic(uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_op_slice_t *slice);

void uct_nprdma_op_slice_returns_to_nic(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_op_slice_t *slice);


/* Whether uct_nprdma_op_progress() has to be called again */
static inline int uct_nprdma_op_is_stalled(uct_nprdma_op_ep_t *ops)
{
    return !ucs_list_is_empty(&ops->unsliced) || ops->sched.is_blocked ||
           !ucs_queue_is_empty(&ops->todo[0]) ||
           !ucs_queue_is_empty(&ops->todo[1]);
}


static inline int uct_nprdma_op_has_op(const uct_nprdma_op_iface_t *iface,
                                       const uct_nprdma_op_ep_t *ops,
                                       int is_large)
{
    return uct_nprdma_credits_admit(&iface->credits, ops->num_ops[is_large], 0,
                                    is_large);
}


/* Allocate an operation without a slot, if the endpoint may have one more */
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

    uct_nprdma_credits_take(&ops->credits, is_large);
    ++rma->ops.num_ops[is_large];
    op = ucs_list_extract_head(&ops->free_ops, uct_nprdma_op_t, list);
    op->rma            = rma;
    op->comp           = comp;
    op->status         = UCS_OK;
    op->is_request     = 0;
    op->is_get         = is_get;
    op->is_large       = is_large;
    op->has_prefetch   = 0;
    op->rkey           = *rkey;
    op->address        = remote_addr;
    op->slot           = NULL;
    op->piece          = 0;
    op->offset         = 0;
    return op;
}


/* Start an operation of ops.order, not a request, that waits for no other */
void uct_nprdma_op_release(uct_nprdma_rma_iface_t *iface,
                           uct_nprdma_op_t *op);


/* A held request, without a completion, has been sent without a reply of its
 * own. Its sequence number now shows when it is executed. */
void uct_nprdma_op_sent(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_op_t *op);


/* Complete an operation that is verified as a whole, or has failed. The
 * completion is called last, because it may destroy the endpoint. */
void uct_nprdma_op_complete(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_op_t *op);


/* Forget what a failed endpoint has still to post. No slice of it continues, or
 * starts, after that. */
void uct_nprdma_op_stop(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma);


/* Complete all operations of an endpoint with rma->status. They have no
 * outstanding WR and wait for no reply. The caller has called
 * uct_nprdma_op_stop() and uct_nprdma_rma_enter(). */
void uct_nprdma_op_purge(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_t *rma);


/* End a slice that is verified, copied, or has failed. The call frees it, and
 * may also free its operation, its endpoint and other objects of the user. */
void uct_nprdma_op_slice_end(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_op_slice_t *slice,
                             ucs_status_t status);


/* What was found absent, for the probe "suspect" */
enum {
    UCT_NPRDMA_OP_SUSPECT_LINES  = 1,
    UCT_NPRDMA_OP_SUSPECT_STATES = 2,
    UCT_NPRDMA_OP_SUSPECT_LOCAL  = 3
};

/* What the target does, for the probe "assist" */
enum {
    UCT_NPRDMA_OP_ASSIST_POPULATE = 1,
    UCT_NPRDMA_OP_ASSIST_COPY     = 2,
    UCT_NPRDMA_OP_ASSIST_FETCH    = 3
};


/* Start a slice. Its op, address, buffer, length and piece are set. */
void uct_nprdma_op_slice_start(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_op_slice_t *slice);

/* Execute the steps of a slice until it has to wait */
void uct_nprdma_op_slice_run(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_op_slice_t *slice);

#endif
