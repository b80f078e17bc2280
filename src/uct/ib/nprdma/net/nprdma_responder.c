/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_responder.h"
#include "nprdma_cm.h"
#include "nprdma_qp.h"
#include "nprdma_ud.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

KHASH_IMPL(uct_nprdma_responders, uint64_t, uct_nprdma_responder_t*, 1,
           kh_int64_hash_func, kh_int64_hash_equal)


/* Mix the id into the nonce. Two requesters may have the same key, of which
 * the second one gets no responder. */
static uint64_t uct_nprdma_responder_key(uint64_t nonce, uint32_t conn_id)
{
    return nonce ^ (conn_id * 0x9e3779b97f4a7c15ull);
}

static uct_nprdma_responder_t *
uct_nprdma_responder_get(khash_t(uct_nprdma_responders) *hash, uint64_t key)
{
    khiter_t iter = kh_get(uct_nprdma_responders, hash, key);

    return (iter == kh_end(hash)) ? NULL : kh_val(hash, iter);
}

/* The responder of a requester's connection */
static uct_nprdma_responder_t *
uct_nprdma_responder_find(uct_nprdma_net_iface_t *iface, uint64_t nonce,
                          uint32_t conn_id)
{
    uct_nprdma_responder_t *resp = uct_nprdma_responder_get(
            &iface->cm.responders, uct_nprdma_responder_key(nonce, conn_id));

    return ((resp != NULL) && (resp->nonce == nonce) &&
            (resp->conn_id == conn_id)) ? resp : NULL;
}

static void uct_nprdma_responder_unhash(khash_t(uct_nprdma_responders) *hash,
                                        uint64_t key)
{
    khiter_t iter = kh_get(uct_nprdma_responders, hash, key);

    if (iter != kh_end(hash)) {
        kh_del(uct_nprdma_responders, hash, iter);
    }
}

static int uct_nprdma_responder_hash(khash_t(uct_nprdma_responders) *hash,
                                     uint64_t key, uct_nprdma_responder_t *resp)
{
    khiter_t iter;
    int ret;

    iter = kh_put(uct_nprdma_responders, hash, key, &ret);
    if (ret < 0) {
        return 0;
    }
    kh_val(hash, iter) = resp;
    return 1;
}

/* Remove a responder from all tables */
static void uct_nprdma_responder_forget(uct_nprdma_net_iface_t *iface,
                                        uct_nprdma_responder_t *resp)
{
    uint64_t key = uct_nprdma_responder_key(resp->nonce, resp->conn_id);

    ucs_debug("iface %p: responder of connection 0x%x of 0x%" PRIx64
              " qpn 0x%x ends", iface, resp->conn_id, resp->nonce, resp->qpn);

    uct_nprdma_responder_unhash(&iface->cm.responders, key);
    --iface->stats->cm_responders;
    ucs_list_del(&resp->list);
    if (resp->probing) {
        --iface->cm.num_probes;
    }
}

static void uct_nprdma_responder_free(uct_nprdma_net_iface_t *iface,
                                      uct_nprdma_responder_t *resp)
{
    if (resp->qp != NULL) {
        /* Until now, progress may find messages that it has received */
        uct_nprdma_responder_unhash(&iface->cm.by_qpn, resp->qpn);
        uct_nprdma_net_dev(iface)->verbs->destroy_qp(resp->qp);
    }

    if (resp->svc != NULL) {
        iface->ops->svc_release(iface, resp->svc);
    }

    if (resp->executed != NULL) {
        if (!resp->executed->has_service) {
            uct_nprdma_executed_end(resp->executed);
        }
        uct_nprdma_executed_leave(resp->executed);
    }

    ucs_free(resp);
}

static void uct_nprdma_responder_destroy(uct_nprdma_net_iface_t *iface,
                                         uct_nprdma_responder_t *resp)
{
    uct_nprdma_responder_forget(iface, resp);
    uct_nprdma_responder_free(iface, resp);
}

/* End a responder. Destroying a QP removes its completions from the CQ, and
 * with them the buffers that came from the SRQ. Therefore progress first
 * receives all completions. */
static void uct_nprdma_responder_end(uct_nprdma_net_iface_t *iface,
                                     uct_nprdma_responder_t *resp)
{
    uct_nprdma_responder_forget(iface, resp);
    if (resp->qp == NULL) {
        uct_nprdma_responder_free(iface, resp);
        return;
    }

    uct_nprdma_qp_to_err(uct_nprdma_net_dev(iface), resp->qp);
    resp->is_dying = 1;
    ucs_list_add_tail(&iface->cm.dying, &resp->list);
    ++iface->cm.num_dying;
}

void uct_nprdma_responder_reap(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm = &iface->cm;
    uct_nprdma_responder_t *resp;

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    while (!ucs_list_is_empty(&cm->drained)) {
        resp = ucs_list_extract_head(&cm->drained, uct_nprdma_responder_t,
                                     list);
        --cm->num_dying;
        uct_nprdma_responder_free(iface, resp);
    }
    ucs_list_splice_tail(&cm->drained, &cm->dying);
    ucs_list_head_init(&cm->dying);
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
}

/* Have the service create the connection of kind SVC of an endpoint. Messages
 * on the connection of kind AM may have to wait for its requests, so the latter
 * has to exist before: a REQ that overtakes its REQ is repeated. A requester
 * without such messages may name none. */
static ucs_status_t
uct_nprdma_responder_connect_svc(uct_nprdma_net_iface_t *iface,
                                 uct_nprdma_responder_t *resp, uint32_t am_id)
{
    uct_nprdma_executed_t *executed = NULL;
    uct_nprdma_responder_t *am;
    ucs_status_t status;

    if (am_id != 0) {
        am = uct_nprdma_responder_find(iface, resp->nonce, am_id);
        if ((am == NULL) || (am->executed == NULL)) {
            return UCS_ERR_NO_RESOURCE;
        }
        executed = am->executed;
    }

    status = iface->ops->svc_accept(iface, &resp->peer, resp->psn, executed,
                                    &resp->svc, &resp->qpn);
    if ((status == UCS_OK) && (executed != NULL)) {
        executed->has_service = 1;
    }
    return status;
}

/* Create a connected QP, or have the service create it */
static ucs_status_t
uct_nprdma_responder_connect(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_responder_t *resp, uint32_t am_id)
{
    uct_nprdma_device_t *dev      = uct_nprdma_net_dev(iface);
    uct_nprdma_qp_params_t params = {};
    const uct_nprdma_path_config_t *path;
    ucs_status_t status;

    if (resp->kind == UCT_NPRDMA_CONN_SVC) {
        return uct_nprdma_responder_connect_svc(iface, resp, am_id);
    }

    if (resp->kind == UCT_NPRDMA_CONN_AM) {
        /* What a message makes the program write must not be undone */
        status = iface->ops->svc_settle(iface);
        if (status != UCS_OK) {
            return status;
        }

        resp->executed = uct_nprdma_executed_new();
        if (resp->executed == NULL) {
            return UCS_ERR_NO_MEMORY;
        }
    }

    params.send_cq     = iface->cm.cq;
    params.recv_cq     = iface->rx.cq;
    params.srq         = iface->rx.srq;
    params.max_send_wr = 1; /* for a probe */
    params.is_optional = resp->kind == UCT_NPRDMA_CONN_BULK;
    status             = uct_nprdma_qp_create(dev, iface->port_num, &params,
                                              &resp->qp, NULL);
    if (status != UCS_OK) {
        goto err_executed;
    }

    /* The data of gets are packets of this QP */
    path      = uct_nprdma_conn_path(dev, resp->kind);
    resp->qpn = resp->qp->qp_num;
    status    = uct_nprdma_qp_connect(dev, iface->port_num, resp->qp, resp->psn,
                                      &resp->peer, path,
                                      UCT_NPRDMA_RNR_FOREVER);
    if (status != UCS_OK) {
        goto err;
    }

    if (!uct_nprdma_responder_hash(&iface->cm.by_qpn, resp->qpn, resp)) {
        status = UCS_ERR_NO_MEMORY;
        goto err;
    }

    return UCS_OK;

err:
    dev->verbs->destroy_qp(resp->qp);
    resp->qp = NULL;
err_executed:
    if (resp->executed != NULL) {
        uct_nprdma_executed_leave(resp->executed);
    }
    return status;
}

static ucs_status_t
uct_nprdma_responder_create(uct_nprdma_net_iface_t *iface,
                            const uct_nprdma_cm_packet_t *packet,
                            uct_nprdma_responder_t **resp_p)
{
    uint64_t key = uct_nprdma_responder_key(packet->src_nonce,
                                            packet->conn_id);
    uct_nprdma_responder_t *resp;
    ucs_status_t status;

    if (uct_nprdma_responder_get(&iface->cm.responders, key) != NULL) {
        return UCS_ERR_BUSY;
    }

    resp = ucs_calloc(1, sizeof(*resp), "nprdma_responder");
    if (resp == NULL) {
        ucs_error("failed to allocate a responder");
        return UCS_ERR_NO_MEMORY;
    }

    resp->nonce    = packet->src_nonce;
    resp->conn_id  = packet->conn_id;
    resp->kind     = packet->kind;
    resp->ud_qpn   = packet->ud_qpn;
    resp->peer     = packet->qp;
    resp->psn      = rand_r(&iface->cm.rand_state) & 0xffffff;
    resp->interval = ucs_time_from_sec(iface->cm.config.retry_interval);
    resp->deadline = ucs_get_time() +
                     ucs_time_from_sec(iface->cm.config.timeout);
    status         = uct_nprdma_responder_connect(iface, resp,
                                                  packet->am_id);
    if (status != UCS_OK) {
        ucs_free(resp);
        return status;
    }

    ucs_list_add_tail(&iface->cm.unconfirmed, &resp->list);
    ++iface->stats->cm_responders;
    if (!uct_nprdma_responder_hash(&iface->cm.responders, key, resp)) {
        uct_nprdma_responder_destroy(iface, resp);
        return UCS_ERR_NO_MEMORY;
    }

    ++iface->stats->cm_accepted;
    ucs_debug("iface %p: accepted connection 0x%x of 0x%" PRIx64 " kind %u "
              "qpn 0x%x", iface, resp->conn_id, resp->nonce, resp->kind,
              resp->qpn);
    *resp_p = resp;
    return UCS_OK;
}

static void uct_nprdma_responder_send_rep(uct_nprdma_net_iface_t *iface,
                                          uct_nprdma_responder_t *resp)
{
    uct_nprdma_cm_packet_t packet = {
        .type      = UCT_NPRDMA_CM_REP,
        .kind      = resp->kind,
        .dst_nonce = resp->nonce,
        .conn_id   = resp->conn_id,
        .qp        = { .qpn = resp->qpn, .psn = resp->psn,
                       .dev = iface->dev_addr }
    };

    uct_nprdma_ud_send(iface, &resp->peer.dev, resp->ud_qpn, &packet);
    resp->next = uct_nprdma_cm_backoff(&iface->cm, &resp->interval);
    if (!resp->confirmed) {
        uct_nprdma_cm_start_timer(iface);
    }
}

static void uct_nprdma_responder_reject(uct_nprdma_net_iface_t *iface,
                                        const uct_nprdma_cm_packet_t *req,
                                        enum uct_nprdma_cm_reason reason)
{
    uct_nprdma_cm_packet_t packet = {
        .type      = UCT_NPRDMA_CM_REJ,
        .kind      = req->kind,
        .reason    = reason,
        .dst_nonce = req->src_nonce,
        .conn_id   = req->conn_id,
        .qp        = req->qp
    };

    uct_nprdma_ud_send(iface, &req->qp.dev, req->ud_qpn, &packet);
    ++iface->stats->cm_rejected;
}

void uct_nprdma_responder_req(uct_nprdma_net_iface_t *iface,
                              const uct_nprdma_cm_packet_t *packet)
{
    ucs_status_t status = UCS_OK;
    uct_nprdma_responder_t *resp;

    if (packet->dst_nonce != iface->iface_addr.nonce) {
        /* The packet is for an earlier interface with the same QPN */
        ++iface->stats->cm_stale;
        uct_nprdma_responder_reject(iface, packet, UCT_NPRDMA_CM_REASON_STALE);
        return;
    }

    resp = uct_nprdma_responder_find(iface, packet->src_nonce, packet->conn_id);
    if ((resp != NULL) &&
        ((resp->peer.qpn != packet->qp.qpn) ||
         (resp->peer.psn != packet->qp.psn))) {
        /* The requester uses the id again: what was lost is the FIN of the
         * connection before, or the RST */
        uct_nprdma_responder_end(iface, resp);
        resp = NULL;
    }

    if (resp == NULL) {
        status = uct_nprdma_responder_create(iface, packet, &resp);
    } else if (resp->kind != packet->kind) {
        status = UCS_ERR_INVALID_PARAM;
    }

    if (status == UCS_OK) {
        uct_nprdma_responder_send_rep(iface, resp);
    } else if (status != UCS_ERR_NO_RESOURCE) {
        uct_nprdma_responder_reject(iface, packet, UCT_NPRDMA_CM_REASON_NO_RES);
    } /* Else the REQ of kind AM is on its way, or an earlier put is being
       * executed: this one is repeated */
}

/* From now on probes tell whether its requester exists */
static void uct_nprdma_responder_set_confirmed(uct_nprdma_net_iface_t *iface,
                                               uct_nprdma_responder_t *resp)
{
    resp->confirmed = 1;
    ucs_list_del(&resp->list);
    ucs_list_add_tail(&iface->cm.confirmed, &resp->list);
}

void uct_nprdma_responder_confirm(uct_nprdma_net_iface_t *iface,
                                  const uct_nprdma_cm_packet_t *packet)
{
    uct_nprdma_responder_t *resp;

    resp = uct_nprdma_responder_find(iface, packet->src_nonce, packet->conn_id);
    if (resp == NULL) {
        return; /* ended already */
    }

    if (packet->type == UCT_NPRDMA_CM_RST) {
        uct_nprdma_responder_end(iface, resp);
    } else if (!resp->confirmed) {
        uct_nprdma_responder_set_confirmed(iface, resp);
    }
}

void uct_nprdma_responder_timer(uct_nprdma_net_iface_t *iface, ucs_time_t now)
{
    uct_nprdma_responder_t *resp, *tmp;

    ucs_list_for_each_safe(resp, tmp, &iface->cm.unconfirmed, list) {
        if (now > resp->deadline) {
            /* Each RTU may have been lost while the connection is used */
            uct_nprdma_responder_set_confirmed(iface, resp);
        } else if (now >= resp->next) {
            ++iface->stats->cm_retransmits;
            uct_nprdma_responder_send_rep(iface, resp);
        }
    }
}

/* A WRITE of zero bytes completes if the requester's QP exists. A responder
 * sends nothing else, so without it the end of a peer would not be noticed. */
static void uct_nprdma_responder_probe(uct_nprdma_net_iface_t *iface,
                                       uct_nprdma_responder_t *resp)
{
    struct ibv_send_wr wr = {
        .wr_id      = uct_nprdma_cm_wr_id_probe(resp->qpn),
        .opcode     = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED
    };
    struct ibv_send_wr *bad_wr;

    if (!resp->probing && (ibv_post_send(resp->qp, &wr, &bad_wr) == 0)) {
        resp->probing = 1;
        ++iface->stats->cm_probes;
        ++iface->cm.num_probes;
    }
}

/* Those that were asked longest ago come first: where many do not answer, they
 * do not keep the others from being asked. */
static void uct_nprdma_responder_probe_next(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm = &iface->cm;
    uct_nprdma_responder_t *resp;

    while ((cm->probes_due > 0) && !ucs_list_is_empty(&cm->confirmed) &&
           (cm->num_probes < UCT_NPRDMA_CM_MAX_PROBES)) {
        --cm->probes_due;
        resp = ucs_list_extract_head(&cm->confirmed, uct_nprdma_responder_t,
                                     list);
        ucs_list_add_tail(&cm->confirmed, &resp->list);
        if (resp->qp != NULL) {
            uct_nprdma_responder_probe(iface, resp);
        } else if (iface->ops->svc_is_closed(resp->svc)) {
            uct_nprdma_responder_destroy(iface, resp);
        } else {
            ++iface->stats->cm_probes;
            iface->ops->svc_probe(iface, resp->svc);
        }
    }
}

void uct_nprdma_responder_probe_all(uct_nprdma_net_iface_t *iface)
{
    iface->cm.probes_due = kh_size(&iface->cm.responders);
    uct_nprdma_responder_probe_next(iface);
}

void uct_nprdma_responder_probed(uct_nprdma_net_iface_t *iface,
                                 const struct ibv_wc *wc)
{
    uct_nprdma_responder_t *resp;

    resp = uct_nprdma_responder_get(&iface->cm.by_qpn,
                                    uct_nprdma_cm_wr_id_qpn(wc->wr_id));
    if ((resp != NULL) && resp->probing && !resp->is_dying) {
        resp->probing = 0;
        --iface->cm.num_probes;
        if (wc->status != IBV_WC_SUCCESS) {
            uct_nprdma_responder_end(iface, resp);
        }
    }
    uct_nprdma_responder_probe_next(iface);
}

void uct_nprdma_responder_fin(uct_nprdma_net_iface_t *iface, uint32_t qp_num)
{
    uct_nprdma_responder_t *resp;

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    resp = uct_nprdma_responder_get(&iface->cm.by_qpn, qp_num);
    if ((resp != NULL) && !resp->is_dying) {
        /* Only a conforming peer sends nothing after it, so the QP goes to
         * ERR */
        uct_nprdma_responder_end(iface, resp);
    }
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
}

uct_nprdma_executed_t *
uct_nprdma_responder_executed(uct_nprdma_net_iface_t *iface, uint32_t qp_num)
{
    uct_nprdma_executed_t *executed = NULL;
    uct_nprdma_responder_t *resp;

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    resp = uct_nprdma_responder_get(&iface->cm.by_qpn, qp_num);
    if ((resp != NULL) && (resp->executed != NULL)) {
        executed = resp->executed;
        uct_nprdma_executed_join(executed);
    }
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
    return executed;
}

void uct_nprdma_responder_init(uct_nprdma_net_iface_t *iface)
{
    kh_init_inplace(uct_nprdma_responders, &iface->cm.responders);
    kh_init_inplace(uct_nprdma_responders, &iface->cm.by_qpn);
    ucs_list_head_init(&iface->cm.unconfirmed);
    ucs_list_head_init(&iface->cm.confirmed);
    ucs_list_head_init(&iface->cm.dying);
    ucs_list_head_init(&iface->cm.drained);
}

void uct_nprdma_responder_cleanup(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_responder_t *resp;
    khiter_t iter;

    for (iter = kh_begin(&iface->cm.responders);
         iter != kh_end(&iface->cm.responders); ++iter) {
        if (kh_exist(&iface->cm.responders, iter)) {
            resp = kh_val(&iface->cm.responders, iter);
            uct_nprdma_responder_destroy(iface, resp);
        }
    }

    /* The SRQ is destroyed with the interface, so its buffers may be lost */
    while (iface->cm.num_dying > 0) {
        uct_nprdma_responder_reap(iface);
    }

    kh_destroy_inplace(uct_nprdma_responders, &iface->cm.responders);
    kh_destroy_inplace(uct_nprdma_responders, &iface->cm.by_qpn);
}
