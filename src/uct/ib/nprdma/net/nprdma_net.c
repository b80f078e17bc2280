/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_net.h"
#include "nprdma_qp.h"

#include <ucs/debug/log.h>

#define UCT_NPRDMA_STAT_NAME(_name) #_name "\0"

static ucs_status_t
uct_nprdma_net_iface_open_counters(uct_nprdma_net_iface_t *iface,
                                   const uct_iface_params_t *params)
{
    static const char names[] = UCT_NPRDMA_FOREACH_STAT(UCT_NPRDMA_STAT_NAME);
    ucs_status_t status;

    status = uct_nprdma_counters_open(&iface->counters, NPRDMA_COUNTERS_IFACE,
                                      params->mode.device.dev_name, names,
                                      sizeof(names) - 1,
                                      sizeof(*iface->stats) / sizeof(uint64_t));
    if (status == UCS_OK) {
        iface->stats = iface->counters.values;
    }
    return status;
}

UCS_CLASS_INIT_FUNC(uct_nprdma_net_iface_t, const uct_nprdma_net_ops_t *ops,
                    uct_iface_ops_t *iface_ops,
                    uct_iface_internal_ops_t *internal_ops, uct_md_h md,
                    uct_worker_h worker, const uct_iface_params_t *params,
                    const uct_iface_config_t *config)
{
    UCS_CLASS_CALL_SUPER_INIT(uct_base_iface_t, iface_ops, internal_ops, md,
                              worker, params, config);

    self->ops       = ops;
    self->forked    = 0;
    self->conns     = NULL;
    self->num_conns = 0;
    self->last_free = UCT_NPRDMA_CONN_NO_INDEX;
    self->num_bulk  = 0;
    memset(&self->tx, 0, sizeof(self->tx));
    memset(&self->iface_addr, 0, sizeof(self->iface_addr));
    ucs_list_head_init(&self->eps);
    return uct_nprdma_net_iface_open_counters(self, params);
}

static UCS_CLASS_CLEANUP_FUNC(uct_nprdma_net_iface_t)
{
    uct_nprdma_counters_close(&self->counters);
}

UCS_CLASS_DEFINE(uct_nprdma_net_iface_t, uct_base_iface_t);

UCS_CLASS_INIT_FUNC(uct_nprdma_net_ep_t, const uct_ep_params_t *params)
{
    UCS_CLASS_CALL_SUPER_INIT(uct_base_ep_t,
                              ucs_derived_of(params->iface, uct_base_iface_t));

    self->blocked    = 0;
    self->status     = UCS_OK;
    self->dev_addr   = *(const uct_nprdma_dev_addr_t*)params->dev_addr;
    self->iface_addr = *(const uct_nprdma_iface_addr_t*)params->iface_addr;
    return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(uct_nprdma_net_ep_t)
{
}

UCS_CLASS_DEFINE(uct_nprdma_net_ep_t, uct_base_ep_t);


/* ---- queues ---- */

ucs_status_t uct_nprdma_net_iface_set_port(uct_nprdma_net_iface_t *iface,
                                           const char *dev_name)
{
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);
    const char *colon        = strrchr(dev_name, ':');
    ucs_status_t status;
    unsigned port_num;
    char tail;

    if ((colon == NULL) || (sscanf(colon + 1, "%u%c", &port_num, &tail) != 1) ||
        (port_num < 1) || (port_num > dev->attr.phys_port_cnt)) {
        ucs_error("%s has no port '%s'", dev->name, dev_name);
        return UCS_ERR_NO_DEVICE;
    }

    iface->port_num = port_num;
    status          = uct_nprdma_device_port_addr(dev, port_num,
                                                  &iface->dev_addr);
    if (status == UCS_OK) {
        status = uct_nprdma_device_check_path(&dev->config.path,
                                              &iface->dev_addr);
    }
    return (status != UCS_OK) ? status :
           uct_nprdma_device_check_path(&dev->config.bulk_path,
                                        &iface->dev_addr);
}

/* Only the creation of a QP shows how much inline data the device grants */
static ucs_status_t
uct_nprdma_net_iface_probe_inline(uct_nprdma_net_iface_t *iface,
                                  size_t max_inline)
{
    uct_nprdma_device_t *dev      = uct_nprdma_net_dev(iface);
    uct_nprdma_qp_params_t params = {
        .send_cq     = iface->tx.cq,
        .recv_cq     = iface->rx.cq,
        .srq         = iface->rx.srq,
        .max_send_wr = 1,
        .max_inline  = max_inline
    };
    ucs_status_t status;
    struct ibv_qp *qp;
    uint32_t granted;

    status = uct_nprdma_qp_create(dev, iface->port_num, &params, &qp, &granted);
    if (status != UCS_OK) {
        return status;
    }

    dev->verbs->destroy_qp(qp);
    iface->config.max_inline = ucs_min(granted, max_inline);
    return UCS_OK;
}

ucs_status_t
uct_nprdma_net_iface_create_queues(uct_nprdma_net_iface_t *iface,
                                   unsigned rx_slots, size_t max_inline)
{
    uct_nprdma_device_t *dev          = uct_nprdma_net_dev(iface);
    int tx_cq_len                     = iface->config.tx_cq_len +
                                        UCT_NPRDMA_TX_CQ_SLACK;
    int rx_cq_len                     = rx_slots + UCT_NPRDMA_RX_CQ_REPLIES;
    struct ibv_srq_init_attr srq_attr = {};
    ucs_status_t status               = UCS_ERR_IO_ERROR;

    iface->channel = uct_nprdma_device_create_channel(dev);
    if (iface->channel == NULL) {
        return UCS_ERR_IO_ERROR;
    }

    iface->tx.cq = dev->verbs->create_cq(dev->context, tx_cq_len, iface,
                                         iface->channel, 0);
    if (iface->tx.cq == NULL) {
        ucs_error("%s: failed to create a completion queue of %d entries: %m",
                  dev->name, tx_cq_len);
        goto err_channel;
    }

    iface->rx.cq = dev->verbs->create_cq(dev->context, rx_cq_len, iface,
                                         iface->channel, 0);
    if (iface->rx.cq == NULL) {
        ucs_error("%s: failed to create a completion queue of %d entries: %m",
                  dev->name, rx_cq_len);
        goto err_tx_cq;
    }

    srq_attr.attr.max_wr  = rx_slots;
    srq_attr.attr.max_sge = 1;
    iface->rx.srq         = dev->verbs->create_srq(dev->pd, &srq_attr);
    if (iface->rx.srq == NULL) {
        ucs_error("%s: failed to create a shared receive queue of %u entries: "
                  "%m", dev->name, rx_slots);
        goto err_rx_cq;
    }

    status = uct_nprdma_net_iface_probe_inline(iface, max_inline);
    if (status != UCS_OK) {
        goto err_srq;
    }

    return UCS_OK;

err_srq:
    dev->verbs->destroy_srq(iface->rx.srq);
err_rx_cq:
    dev->verbs->destroy_cq(iface->rx.cq);
err_tx_cq:
    dev->verbs->destroy_cq(iface->tx.cq);
err_channel:
    dev->verbs->destroy_comp_channel(iface->channel);
    return status;
}

void uct_nprdma_net_iface_destroy_queues(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_device_t *dev = uct_nprdma_net_dev(iface);
    int ret;

    ret = dev->verbs->destroy_srq(iface->rx.srq);
    if (ret == 0) {
        ret = dev->verbs->destroy_cq(iface->rx.cq);
    }
    if (ret == 0) {
        ret = dev->verbs->destroy_cq(iface->tx.cq);
    }
    if (ret == 0) {
        ret = dev->verbs->destroy_comp_channel(iface->channel);
    }
    if (ret != 0) {
        ucs_warn("%s: failed to destroy a queue: %s", dev->name, strerror(ret));
    }
}


/* ---- endpoints ---- */

ucs_status_t uct_nprdma_net_ep_refusal(uct_nprdma_net_ep_t *ep)
{
    uct_nprdma_net_iface_t *iface = ucs_derived_of(ep->super.super.iface,
                                                   uct_nprdma_net_iface_t);

    if (ep->blocked & UCT_NPRDMA_EP_FAILED) {
        return ep->status;
    }

    ++iface->stats->no_resource;
    return UCS_ERR_NO_RESOURCE;
}
