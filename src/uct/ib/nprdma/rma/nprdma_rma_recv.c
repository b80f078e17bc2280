/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_recv.h"
#include "nprdma_held.h"
#include "nprdma_op_slice.h"
#include "nprdma_rma_error.h"
#include "nprdma_rma_flush.h"
#include "nprdma_rma_copy.h"
#include "nprdma_rma_req.h"
#include "nprdma_rma_reply.h"

#include "uct/ib/nprdma/net/nprdma_conn.h"


/* Handle a reply with reply->length bytes of payload, or an error: store the
 * data, and return the user's completion or NULL. Only the end of an operation
 * of nprdma_op.h calls the user itself. The function may change the status.
 * reply->failed is that of an earlier request without reply. */
typedef uct_completion_t *
(*uct_nprdma_rma_reply_func_t)(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_reply_t *reply, const void *data,
                               ucs_status_t *status);


static uct_completion_t *
uct_nprdma_rma_ack_reply(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_reply_t *reply, const void *data,
                         ucs_status_t *status)
{
    /* This request has no completion, so a flush reports its failure */
    if (ucs_unlikely((*status != UCS_OK) && (reply->failed == UCS_OK))) {
        reply->failed = *status;
    }
    return NULL;
}

static uct_completion_t *
uct_nprdma_rma_put_reply(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_reply_t *reply, const void *data,
                         ucs_status_t *status)
{
    return reply->comp;
}

static uct_completion_t *
uct_nprdma_rma_get_reply(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_reply_t *reply, const void *data,
                         ucs_status_t *status)
{
    if (*status == UCS_OK) {
        reply->bcopy.unpack_cb(reply->bcopy.arg, data, reply->length);
    }
    return reply->comp;
}

static uct_completion_t *
uct_nprdma_rma_atomic_reply(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_rma_reply_t *reply, const void *data,
                            ucs_status_t *status)
{
    if (*status == UCS_OK) {
        *status = uct_nprdma_local_copy(&iface->local, reply->result, data,
                                        reply->length, reply->result);
        if (ucs_unlikely(*status != UCS_OK)) {
            uct_nprdma_rma_report_local(iface, reply->rma, 1, reply->result,
                                        reply->length);
        }
    }
    return reply->comp;
}

static const uct_nprdma_rma_reply_func_t uct_nprdma_rma_replies[] = {
    [UCT_NPRDMA_RMA_ACK]      = uct_nprdma_rma_ack_reply,
    [UCT_NPRDMA_RMA_PUT]      = uct_nprdma_rma_put_reply,
    [UCT_NPRDMA_RMA_GET]      = uct_nprdma_rma_get_reply,
    [UCT_NPRDMA_RMA_ATOMIC]   = uct_nprdma_rma_atomic_reply,
    [UCT_NPRDMA_RMA_HELD]     = uct_nprdma_held_reply,
    [UCT_NPRDMA_RMA_COPY]     = uct_nprdma_rma_copy_reply,
    [UCT_NPRDMA_RMA_POPULATE] = uct_nprdma_op_populated
};

void uct_nprdma_rma_reply_done(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma,
                               uct_nprdma_rma_reply_t *reply, const void *data,
                               ucs_status_t status)
{
    uct_completion_t *comp;

    ucs_queue_pull_non_empty(&rma->replies);
    --rma->num_replies;
    comp = uct_nprdma_rma_replies[reply->kind](iface, reply, data, &status);
    if (ucs_unlikely(reply->failed != UCS_OK)) {
        rma->error = reply->failed;
    }
    ucs_trace_req("ep %p: request sn %u complete: %s", rma->ep, reply->sn,
                  ucs_status_string(status));
    uct_nprdma_rma_reply_free(iface->res, reply);
    if (comp != NULL) {
        uct_invoke_completion(comp, status);
    }
}

static void uct_nprdma_rma_malformed(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_conn_t *conn,
                                     const struct ibv_wc *wc)
{
    ucs_error("malformed reply of %u bytes on qp 0x%x, closing the connection",
              wc->byte_len, wc->qp_num);
    uct_nprdma_conn_fail(&iface->net, conn, UCS_ERR_IO_ERROR);
}

unsigned
uct_nprdma_rma_handle_reply(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_conn_t *conn, uint32_t index,
                            const struct ibv_wc *wc)
{
    uct_nprdma_rma_reply_t *reply = &iface->res->replies[index];
    uct_nprdma_rma_t *rma         = reply->rma;
    const uct_nprdma_svc_reply_t *header;

    /* A flushed receive is not a reply, and a late reply is discarded. After
     * the end of a connection, uct_nprdma_rma_ep_fail() or _cleanup() completes
     * the operations that waited for it. */
    if ((conn->ep == NULL) || (rma == NULL) ||
        (ucs_derived_of(conn->ep, uct_nprdma_rma_ep_t)->rma != rma) ||
        (rma->status != UCS_OK) || (wc->status != IBV_WC_SUCCESS)) {
        return 0;
    }

    /* No request is outstanding for a spare, so a reply to it is malformed */
    header = ucs_unlikely(reply == rma->spare) ? NULL :
            uct_nprdma_svc_reply_parse(reply->slot->data, wc->byte_len,
                                       reply->type, reply->sn, reply->length);
    if ((header == NULL) ||
        (reply != ucs_queue_head_elem_non_empty(&rma->replies,
                                                uct_nprdma_rma_reply_t,
                                                queue))) {
        uct_nprdma_rma_malformed(iface, conn, wc);
        return 0;
    }

    ++iface->net.stats->svc_replies;
    rma->done_sn = reply->sn;
    if (ucs_unlikely((header->failed_status | header->status) !=
                     UCT_NPRDMA_SVC_OK)) {
        reply->failed = uct_nprdma_svc_ucs_status(header->failed_status);
        uct_nprdma_rma_report_reply(iface, rma, reply, header->failed_sn,
                                    uct_nprdma_svc_ucs_status(header->status));
    }

    uct_nprdma_rma_enter(rma);
    if (ucs_unlikely(!ucs_list_is_empty(&rma->ops.unacked))) {
        uct_nprdma_held_acked(iface, rma);
    }
    uct_nprdma_rma_reply_done(iface, rma, reply, header + 1,
                              uct_nprdma_svc_ucs_status(header->status));
    uct_nprdma_rma_check(iface, rma);
    uct_nprdma_rma_leave(rma);
    return 1;
}
