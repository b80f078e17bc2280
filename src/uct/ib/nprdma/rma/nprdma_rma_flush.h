/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_FLUSH_H_
#define UCT_NPRDMA_RMA_FLUSH_H_

#include "nprdma_rma_types.h"

/*
 * Flush and fence: what waits for all operations before it.
 */

/** @return Nonzero if all operations of an endpoint are done. */
int uct_nprdma_rma_is_idle(const uct_nprdma_rma_ep_t *ep);

/**
 * @return Nonzero if operations of an endpoint are not verified, or not sent:
 *         then even requests to its service might overtake them.
 */
int uct_nprdma_rma_is_unordered(const uct_nprdma_rma_ep_t *ep);

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


/** What uct_nprdma_rma_check() does where somebody may wait. */
void uct_nprdma_rma_check_slow(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma);

/**
 * Something that flushes and fences may wait for is done: tell those that wait
 * for no more.
 */
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

#endif
