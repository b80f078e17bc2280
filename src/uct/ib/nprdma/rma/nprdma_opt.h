/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_OPT_H_
#define UCT_NPRDMA_OPT_H_

#include "nprdma_rma_types.h"

/*
 * Optimistic operations: get and large put, done by the NIC in pages that
 * software hopes to be there, and verified (ARCHITECTURE 3). An operation is
 * done in slices. A slice is tried until it is verified, or until it has been
 * tried often enough: then software copies it.
 *
 * Here are the operations; nprdma_opt_slice has the life of a slice.
 */

/**
 * @param [in]  iface  Interface, whose MD has the configuration.
 * @param [out] opt    To be given to uct_nprdma_opt_iface_cleanup().
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t uct_nprdma_opt_iface_init(uct_nprdma_rma_iface_t *iface,
                                       uct_nprdma_opt_iface_t *opt);

/** Nothing of it may be under way any more. */
void uct_nprdma_opt_iface_cleanup(uct_nprdma_opt_iface_t *opt);

/**
 * An endpoint without operations; needs no cleanup.
 *
 * @param [in] is_strict  Atomics wait for all operations before them.
 */
void uct_nprdma_opt_ep_init(uct_nprdma_opt_ep_t *opt, int is_strict);


/**
 * Start get_bcopy. Arguments as of uct_ep_get_bcopy(), length at least 1 and at
 * most UCT_NPRDMA_SVC_MAX_PAYLOAD, rkey one that uct_nprdma_opt_can_get()
 * allows. Posting is possible: see uct_nprdma_rma_begin().
 *
 * @return UCS_INPROGRESS or UCS_ERR_NO_RESOURCE.
 */
ucs_status_t
uct_nprdma_opt_get_bcopy(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_t *rma,
                         uct_unpack_callback_t unpack_cb, void *arg,
                         size_t length, uint64_t remote_addr,
                         const uct_nprdma_rkey_t *rkey, uct_completion_t *comp);


/**
 * Start get_zcopy or put_zcopy; without a way for the NIC software copies.
 * Arguments as of uct_ep_get_zcopy(), not all of the buffers empty. Posting is
 * possible: see uct_nprdma_rma_begin().
 *
 * @return UCS_INPROGRESS or UCS_ERR_NO_RESOURCE.
 */
ucs_status_t
uct_nprdma_opt_zcopy(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                     int is_get, const uct_iov_t *iov, size_t iovcnt,
                     uint64_t remote_addr, const uct_nprdma_rkey_t *rkey,
                     uct_completion_t *comp);


/** @return Nonzero if the NIC can get from a range. */
static inline int uct_nprdma_opt_can_get(uct_nprdma_rma_iface_t *iface,
                                         const uct_nprdma_rkey_t *rkey,
                                         uint64_t address, size_t length)
{
    return (rkey->r_rkey != 0) &&
           (uct_nprdma_rma_md(iface)->monitor != NULL) &&
           uct_nprdma_key_covers(rkey, address, length);
}


/**
 * Go on with what lacked resources: redo and verification first.
 *
 * @return Number of slices that went on.
 */
unsigned uct_nprdma_opt_progress(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma);


/** @return Nonzero if uct_nprdma_opt_progress() is to be called again. */
static inline int uct_nprdma_opt_is_stalled(uct_nprdma_opt_ep_t *opt)
{
    return !ucs_list_is_empty(&opt->unsliced) ||
           !ucs_queue_is_empty(&opt->todo);
}


/**
 * @return Nonzero if an endpoint may have one more operation: as with slots,
 *         the more it has the more must be left.
 */
static inline int uct_nprdma_opt_has_op(const uct_nprdma_opt_iface_t *iface,
                                        const uct_nprdma_opt_ep_t *opt)
{
    return opt->num_ops < 2 * iface->num_free_ops;
}


/**
 * Take an operation, if the endpoint may have one more.
 *
 * @return The operation, without a slot, or NULL: later.
 */
uct_nprdma_opt_op_t *
uct_nprdma_opt_op_new(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                      int is_get, uint64_t remote_addr,
                      const uct_nprdma_rkey_t *rkey, uct_completion_t *comp);


/** An operation that was held need not wait any more. It is no request. */
void uct_nprdma_opt_op_release(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_opt_op_t *op);


/**
 * A request that was held has been sent without a reply of its own: from now on
 * the number of the request stands for it. It has no completion.
 */
void uct_nprdma_opt_op_sent(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_opt_op_t *op);


/**
 * An operation is verified whole, or has failed. The completion is called
 * last: it may destroy the endpoint.
 */
void uct_nprdma_opt_op_complete(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_opt_op_t *op);


/**
 * Complete all operations of an endpoint with rma->status. No WR of theirs is
 * outstanding, no reply awaited. The caller holds the RMA side of the endpoint
 * (uct_nprdma_rma_enter()).
 */
void uct_nprdma_opt_purge(uct_nprdma_rma_iface_t *iface,
                          uct_nprdma_rma_t *rma);


/**
 * A slice is verified, copied, or has failed. It is free afterwards, and so may
 * be its operation, its endpoint and whatever else the user had.
 */
void uct_nprdma_opt_slice_end(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_opt_slice_t *slice,
                              ucs_status_t status);

#endif
