/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_ud.h"
#include "nprdma_cm.h"
#include "nprdma_qp.h"
#include "nprdma_responder.h"


#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/time/time.h>

/* Any value; both sides use the same */
#define UCT_NPRDMA_CM_QKEY         0x4e505244

/* Receives, and maximum number of outgoing datagrams */
#define UCT_NPRDMA_CM_RX_LEN       64u
#define UCT_NPRDMA_CM_TX_LEN       32u

/* One page of slots is enough where pinned memory is short: a sender that finds
 * no slot repeats its packet */
#define UCT_NPRDMA_CM_MIN_SLOTS    20u

#define UCT_NPRDMA_CM_POLL_BATCH   16

/* Maximum number of address handles kept: foreign packets could name any number
 * of addresses. The oldest of more than UCT_NPRDMA_CM_TX_LEN is in no datagram
 * on its way. */
#define UCT_NPRDMA_CM_MAX_AHS      64

/* The kernel may take a second to find that nobody has an address, and the
 * async context is blocked meanwhile. It is asked again after that time
 * multiplied by this. */
#define UCT_NPRDMA_CM_AH_PAUSE     10

#define UCT_NPRDMA_CM_SLOT_SIZE    (UCT_NPRDMA_GRH_LEN + \
                                    sizeof(uct_nprdma_cm_packet_t))


static int uct_nprdma_dev_addr_equal(const uct_nprdma_dev_addr_t *a,
                                     const uct_nprdma_dev_addr_t *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static void uct_nprdma_ud_destroy_ah(uct_nprdma_net_iface_t *iface,
                                     uct_nprdma_cm_ah_t *entry)
{
    ucs_list_del(&entry->list);
    --iface->cm.num_ahs;
    if (entry->ah != NULL) {
        uct_nprdma_net_dev(iface)->verbs->destroy_ah(entry->ah);
    }
    ucs_free(entry);
}

static void uct_nprdma_ud_create_ah(uct_nprdma_net_iface_t *iface,
                                    uct_nprdma_cm_ah_t *entry)
{
    uct_nprdma_device_t *dev   = uct_nprdma_net_dev(iface);
    struct ibv_ah_attr ah_attr = {};
    ucs_time_t start           = ucs_get_time();
    ucs_time_t now;

    uct_nprdma_device_fill_ah_attr(dev, iface->port_num, &entry->dev_addr,
                                   &dev->config.path, &ah_attr);
    entry->ah = dev->verbs->create_ah(dev->pd, &ah_attr);
    if (entry->ah == NULL) {
        ucs_debug("%s: no address handle for lid %u: %m", dev->name,
                  entry->dev_addr.lid);
        now         = ucs_get_time();
        entry->next = now + UCT_NPRDMA_CM_AH_PAUSE * (now - start);
    }
}

static uct_nprdma_cm_ah_t *
uct_nprdma_ud_find_ah(uct_nprdma_net_iface_t *iface,
                      const uct_nprdma_dev_addr_t *dev_addr)
{
    uct_nprdma_cm_ah_t *entry;

    ucs_list_for_each(entry, &iface->cm.ahs, list) {
        if (uct_nprdma_dev_addr_equal(&entry->dev_addr, dev_addr)) {
            ucs_list_del(&entry->list);
            ucs_list_add_head(&iface->cm.ahs, &entry->list);
            return entry;
        }
    }

    if (iface->cm.num_ahs >= UCT_NPRDMA_CM_MAX_AHS) {
        uct_nprdma_ud_destroy_ah(iface, ucs_list_tail(&iface->cm.ahs,
                                                      uct_nprdma_cm_ah_t,
                                                      list));
    }

    entry = ucs_calloc(1, sizeof(*entry), "nprdma_ah");
    if (entry != NULL) {
        entry->dev_addr = *dev_addr;
        ucs_list_add_head(&iface->cm.ahs, &entry->list);
        ++iface->cm.num_ahs;
    }
    return entry;
}

static struct ibv_ah *
uct_nprdma_ud_get_ah(uct_nprdma_net_iface_t *iface,
                     const uct_nprdma_dev_addr_t *dev_addr)
{
    uct_nprdma_cm_ah_t *entry = uct_nprdma_ud_find_ah(iface, dev_addr);

    if (entry == NULL) {
        return NULL;
    }

    if ((entry->ah == NULL) && (ucs_get_time() >= entry->next)) {
        uct_nprdma_ud_create_ah(iface, entry);
    }
    return entry->ah;
}

static void uct_nprdma_ud_post_recv(uct_nprdma_net_iface_t *iface,
                                    uct_nprdma_slot_t *slot)
{
    struct ibv_sge sge    = {
        .addr   = (uintptr_t)slot->data,
        .length = slot->pool->slot_size,
        .lkey   = slot->lkey
    };
    struct ibv_recv_wr wr = {
        .wr_id   = (uintptr_t)slot,
        .sg_list = &sge,
        .num_sge = 1
    };
    struct ibv_recv_wr *bad_wr;
    int ret;

    ret = ibv_post_recv(iface->cm.qp, &wr, &bad_wr);
    if (ret != 0) {
        ucs_error("%s: failed to post a receive for wire-up: %s",
                  uct_nprdma_net_dev(iface)->name, strerror(ret));
        uct_nprdma_bounce_put(slot);
        return;
    }

    ++iface->cm.rx_posted;
}

void uct_nprdma_ud_send(uct_nprdma_net_iface_t *iface,
                        const uct_nprdma_dev_addr_t *dev_addr, uint32_t ud_qpn,
                        const uct_nprdma_cm_packet_t *packet)
{
    struct ibv_send_wr wr = {};
    uct_nprdma_cm_packet_t *full;
    struct ibv_send_wr *bad_wr;
    uct_nprdma_slot_t *slot;
    struct ibv_sge sge;
    int ret;

    if (iface->cm.broken || iface->cm.sq_error ||
        (iface->cm.tx_posted >= UCT_NPRDMA_CM_TX_LEN)) {
        return; /* The same as a loss on the wire */
    }

    wr.wr.ud.ah = uct_nprdma_ud_get_ah(iface, dev_addr);
    slot        = (wr.wr.ud.ah == NULL) ? NULL :
                  uct_nprdma_bounce_get(&iface->cm.pool);
    if (slot == NULL) {
        return;
    }

    full                 = (uct_nprdma_cm_packet_t*)slot->data;
    *full                = *packet;
    full->magic          = UCT_NPRDMA_CM_MAGIC;
    full->version        = UCT_NPRDMA_WIRE_VERSION;
    full->src_nonce      = iface->iface_addr.nonce;
    full->ud_qpn         = iface->iface_addr.ud_qpn;
    sge.addr             = (uintptr_t)full;
    sge.length           = sizeof(*full);
    sge.lkey             = slot->lkey;
    wr.wr_id             = uct_nprdma_cm_wr_id_send(slot);
    wr.sg_list           = &sge;
    wr.num_sge           = 1;
    wr.opcode            = IBV_WR_SEND;
    wr.send_flags        = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
    wr.wr.ud.remote_qpn  = ud_qpn;
    wr.wr.ud.remote_qkey = UCT_NPRDMA_CM_QKEY;
    ret = ibv_post_send(iface->cm.qp, &wr, &bad_wr);
    if (ret != 0) {
        ucs_diag("%s: failed to send a wire-up packet: %s",
                 uct_nprdma_net_dev(iface)->name, strerror(ret));
        uct_nprdma_bounce_put(slot);
        return;
    }

    ++iface->cm.tx_posted;
}

/* Bring the UD QP from RESET to RTS */
static ucs_status_t uct_nprdma_ud_start_qp(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);
    struct ibv_qp_attr attr  = {
        .port_num = iface->port_num,
        .qkey     = UCT_NPRDMA_CM_QKEY
    };
    struct {
        enum ibv_qp_state state;
        int               mask;
    } const steps[] = {
        {IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
        {IBV_QPS_RTR, 0},
        {IBV_QPS_RTS, IBV_QP_SQ_PSN}
    };
    unsigned i;
    int ret;

    for (i = 0; i < ucs_static_array_size(steps); ++i) {
        attr.qp_state = steps[i].state;
        ret           = dev->verbs->modify_qp(iface->cm.qp, &attr,
                                             IBV_QP_STATE | steps[i].mask);
        if (ret != 0) {
            ucs_error("%s: failed to bring the UD queue pair to state %d: %s",
                      dev->name, steps[i].state, strerror(ret));
            return UCS_ERR_IO_ERROR;
        }
    }

    return UCS_OK;
}

static void uct_nprdma_ud_fill_rq(uct_nprdma_net_iface_t *iface)
{
    unsigned i;

    for (i = iface->cm.rx_posted; i < iface->cm.rx_slots; ++i) {
        uct_nprdma_ud_post_recv(iface, uct_nprdma_bounce_get(&iface->cm.pool));
    }
}

/* Flush all posted WRs; uct_nprdma_ud_repair() then starts again */
static void uct_nprdma_ud_stop(uct_nprdma_net_iface_t *iface)
{
    if (!iface->cm.broken) {
        iface->cm.broken = 1;
        uct_nprdma_qp_to_err(uct_nprdma_net_dev(iface), iface->cm.qp);
    }
}

/* A packet that is too long for a receive moves a UD QP of some devices to ERR,
 * and any sender can send one */
static void uct_nprdma_ud_recv_failed(uct_nprdma_net_iface_t *iface,
                                      const struct ibv_wc *wc)
{
    if (wc->status != IBV_WC_WR_FLUSH_ERR) {
        ++iface->stats->cm_malformed;
        ucs_debug("iface %p: wire-up receive failed: work completion status %d",
                  iface, wc->status);
    }

    uct_nprdma_ud_stop(iface);
}

/* The send queue has stopped (IBA 10.3.1.7: SQE) and flushes all later sends
 * until the QP is moved back to RTS */
static void uct_nprdma_ud_send_failed(uct_nprdma_net_iface_t *iface,
                                      const struct ibv_wc *wc)
{
    iface->cm.sq_error = 1;
    if (wc->status == IBV_WC_WR_FLUSH_ERR) {
        return;
    }

    ++iface->stats->cm_failed;
    ucs_log((iface->stats->cm_failed == 1) ? UCS_LOG_LEVEL_WARN :
                                            UCS_LOG_LEVEL_DEBUG,
            "%s: failed to send a wire-up packet (work completion status %d); "
            "it will be repeated", uct_nprdma_net_dev(iface)->name,
            wc->status);
}

/* All sends have completed, so none is flushed any more: move the QP back to
 * RTS. A sender that needs an answer repeats the lost packet. */
static void uct_nprdma_ud_resume(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm     = &iface->cm;
    struct ibv_qp_attr attr = {
        .qp_state     = IBV_QPS_RTS,
        .cur_qp_state = IBV_QPS_SQE
    };
    int ret;

    if (cm->tx_posted > 0) {
        return;
    }

    cm->sq_error = 0;
    /* Some drivers do not see the change to SQE, so the attributes name that
     * state */
    ret = uct_nprdma_net_dev(iface)->verbs->modify_qp(
            cm->qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE);
    if (ret != 0) {
        ucs_debug("iface %p: failed to resume wire-up after a failed send: %s",
                  iface, strerror(ret));
        uct_nprdma_ud_stop(iface);
    }
}

static void uct_nprdma_ud_repair(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm     = &iface->cm;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

    if ((cm->rx_posted > 0) || (cm->tx_posted > 0)) {
        return;
    }

    if ((uct_nprdma_net_dev(iface)->verbs->modify_qp(cm->qp, &attr,
                                                      IBV_QP_STATE) != 0) ||
        (uct_nprdma_ud_start_qp(iface) != UCS_OK)) {
        ucs_error("%s: wire-up cannot be repaired: no more connections",
                  uct_nprdma_net_dev(iface)->name);
        cm->dead = 1;
        return;
    }

    cm->broken   = 0;
    cm->sq_error = 0;
    uct_nprdma_ud_fill_rq(iface);
}

static void uct_nprdma_ud_handle_wc(uct_nprdma_net_iface_t *iface,
                                    const struct ibv_wc *wc)
{
    uct_nprdma_slot_t *slot;

    if (uct_nprdma_cm_wr_id_is_probe(wc->wr_id)) {
        uct_nprdma_responder_probed(iface, wc);
        return;
    }

    slot = uct_nprdma_cm_wr_id_slot(wc->wr_id);
    if (uct_nprdma_cm_wr_id_is_send(wc->wr_id)) {
        --iface->cm.tx_posted;
        uct_nprdma_bounce_put(slot);
        if (ucs_unlikely(wc->status != IBV_WC_SUCCESS)) {
            uct_nprdma_ud_send_failed(iface, wc);
        }
        return;
    }

    --iface->cm.rx_posted;
    if (wc->status != IBV_WC_SUCCESS) {
        uct_nprdma_bounce_put(slot);
        uct_nprdma_ud_recv_failed(iface, wc);
        return;
    }

    uct_nprdma_cm_handle_packet(iface, slot->data + UCT_NPRDMA_GRH_LEN,
                                ucs_max(wc->byte_len, UCT_NPRDMA_GRH_LEN) -
                                UCT_NPRDMA_GRH_LEN);
    uct_nprdma_ud_post_recv(iface, slot);
}

unsigned uct_nprdma_ud_poll(uct_nprdma_net_iface_t *iface)
{
    struct ibv_wc wc[UCT_NPRDMA_CM_POLL_BATCH];
    unsigned count = 0;
    int i, num_wcs;

    do {
        num_wcs = ibv_poll_cq(iface->cm.cq, UCT_NPRDMA_CM_POLL_BATCH, wc);
        for (i = 0; i < num_wcs; ++i) {
            uct_nprdma_ud_handle_wc(iface, &wc[i]);
        }
        count += ucs_max(num_wcs, 0);
    } while (num_wcs == UCT_NPRDMA_CM_POLL_BATCH);

    if (ucs_unlikely(iface->cm.sq_error && !iface->cm.broken)) {
        uct_nprdma_ud_resume(iface);
    }
    if (ucs_unlikely(iface->cm.broken && !iface->cm.dead)) {
        uct_nprdma_ud_repair(iface);
    }

    return count;
}

static ucs_status_t uct_nprdma_ud_create_qp(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm               = &iface->cm;
    uct_nprdma_device_t *dev          = uct_nprdma_net_dev(iface);
    struct ibv_qp_init_attr init_attr = {};
    ucs_status_t status;

    init_attr.send_cq          = cm->cq;
    init_attr.recv_cq          = cm->cq;
    init_attr.qp_type          = IBV_QPT_UD;
    init_attr.cap.max_send_wr  = UCT_NPRDMA_CM_TX_LEN;
    init_attr.cap.max_recv_wr  = cm->rx_slots;
    init_attr.cap.max_send_sge = 1;
    init_attr.cap.max_recv_sge = 1;
    cm->qp = dev->verbs->create_qp(dev->pd, &init_attr);
    if (cm->qp == NULL) {
        ucs_error("%s: failed to create a UD queue pair for wire-up: %m",
                  dev->name);
        return UCS_ERR_IO_ERROR;
    }

    status = uct_nprdma_ud_start_qp(iface);
    if (status != UCS_OK) {
        dev->verbs->destroy_qp(cm->qp);
    }
    return status;
}

static ucs_status_t uct_nprdma_ud_create_cq(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm      = &iface->cm;
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);

    cm->channel = uct_nprdma_device_create_channel(dev);
    if (cm->channel == NULL) {
        return UCS_ERR_IO_ERROR;
    }

    cm->cq = dev->verbs->create_cq(dev->context,
                                  cm->rx_slots + UCT_NPRDMA_CM_TX_LEN +
                                  UCT_NPRDMA_CM_MAX_PROBES, iface, cm->channel,
                                  0);
    if (cm->cq == NULL) {
        ucs_error("%s: failed to create a completion queue for wire-up: %m",
                  dev->name);
        dev->verbs->destroy_comp_channel(cm->channel);
        return UCS_ERR_IO_ERROR;
    }

    return UCS_OK;
}

ucs_status_t uct_nprdma_ud_init(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm      = &iface->cm;
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);
    unsigned num_slots       = UCT_NPRDMA_CM_RX_LEN + UCT_NPRDMA_CM_TX_LEN;
    ucs_status_t status;

    ucs_list_head_init(&cm->ahs);
    status = uct_nprdma_bounce_init(&cm->pool, dev, UCT_NPRDMA_CM_SLOT_SIZE,
                                    num_slots, ucs_min(num_slots,
                                                       UCT_NPRDMA_CM_MIN_SLOTS),
                                    "wire-up");
    if (status != UCS_OK) {
        return status;
    }

    num_slots    = cm->pool.num_slots;
    cm->rx_slots = ucs_min(UCT_NPRDMA_CM_RX_LEN,
                           num_slots - ucs_min(num_slots / 2,
                                               UCT_NPRDMA_CM_TX_LEN));

    status = uct_nprdma_ud_create_cq(iface);
    if (status != UCS_OK) {
        goto err_pool;
    }

    status = uct_nprdma_ud_create_qp(iface);
    if (status != UCS_OK) {
        goto err_cq;
    }

    uct_nprdma_ud_fill_rq(iface);
    return UCS_OK;

err_cq:
    dev->verbs->destroy_cq(cm->cq);
    dev->verbs->destroy_comp_channel(cm->channel);
err_pool:
    uct_nprdma_bounce_cleanup(&cm->pool);
    return status;
}

void uct_nprdma_ud_cleanup(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_cm_t *cm      = &iface->cm;
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);
    uct_nprdma_cm_ah_t *ah, *tmp;

    dev->verbs->destroy_qp(cm->qp);
    ucs_list_for_each_safe(ah, tmp, &cm->ahs, list) {
        uct_nprdma_ud_destroy_ah(iface, ah);
    }
    dev->verbs->destroy_cq(cm->cq);
    dev->verbs->destroy_comp_channel(cm->channel);
    uct_nprdma_bounce_cleanup(&cm->pool);
}
