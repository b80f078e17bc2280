/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_qp.h"
#include "nprdma_conn_types.h"

#include <ucs/debug/log.h>
#include <ucs/sys/math.h>

/* Maximum number of outstanding READs and atomics, in each direction */
#define UCT_NPRDMA_MAX_RD_ATOMIC  16


ucs_status_t
uct_nprdma_qp_create(uct_nprdma_device_t *dev, uint8_t port_num,
                     const uct_nprdma_qp_params_t *params, struct ibv_qp **qp_p,
                     uint32_t *inline_p)
{
    struct ibv_qp_init_attr init_attr = {};
    struct ibv_qp_attr attr           = {};
    struct ibv_qp *qp;
    int ret;

    init_attr.qp_context          = params->qp_context;
    init_attr.send_cq             = params->send_cq;
    init_attr.recv_cq             = params->recv_cq;
    init_attr.srq                 = params->srq;
    init_attr.qp_type             = IBV_QPT_RC;
    init_attr.sq_sig_all          = 0;
    init_attr.cap.max_send_wr     = params->max_send_wr;
    init_attr.cap.max_send_sge    = UCT_NPRDMA_MAX_SEND_SGE;
    init_attr.cap.max_inline_data = params->max_inline;
    if (params->srq == NULL) {
        init_attr.cap.max_recv_wr  = params->max_recv_wr;
        init_attr.cap.max_recv_sge = 1;
    }

    qp = dev->verbs->create_qp(dev->pd, &init_attr);
    if (qp == NULL) {
        ucs_log(params->is_optional ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_ERROR,
                "%s: failed to create a queue pair (%u send WRs, %u bytes "
                "inline): %m", dev->name, params->max_send_wr,
                params->max_inline);
        return (errno == ENOMEM) ? UCS_ERR_NO_MEMORY : UCS_ERR_IO_ERROR;
    }

    attr.qp_state        = IBV_QPS_INIT;
    attr.pkey_index      = 0;
    attr.port_num        = port_num;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    ret = dev->verbs->modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                               IBV_QP_ACCESS_FLAGS);
    if (ret != 0) {
        ucs_error("%s: failed to bring queue pair 0x%x to INIT on port %u: %s",
                  dev->name, qp->qp_num, port_num, strerror(ret));
        dev->verbs->destroy_qp(qp);
        return UCS_ERR_IO_ERROR;
    }

    if (inline_p != NULL) {
        *inline_p = init_attr.cap.max_inline_data;
    }
    *qp_p = qp;
    return UCS_OK;
}

/* Verbs encodes a transport timeout as 4.096 us << value */
static uint8_t uct_nprdma_qp_timeout(double seconds)
{
    uint8_t timeout = 1;

    while ((timeout < 31) && ((4.096e-6 * UCS_BIT(timeout)) < seconds)) {
        ++timeout;
    }
    return timeout;
}

/* Verbs encodes the RNR timer by a table (InfiniBand 1.4, table 45) */
static uint8_t uct_nprdma_qp_rnr_timer(double seconds)
{
    static const double msec[32] = {
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32,
        0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36,
        20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68,
        491.52
    };
    uint8_t timer;

    for (timer = 1; timer < 32; ++timer) {
        if ((seconds * 1e3) <= msec[timer]) {
            return timer;
        }
    }
    return 0;
}

ucs_status_t
uct_nprdma_qp_connect(uct_nprdma_device_t *dev, uint8_t port_num,
                      struct ibv_qp *qp, uint32_t local_psn,
                      const uct_nprdma_qp_addr_t *peer,
                      const uct_nprdma_path_config_t *path, uint8_t rnr_retry)
{
    struct ibv_qp_attr attr = {};
    uct_nprdma_dev_addr_t local;
    ucs_status_t status;
    int ret;

    status = uct_nprdma_device_port_addr(dev, port_num, &local);
    if (status != UCS_OK) {
        return status;
    }

    attr.qp_state           = IBV_QPS_RTR;
    attr.path_mtu           = (enum ibv_mtu)ucs_min(local.mtu, peer->dev.mtu);
    attr.dest_qp_num        = peer->qpn;
    attr.rq_psn             = peer->psn;
    attr.max_dest_rd_atomic = ucs_min(dev->attr.max_qp_rd_atom,
                                      UCT_NPRDMA_MAX_RD_ATOMIC);
    attr.min_rnr_timer      = uct_nprdma_qp_rnr_timer(dev->config.rnr_timeout);
    uct_nprdma_device_fill_ah_attr(dev, port_num, &peer->dev, path,
                                   &attr.ah_attr);
    ret = dev->verbs->modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                               IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC |
                               IBV_QP_MIN_RNR_TIMER);
    if (ret != 0) {
        ucs_error("%s: failed to bring queue pair 0x%x to RTR towards 0x%x "
                  "lid %u: %s", dev->name, qp->qp_num, peer->qpn, peer->dev.lid,
                  strerror(ret));
        return UCS_ERR_IO_ERROR;
    }

    memset(&attr, 0, sizeof(attr));
    attr.qp_state      = IBV_QPS_RTS;
    attr.timeout       = uct_nprdma_qp_timeout(dev->config.timeout);
    attr.retry_cnt     = dev->config.retry_count;
    attr.rnr_retry     = rnr_retry;
    attr.sq_psn        = local_psn;
    attr.max_rd_atomic = ucs_min(dev->attr.max_qp_init_rd_atom,
                                 UCT_NPRDMA_MAX_RD_ATOMIC);
    ret = dev->verbs->modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_TIMEOUT |
                               IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (ret != 0) {
        ucs_error("%s: failed to bring queue pair 0x%x to RTS: %s", dev->name,
                  qp->qp_num, strerror(ret));
        return UCS_ERR_IO_ERROR;
    }

    return UCS_OK;
}

void uct_nprdma_qp_to_err(uct_nprdma_device_t *dev, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    int ret;

    ret = dev->verbs->modify_qp(qp, &attr, IBV_QP_STATE);
    if (ret != 0) {
        ucs_diag("%s: failed to bring queue pair 0x%x to ERR: %s", dev->name,
                 qp->qp_num, strerror(ret));
    }
}
