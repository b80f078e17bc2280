/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_EP_H_
#define UCT_NPRDMA_EP_H_

#include "nprdma_iface.h"

/* An endpoint: the path to one interface of a peer */
typedef struct uct_nprdma_ep {
    union {
        uct_nprdma_rma_ep_t super;
        uct_nprdma_rma_ep_t rma;    /* the base class, named after its floor */
        uct_nprdma_net_ep_t net;    /* its base class */
    };
    ucs_list_link_t         flushes; /* that have not called the user */
    ucs_list_link_t         lacking; /* In iface->lacking, or alone */
} uct_nprdma_ep_t;


/* Fail all connections of an endpoint and call the error handler, once. Called
 * from progress only, never within an operation of the user. */
void uct_nprdma_ep_fail(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                        ucs_status_t status);


/* Free endpoints that the user has destroyed, when their last WRs are done or
 * by force */
void uct_nprdma_ep_reap(uct_nprdma_iface_t *iface, int force);


/* Refuse a message. If it lacks what endpoints share, the dispatcher knows that
 * puts and gets do not. */
static inline ucs_status_t
uct_nprdma_ep_refuse_am(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep)
{
    iface->am_lacks = iface->net.tx.starved;
    return uct_nprdma_net_ep_refusal(&ep->net);
}


/* Dispatch messages that lacked a slot or an entry of the send CQ: as many as
 * there are slots now, and one at least, because a pool may have grown */
void uct_nprdma_ep_try_lacking(uct_nprdma_iface_t *iface);


/* Callback of the arbiter: try one pending request; arg is the interface */
ucs_arbiter_cb_result_t
uct_nprdma_ep_process_pending(ucs_arbiter_t *arbiter,
                              ucs_arbiter_group_t *group,
                              ucs_arbiter_elem_t *elem, void *arg);


UCS_CLASS_DECLARE_NEW_FUNC(uct_nprdma_ep_t, uct_ep_t, const uct_ep_params_t *);

/* Functions of uct_iface_ops_t with the same names */

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
