/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_FLUSH_H_
#define UCT_NPRDMA_RMA_FLUSH_H_

#include "nprdma_rma_types.h"

/* Flush, fence and messages wait for earlier operations (ARCHITECTURE 3) */

typedef struct uct_nprdma_rma_flush uct_nprdma_rma_flush_t;

/* Everything that was posted before a flush is done. The status may be the
 * first error of a request without a completion, or the reason why the
 * connection failed. */
typedef void (*uct_nprdma_rma_flush_func_t)(uct_nprdma_rma_iface_t *iface,
                                            uct_nprdma_rma_ep_t *ep,
                                            uct_nprdma_rma_flush_t *flush,
                                            ucs_status_t status);

/* A flush in progress; embedded in the caller's object. The caller sets func */
struct uct_nprdma_rma_flush {
    ucs_queue_elem_t            queue;
    uct_nprdma_rma_flush_func_t func;
    uint32_t                    sn;   /* Last request that it waits for */
    uint64_t                    op;   /* Last operation that it waits for */
};


int uct_nprdma_rma_is_idle(const uct_nprdma_rma_ep_t *ep);

/* Whether operations are not verified or not sent. Then even requests to the
 * service might overtake them. */
int uct_nprdma_rma_is_unordered(const uct_nprdma_rma_ep_t *ep);

/* Whether uct_nprdma_rma_flush() has an error to report */
int uct_nprdma_rma_has_error(const uct_nprdma_rma_ep_t *ep);

/* Call `flush` when all operations of an endpoint are done; NULL: no call, but
 * the target is asked for an acknowledgement. UCS_OK: nothing is outstanding.
 * UCS_ERR_IO_ERROR: the connection fails. Another error than
 * UCS_ERR_NO_RESOURCE is the first one of a request without completion; then
 * nothing is outstanding. */
ucs_status_t uct_nprdma_rma_flush(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_rma_ep_t *ep,
                                  uct_nprdma_rma_flush_t *flush);

/* Call uct_nprdma_net_ep_unfence() as soon as all operations posted up to now
 * are done. If resources are missing, progress asks the target later. */
ucs_status_t uct_nprdma_rma_fence(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_rma_ep_t *ep);


/* Slow path of uct_nprdma_rma_check(): there is a flush or a fence, or the
 * endpoint is destroyed */
void uct_nprdma_rma_check_slow(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma);

/* Operations or requests are done: end the flushes and fences that waited for
 * them, and dispatch pending requests */
static inline void
uct_nprdma_rma_check(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    if (ucs_likely((rma->ep != NULL) && !rma->is_fenced &&
                   ucs_queue_is_empty(&rma->flushes))) {
        uct_nprdma_net_ep_schedule(&iface->net, &rma->ep->net);
    } else {
        uct_nprdma_rma_check_slow(iface, rma);
    }
}


/*
 * Order of active messages behind earlier puts and atomics of their endpoint
 * (ARCHITECTURE 3, messages). They travel on another queue pair than requests,
 * and the NIC executes large puts, which may be repeated.
 *
 * A message waits here for operations of ops.order. It does not wait for
 * requests that have been sent: it carries their number, and the peer delivers
 * it behind them. The peer keeps such a message while they wait for a page, so
 * their number is bounded: after UCT_NPRDMA_RMA_MAX_BEHIND of them the peer is
 * asked for an acknowledgement, and after as many more it is awaited.
 */
#define UCT_NPRDMA_RMA_MAX_BEHIND  32u


/* Whether a message may be sent, behind *follows_p requests. Called only if
 * UCT_NPRDMA_EP_BEHIND is set, which this function clears when there is nothing
 * to wait for. Zero: try again when operations are done. */
int uct_nprdma_rma_admit_message(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_ep_t *ep, uint64_t *follows_p);

#endif
