/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_H_
#define UCT_NPRDMA_RMA_H_

#include "nprdma_rma_iface.h"

/*
 * The initiator's side of put, get and atomics of an endpoint, on its
 * connection of kind SVC: requests to the target's software, and optimistic
 * operations (nprdma_opt.h), which the NIC does.
 *
 * Requests are numbered per connection and the target executes them in order.
 * A request that returns something, or that somebody waits for, has a receive
 * posted for its reply before it is sent. So a reply never waits for the
 * initiator, and two peers that flood each other cannot block each other. A
 * reply also acknowledges all requests before it; stores have no reply of
 * their own, a flush asks for one.
 *
 * Slots to send from and to receive replies in belong to the RMA side of the
 * interface alone: active messages that a slow peer does not take cannot hold
 * it up.
 */

/* Receives for replies that all connections of an interface have posted, at
 * most; its receive CQ must have room for them */
#define UCT_NPRDMA_RMA_MAX_REPLIES  256

typedef struct uct_nprdma_rma_flush uct_nprdma_rma_flush_t;

/**
 * Called when everything that was posted before a flush is done.
 *
 * @param [in] status  UCS_OK, or the first error of a request that had no
 *                     completion of its own to report it, or why the
 *                     connection failed.
 */
typedef void (*uct_nprdma_rma_flush_func_t)(uct_nprdma_rma_iface_t *iface,
                                            uct_nprdma_rma_ep_t *ep,
                                            uct_nprdma_rma_flush_t *flush,
                                            ucs_status_t status);

/* A flush in progress; embedded in the caller's, who fills func */
struct uct_nprdma_rma_flush {
    ucs_queue_elem_t            queue;
    uct_nprdma_rma_flush_func_t func;
    uint32_t                    sn;   /* Last request that it waits for, */
    uint64_t                    op;   /* and last operation */
};

/**
 * Called when everything of an endpoint that has failed is complete, and the
 * NIC has left the memory of the user.
 */
typedef void (*uct_nprdma_rma_failed_func_t)(uct_nprdma_rma_iface_t *iface,
                                             uct_nprdma_rma_ep_t *ep);


/** Release what the RMA side of an interface has allocated. */
void uct_nprdma_rma_res_cleanup(uct_nprdma_rma_iface_t *iface);

/** Fill the capabilities of put, get and atomics of an interface. */
void uct_nprdma_rma_query(uct_nprdma_rma_iface_t *iface,
                          uct_iface_attr_t *attr);

/**
 * Go on with large operations that had run out of resources.
 *
 * @return Number of requests sent.
 */
unsigned uct_nprdma_rma_progress(uct_nprdma_rma_iface_t *iface);

/**
 * An endpoint goes away, its SVC connection does not receive any more.
 * Operations that are still outstanding complete with UCS_ERR_CANCELED.
 */
void uct_nprdma_rma_ep_cleanup(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_ep_t *ep);

/**
 * The SVC connection of an endpoint has failed and does not receive any more:
 * complete everything that is outstanding, as soon as the NIC has left the
 * memory of the user, that is when all WRs of the connection are out.
 *
 * @param [in] failed  Called after that, if that is not at once; or NULL.
 *
 * @return UCS_OK: everything is complete; or UCS_INPROGRESS.
 */
ucs_status_t
uct_nprdma_rma_ep_fail(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_ep_t *ep,
                       ucs_status_t status,
                       uct_nprdma_rma_failed_func_t failed);

/** @return Nonzero if all operations of an endpoint are done. */
int uct_nprdma_rma_is_idle(const uct_nprdma_rma_ep_t *ep);

/**
 * @return Nonzero if operations of an endpoint are not verified, or not sent:
 *         then even requests to its service might overtake them.
 */
int uct_nprdma_rma_is_unordered(const uct_nprdma_rma_ep_t *ep);

/**
 * Before going to sleep: try again what lacked resources, as some may have come
 * back since it was tried last. What still lacks them waits for something that
 * makes an event: a completion, a reply, the end of wire-up. Calls nobody back.
 *
 * @return Nonzero if something of it went on: then progress has work to do.
 */
int uct_nprdma_rma_retry(uct_nprdma_rma_iface_t *iface);

/** @return Nonzero if uct_nprdma_rma_flush() has an error to tell. */
int uct_nprdma_rma_has_error(const uct_nprdma_rma_ep_t *ep);

/**
 * Wait for all requests of an endpoint.
 *
 * @param [in] iface  Interface.
 * @param [in] ep     Endpoint.
 * @param [in] flush  Called back; NULL if nobody waits, but the target should
 *                    be asked.
 *
 * @return UCS_OK: nothing is outstanding; UCS_INPROGRESS: will be called back;
 *         UCS_ERR_NO_RESOURCE: try again later; another error is the first one
 *         of a request that could not report it, none of them outstanding.
 */
ucs_status_t uct_nprdma_rma_flush(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_rma_ep_t *ep,
                                  uct_nprdma_rma_flush_t *flush);

/**
 * Call uct_nprdma_net_ep_unfence() as soon as all operations posted up to now
 * are done. Never refuses: asks the target when it can.
 *
 * @return UCS_OK.
 */
ucs_status_t uct_nprdma_rma_fence(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_rma_ep_t *ep);

/**
 * Build the last message of the SVC connection.
 *
 * @param [in]  ep   Endpoint.
 * @param [out] buf  UCT_NPRDMA_FIN_MAX bytes.
 *
 * @return Bytes to send.
 */
size_t uct_nprdma_rma_build_fin(uct_nprdma_rma_ep_t *ep, void *buf);


ucs_status_t uct_nprdma_ep_put_short(uct_ep_h tl_ep, const void *buffer,
                                     unsigned length, uint64_t remote_addr,
                                     uct_rkey_t rkey);

ssize_t uct_nprdma_ep_put_bcopy(uct_ep_h tl_ep, uct_pack_callback_t pack_cb,
                                void *arg, uint64_t remote_addr,
                                uct_rkey_t rkey);

ucs_status_t uct_nprdma_ep_put_zcopy(uct_ep_h tl_ep, const uct_iov_t *iov,
                                     size_t iovcnt, uint64_t remote_addr,
                                     uct_rkey_t rkey, uct_completion_t *comp);

ucs_status_t uct_nprdma_ep_get_bcopy(uct_ep_h tl_ep,
                                     uct_unpack_callback_t unpack_cb, void *arg,
                                     size_t length, uint64_t remote_addr,
                                     uct_rkey_t rkey, uct_completion_t *comp);

ucs_status_t uct_nprdma_ep_get_zcopy(uct_ep_h tl_ep, const uct_iov_t *iov,
                                     size_t iovcnt, uint64_t remote_addr,
                                     uct_rkey_t rkey, uct_completion_t *comp);

ucs_status_t uct_nprdma_ep_atomic32_post(uct_ep_h tl_ep, unsigned opcode,
                                         uint32_t value, uint64_t remote_addr,
                                         uct_rkey_t rkey);

ucs_status_t uct_nprdma_ep_atomic64_post(uct_ep_h tl_ep, unsigned opcode,
                                         uint64_t value, uint64_t remote_addr,
                                         uct_rkey_t rkey);

ucs_status_t uct_nprdma_ep_atomic32_fetch(uct_ep_h tl_ep,
                                          uct_atomic_op_t opcode,
                                          uint32_t value, uint32_t *result,
                                          uint64_t remote_addr, uct_rkey_t rkey,
                                          uct_completion_t *comp);

ucs_status_t uct_nprdma_ep_atomic64_fetch(uct_ep_h tl_ep,
                                          uct_atomic_op_t opcode,
                                          uint64_t value, uint64_t *result,
                                          uint64_t remote_addr, uct_rkey_t rkey,
                                          uct_completion_t *comp);

ucs_status_t uct_nprdma_ep_atomic_cswap32(uct_ep_h tl_ep, uint32_t compare,
                                          uint32_t swap, uint64_t remote_addr,
                                          uct_rkey_t rkey, uint32_t *result,
                                          uct_completion_t *comp);

ucs_status_t uct_nprdma_ep_atomic_cswap64(uct_ep_h tl_ep, uint64_t compare,
                                          uint64_t swap, uint64_t remote_addr,
                                          uct_rkey_t rkey, uint64_t *result,
                                          uct_completion_t *comp);

#endif
