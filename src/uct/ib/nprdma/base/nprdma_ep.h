/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_EP_H_
#define UCT_NPRDMA_EP_H_

#include "nprdma_iface.h"
#include "uct/ib/nprdma/net/nprdma_conn.h"

struct uct_nprdma_rma;

/* Why an endpoint refuses operations for now (or for good). */
enum {
    UCT_NPRDMA_EP_PENDING = 1 << 0, /* requests are queued: keep the order */
    UCT_NPRDMA_EP_FENCED  = 1 << 1, /* AM and optimistic RMA wait for the RMA
                                       before a fence */
    UCT_NPRDMA_EP_FAILED  = 1 << 2, /* error handler has been or will be told */
    UCT_NPRDMA_EP_FENCED_RMA = 1 << 3, /* requests to the service wait, too */
    UCT_NPRDMA_EP_DESTROYED  = 1 << 4, /* the user does not hear of it any
                                          more */

    UCT_NPRDMA_EP_BLOCK_AM  = UCT_NPRDMA_EP_PENDING | UCT_NPRDMA_EP_FENCED |
                              UCT_NPRDMA_EP_FAILED,
    UCT_NPRDMA_EP_BLOCK_RMA = UCT_NPRDMA_EP_PENDING | UCT_NPRDMA_EP_FAILED |
                              UCT_NPRDMA_EP_FENCED_RMA,
    UCT_NPRDMA_EP_BLOCK_OPT = UCT_NPRDMA_EP_BLOCK_AM
};

/* An endpoint: the way to one peer interface. */
typedef struct uct_nprdma_ep {
    uct_base_ep_t           super;
    uint32_t                blocked;    /* UCT_NPRDMA_EP_xx */
    ucs_status_t            status;     /* why FAILED */
    uct_nprdma_conn_t       am;         /* connected when ep is created */
    uct_nprdma_conn_t       svc;        /* on the first RMA or atomic */
    struct uct_nprdma_rma   *rma;       /* svc's state, see nprdma_rma.h; NULL
                                           until first needed */
    ucs_arbiter_group_t     arb_group;  /* pending requests */
    ucs_list_link_t         list;       /* iface->eps */
    uct_nprdma_longest_ep_t longest;    /* how long it has waited */
    uct_nprdma_dev_addr_t   dev_addr;   /* of the peer */
    uct_nprdma_iface_addr_t iface_addr;
} uct_nprdma_ep_t;


/**
 * Try the pending requests of an endpoint again at the next progress. To be
 * called whenever something that they may wait for has come back: connection
 * established, credits, replies, end of a fence, failure.
 */
static inline void
uct_nprdma_ep_schedule(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep)
{
    iface->tx.in_vain = 0;
    if (iface->tx.dispatching != ep) {
        ucs_arbiter_group_schedule(&iface->tx.arbiter, &ep->arb_group);
    }
}


/**
 * The fence of an endpoint has been reached: everything of the service
 * connection that was posted before it is done and verified.
 */
static inline void
uct_nprdma_ep_unfence(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep)
{
    ep->blocked &= ~(UCT_NPRDMA_EP_FENCED | UCT_NPRDMA_EP_FENCED_RMA);
    uct_nprdma_ep_schedule(iface, ep);
}


/**
 * Status of an operation on an endpoint that refuses it.
 *
 * @return The failure of the endpoint, else UCS_ERR_NO_RESOURCE.
 */
ucs_status_t uct_nprdma_ep_refusal(uct_nprdma_ep_t *ep);


/**
 * An endpoint cannot be used any more: fail both connections, and tell the
 * error handler, once. Never called from within an operation of the user, only
 * from progress.
 */
void uct_nprdma_ep_fail(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                        ucs_status_t status);


/**
 * Free endpoints that the user has destroyed, once their last WRs are done.
 *
 * @param [in] force  Even if those are not.
 */
void uct_nprdma_ep_reap(uct_nprdma_iface_t *iface, int force);


/** Arbiter callback: try one pending request; arg is the interface. */
ucs_arbiter_cb_result_t
uct_nprdma_ep_process_pending(ucs_arbiter_t *arbiter,
                              ucs_arbiter_group_t *group,
                              ucs_arbiter_elem_t *elem, void *arg);


/**
 * Post an operation without data, which fails if the peer is gone. Zero-length
 * put does this.
 *
 * @return UCS_OK, or as uct_nprdma_ep_refusal().
 */
ucs_status_t uct_nprdma_ep_post_nop(uct_nprdma_iface_t *iface,
                                    uct_nprdma_ep_t *ep);


UCS_CLASS_DECLARE_NEW_FUNC(uct_nprdma_ep_t, uct_ep_t, const uct_ep_params_t *);

/* The operations of uct_iface_ops_t. */

void uct_nprdma_ep_destroy(uct_ep_h tl_ep);

ucs_status_t uct_nprdma_ep_am_short(uct_ep_h tl_ep, uint8_t id, uint64_t header,
                                    const void *payload, unsigned length);

ucs_status_t uct_nprdma_ep_am_short_iov(uct_ep_h tl_ep, uint8_t id,
                                        const uct_iov_t *iov, size_t iovcnt);

ssize_t uct_nprdma_ep_am_bcopy(uct_ep_h tl_ep, uint8_t id,
                               uct_pack_callback_t pack_cb, void *arg,
                               unsigned flags);

ucs_status_t uct_nprdma_ep_am_zcopy(uct_ep_h tl_ep, uint8_t id,
                                    const void *header, unsigned header_length,
                                    const uct_iov_t *iov, size_t iovcnt,
                                    unsigned flags, uct_completion_t *comp);

ucs_status_t uct_nprdma_ep_pending_add(uct_ep_h tl_ep, uct_pending_req_t *req,
                                       unsigned flags);

void uct_nprdma_ep_pending_purge(uct_ep_h tl_ep,
                                 uct_pending_purge_callback_t cb, void *arg);

ucs_status_t uct_nprdma_ep_flush(uct_ep_h tl_ep, unsigned flags,
                                 uct_completion_t *comp);

ucs_status_t uct_nprdma_ep_fence(uct_ep_h tl_ep, unsigned flags);

ucs_status_t uct_nprdma_ep_check(uct_ep_h tl_ep, unsigned flags,
                                 uct_completion_t *comp);

/* Version-neutral: newer UCX passes a structure. */
ucs_status_t uct_nprdma_ep_invalidate(uct_ep_h tl_ep, unsigned flags);

#endif
