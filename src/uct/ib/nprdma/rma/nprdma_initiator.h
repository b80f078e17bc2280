/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_INITIATOR_H_
#define UCT_NPRDMA_INITIATOR_H_

#include "nprdma_rma_req.h"

/*
 * The initiator's side of an interface and of an endpoint as a whole: how
 * operations begin, progress, and the end.
 */

/** Release what the RMA side of an interface has allocated. */
void uct_nprdma_rma_res_cleanup(uct_nprdma_rma_iface_t *iface);


/** What uct_nprdma_rma_begin() does where the endpoint is not ready. */
ucs_status_t uct_nprdma_rma_begin_slow(uct_nprdma_rma_iface_t *iface,
                                       uct_nprdma_rma_ep_t *ep,
                                       uint32_t blocked);

/**
 * Begin an operation: make sure that the endpoint has a connection, and that
 * one more request, or an optimistic operation, may be posted on it.
 *
 * @param [in] blocked  What refuses it: UCT_NPRDMA_EP_BLOCK_xx of it.
 *
 * @return UCS_OK; UCS_ERR_NO_RESOURCE: later; or why it cannot be done at all.
 */
static inline ucs_status_t
uct_nprdma_rma_begin(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_ep_t *ep,
                     uint32_t blocked)
{
    ucs_status_t status;

    if (ucs_unlikely((ep->net.blocked & blocked) ||
                     (ep->net.svc.state != UCT_NPRDMA_CONN_CONNECTED))) {
        status = uct_nprdma_rma_begin_slow(iface, ep, blocked);
        if (status != UCS_OK) {
            return status;
        }
    }

    if (ucs_likely(uct_nprdma_rma_can_post(iface, ep->rma))) {
        return UCS_OK;
    }

    ++iface->net.stats.no_resource;
    return UCS_ERR_NO_RESOURCE;
}


/**
 * @return Nonzero if uct_nprdma_rma_progress() has something to look at. There
 *         is an RMA side.
 */
static inline int uct_nprdma_rma_has_work(const uct_nprdma_rma_iface_t *iface)
{
    uct_nprdma_rma_res_t *res = iface->res;

    return (res->num_free_waits < UCT_NPRDMA_RMA_MAX_REPLIES) ||
           !ucs_list_is_empty(&res->stalled);
}

/**
 * Go on with large operations that had run out of resources.
 *
 * @return Number of requests sent.
 */
unsigned uct_nprdma_rma_progress(uct_nprdma_rma_iface_t *iface);

/**
 * Before going to sleep: try again what lacked resources, as some may have come
 * back since it was tried last. What still lacks them waits for something that
 * makes an event: a completion, a reply, the end of wire-up. Calls nobody back.
 *
 * @return Nonzero if something of it went on: then progress has work to do.
 */
int uct_nprdma_rma_retry(uct_nprdma_rma_iface_t *iface);

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

/**
 * Build the last message of the SVC connection.
 *
 * @param [in]  ep   Endpoint.
 * @param [out] buf  UCT_NPRDMA_FIN_MAX bytes.
 *
 * @return Bytes to send.
 */
size_t uct_nprdma_rma_build_fin(uct_nprdma_rma_ep_t *ep, void *buf);

#endif
