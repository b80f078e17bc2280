/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_INITIATOR_H_
#define UCT_NPRDMA_INITIATOR_H_

#include "nprdma_rma_req.h"

/* The initiator's side of an interface and of an endpoint as a whole: start of
 * operations, progress, and the end */

void uct_nprdma_rma_res_cleanup(uct_nprdma_rma_iface_t *iface);


/* Slow path of uct_nprdma_rma_begin(): the endpoint is not ready */
ucs_status_t uct_nprdma_rma_begin_slow(uct_nprdma_rma_iface_t *iface,
                                       uct_nprdma_rma_ep_t *ep,
                                       uint32_t blocked);

/* Make sure that the endpoint has a connection on which one more request, or an
 * optimistic operation, may be posted. `blocked` is UCT_NPRDMA_EP_BLOCK_xx of
 * the operation. */
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

    if (ucs_likely(uct_nprdma_rma_admit_post(iface, ep->rma))) {
        return UCS_OK;
    }

    ++iface->net.stats->no_resource;
    return UCS_ERR_NO_RESOURCE;
}


/* Whether the NIC has slices of large operations, or will get some. Where the
 * CPU is the NIC, a call of progress takes as long as them. */
static inline int uct_nprdma_rma_has_slices(const uct_nprdma_rma_iface_t *iface)
{
    const uct_nprdma_rma_res_t *res = iface->res;

    return (res != NULL) && ((res->ops.sched.in_flight > 0) ||
                             uct_nprdma_sched_has_work(&res->ops.sched));
}


/* Whether uct_nprdma_rma_progress() may have work. iface->res is not NULL. */
static inline int uct_nprdma_rma_has_work(const uct_nprdma_rma_iface_t *iface)
{
    uct_nprdma_rma_res_t *res = iface->res;

    return (res->num_free_replies < UCT_NPRDMA_RMA_MAX_REPLIES) ||
           !ucs_list_is_empty(&res->stalled) ||
           uct_nprdma_sched_has_work(&res->ops.sched);
}

/* Continue operations that lacked resources, and watch peers that owe a
 * reply */
unsigned uct_nprdma_rma_progress(uct_nprdma_rma_iface_t *iface);

/* Try operations that lacked resources once more before the caller sleeps,
 * because resources may have come back since the last try. An operation that
 * still lacks them waits for an event: a completion, a reply, or the end of
 * wire-up. Calls no callback. Nonzero if an operation continued: then progress
 * has work. */
int uct_nprdma_rma_retry(uct_nprdma_rma_iface_t *iface);

/* The endpoint is being destroyed and its connections receive no more.
 * Outstanding operations complete with UCS_ERR_CANCELED. */
void uct_nprdma_rma_ep_cleanup(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_ep_t *ep);

/* The connections of an endpoint have been stopped. Complete all outstanding
 * operations when the NIC no longer accesses the user's memory, which is when
 * all WRs of SVC and of BULK are done (ARCHITECTURE 3, failure of a peer).
 * After UCS_INPROGRESS `failed` is called then, unless it is NULL. */
ucs_status_t
uct_nprdma_rma_ep_fail(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_ep_t *ep,
                       ucs_status_t status,
                       uct_nprdma_rma_failed_func_t failed);

/* Build the last message of the SVC connection, of UCT_NPRDMA_FIN_MAX bytes at
 * most */
size_t uct_nprdma_rma_build_fin(uct_nprdma_rma_ep_t *ep, void *buf);

#endif
