/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_loop.h"
#include "uct/ib/nprdma/net/nprdma_qp.h"

#include <ucs/time/time.h>

#include <sched.h>
#include <string.h>

/* Limit in seconds for a few work requests, if the device never completes
 * one */
#define UCT_NPRDMA_LOOP_PATIENCE  30.0

/* Starting PSN of both queue pairs */
#define UCT_NPRDMA_LOOP_PSN  1


int uct_nprdma_loop_init(uct_nprdma_loop_t *loop, uct_nprdma_device_t *dev)
{
    unsigned port;

    memset(loop, 0, sizeof(*loop));
    loop->dev = dev;
    for (port = 1; port <= dev->attr.phys_port_cnt; ++port) {
        if (uct_nprdma_device_port_is_active(dev, port)) {
            loop->port_num = port;
            return 1;
        }
    }
    return 0;
}

static int uct_nprdma_loop_connect(uct_nprdma_loop_t *loop)
{
    uct_nprdma_qp_addr_t addr = { .psn = UCT_NPRDMA_LOOP_PSN };
    int i;

    if (uct_nprdma_device_port_addr(loop->dev, loop->port_num, &addr.dev) !=
        UCS_OK) {
        return 0;
    }

    for (i = 0; i < 2; ++i) {
        addr.qpn = loop->qps[1 - i]->qp_num;
        if (uct_nprdma_qp_connect(loop->dev, loop->port_num, loop->qps[i],
                                  UCT_NPRDMA_LOOP_PSN, &addr,
                                  &loop->dev->config.path,
                                  UCT_NPRDMA_RNR_FOREVER) != UCS_OK) {
            return 0;
        }
    }
    return 1;
}

int uct_nprdma_loop_open(uct_nprdma_loop_t *loop)
{
    uct_nprdma_qp_params_t params = {
        .max_send_wr = 4,
        .max_recv_wr = 1
    };
    int i;

    loop->cq = loop->dev->verbs->create_cq(loop->dev->context, 16, NULL, NULL,
                                           0);
    if (loop->cq == NULL) {
        return 0;
    }

    params.send_cq = loop->cq;
    params.recv_cq = loop->cq;
    for (i = 0; i < 2; ++i) {
        if (uct_nprdma_qp_create(loop->dev, loop->port_num, &params,
                                 &loop->qps[i], NULL) != UCS_OK) {
            loop->qps[i] = NULL;
            return 0;
        }
    }
    return uct_nprdma_loop_connect(loop);
}

void uct_nprdma_loop_close(uct_nprdma_loop_t *loop)
{
    const uct_nprdma_verbs_t *verbs = loop->dev->verbs;
    int i;

    for (i = 0; i < 2; ++i) {
        if (loop->qps[i] != NULL) {
            verbs->destroy_qp(loop->qps[i]);
        }
    }
    if (loop->cq != NULL) {
        verbs->destroy_cq(loop->cq);
    }
}

void uct_nprdma_loop_post(uct_nprdma_loop_t *loop, enum ibv_wr_opcode opcode,
                          const void *local, uint32_t lkey, size_t length,
                          uint64_t address, uint32_t rkey)
{
    struct ibv_sge sge    = {
        .addr   = (uintptr_t)local,
        .length = length,
        .lkey   = lkey
    };
    struct ibv_send_wr wr = {
        .sg_list             = &sge,
        .num_sge             = 1,
        .opcode              = opcode,
        .send_flags          = IBV_SEND_SIGNALED,
        .wr.rdma.remote_addr = address,
        .wr.rdma.rkey        = rkey
    };
    struct ibv_send_wr *bad;

    ++loop->posted;
    loop->is_refused |= ibv_post_send(loop->qps[0], &wr, &bad) != 0;
}

enum ibv_wc_status uct_nprdma_loop_wait(uct_nprdma_loop_t *loop)
{
    ucs_time_t end = ucs_get_time() +
                     ucs_time_from_sec(UCT_NPRDMA_LOOP_PATIENCE);
    struct ibv_wc wc;
    int count;

    while (loop->posted > 0) {
        count = ibv_poll_cq(loop->cq, 1, &wc);
        if ((count < 0) || loop->is_refused || (ucs_get_time() > end)) {
            return IBV_WC_GENERAL_ERR;
        }

        if ((count > 0) && (wc.status != IBV_WC_SUCCESS)) {
            return wc.status;
        }

        loop->posted -= count;
        sched_yield();
    }
    return IBV_WC_SUCCESS;
}
