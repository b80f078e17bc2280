/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "absent.h"

#include <infiniband/verbs.h>
#include <string.h>

#define DEVICE    "rxe0"
#define PORT      1
#define GID_INDEX 1
#define FIRST_PSN 1000

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | \
                IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

/* What the two processes exchange */
typedef struct peer {
    union ibv_gid gid;
    uint32_t      qp_num, rkey;
    uint64_t      address;
} peer_t;

static struct {
    struct ibv_context *context;
    struct ibv_pd      *pd;
    struct ibv_cq      *cq;
    struct ibv_qp      *qp;
    struct ibv_mr      *mr;
    peer_t             peer;
} verbs;

static void open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    size_t i;

    CHECK(list != NULL, "no devices");
    for (i = 0; list[i] != NULL; ++i) {
        if (!strcmp(ibv_get_device_name(list[i]), DEVICE)) {
            verbs.context = ibv_open_device(list[i]);
        }
    }
    CHECK(verbs.context != NULL, "no device " DEVICE);
    ibv_free_device_list(list);
}

/* The device must support on-demand paging for the operations of the steps */
static void check_on_demand(void)
{
    uint32_t needed = IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_WRITE |
                      IBV_ODP_SUPPORT_ATOMIC;
    struct ibv_device_attr_ex attr;

    CHECK(ibv_query_device_ex(verbs.context, NULL, &attr) == 0, "query");
    if (!(attr.odp_caps.general_caps & IBV_ODP_SUPPORT) ||
        (~attr.odp_caps.per_transport_caps.rc_odp_caps & needed)) {
        printf("SKIPPED: " DEVICE " cannot read, write and do atomics on "
               "demand\n");
        exit(77);
    }
}

static void start_qp(void)
{
    struct ibv_qp_attr attr = {
        .qp_state        = IBV_QPS_INIT,
        .port_num        = PORT,
        .qp_access_flags = ACCESS
    };

    CHECK(ibv_modify_qp(verbs.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
                        IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
    attr.qp_state                  = IBV_QPS_RTR;
    attr.path_mtu                  = IBV_MTU_4096;
    attr.dest_qp_num               = verbs.peer.qp_num;
    attr.rq_psn                    = FIRST_PSN;
    attr.max_dest_rd_atomic        = 4;
    attr.min_rnr_timer             = 12;
    attr.ah_attr.is_global         = 1;
    attr.ah_attr.port_num          = PORT;
    attr.ah_attr.grh.dgid          = verbs.peer.gid;
    attr.ah_attr.grh.sgid_index    = GID_INDEX;
    attr.ah_attr.grh.hop_limit     = 1;
    CHECK(ibv_modify_qp(verbs.qp, &attr, IBV_QP_STATE | IBV_QP_AV |
                        IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
          "RTR");
    /* 4.096 us times 2 to the 18th, about a second: emulated CPUs are slow */
    attr.qp_state      = IBV_QPS_RTS;
    attr.sq_psn        = FIRST_PSN;
    attr.timeout       = 18;
    attr.retry_cnt     = 6;
    attr.rnr_retry     = 6;
    attr.max_rd_atomic = 4;
    CHECK(ibv_modify_qp(verbs.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN |
                        IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_MAX_QP_RD_ATOMIC) == 0, "RTS");
}

static void connect_verbs(int socket, void *memory, size_t length, int access)
{
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap     = {.max_send_wr = 1, .max_recv_wr = 1,
                    .max_send_sge = 1, .max_recv_sge = 1}
    };
    peer_t self = {.address = (uintptr_t)memory};

    open_device();
    if (access & IBV_ACCESS_ON_DEMAND) {
        check_on_demand();
    }
    verbs.pd = ibv_alloc_pd(verbs.context);
    CHECK(verbs.pd != NULL, "no protection domain");
    verbs.cq = ibv_create_cq(verbs.context, 4, NULL, NULL, 0);
    CHECK(verbs.cq != NULL, "no completion queue");
    verbs.mr = ibv_reg_mr(verbs.pd, memory, length, access);
    CHECK(verbs.mr != NULL, "no memory registered: %m");
    init.send_cq = init.recv_cq = verbs.cq;
    verbs.qp = ibv_create_qp(verbs.pd, &init);
    CHECK(verbs.qp != NULL, "no queue pair: %m");

    self.qp_num = verbs.qp->qp_num;
    self.rkey   = verbs.mr->rkey;
    CHECK(ibv_query_gid(verbs.context, PORT, GID_INDEX, &self.gid) == 0, "GID");
    absent_send(socket, &self, sizeof(self));
    absent_receive(socket, &verbs.peer, sizeof(verbs.peer));
    start_qp();
    /* No process sends before both are ready */
    absent_send(socket, "", 1);
    absent_receive(socket, &self, 1);
}

static void connect_pinned(int owner, int socket, void *memory, size_t length)
{
    (void)owner;
    connect_verbs(socket, memory, length, ACCESS);
}

static void connect_on_demand(int owner, int socket, void *memory,
                              size_t length)
{
    (void)owner;
    connect_verbs(socket, memory, length, ACCESS | IBV_ACCESS_ON_DEMAND);
}

static const char *transfer(absent_op_t op, size_t offset, size_t length)
{
    static const enum ibv_wr_opcode opcodes[] = {
        [ABSENT_READ]      = IBV_WR_RDMA_READ,
        [ABSENT_WRITE]     = IBV_WR_RDMA_WRITE,
        [ABSENT_FETCH_ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD
    };
    struct ibv_sge sge = {
        .addr   = (uintptr_t)verbs.mr->addr + offset,
        .length = length,
        .lkey   = verbs.mr->lkey
    };
    struct ibv_send_wr wr = {
        .sg_list    = &sge,
        .num_sge    = 1,
        .opcode     = opcodes[op],
        .send_flags = IBV_SEND_SIGNALED
    };
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    int count;

    if (op == ABSENT_FETCH_ADD) {
        wr.wr.atomic.remote_addr = verbs.peer.address + offset;
        wr.wr.atomic.rkey        = verbs.peer.rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = verbs.peer.address + offset;
        wr.wr.rdma.rkey        = verbs.peer.rkey;
    }
    CHECK(ibv_post_send(verbs.qp, &wr, &bad) == 0, "post: %m");
    do {
        count = ibv_poll_cq(verbs.cq, 1, &wc);
    } while (count == 0);
    CHECK(count == 1, "poll: %d", count);
    return (wc.status == IBV_WC_SUCCESS) ? NULL : ibv_wc_status_str(wc.status);
}

static void disconnect(void)
{
    CHECK((ibv_destroy_qp(verbs.qp) == 0) && (ibv_dereg_mr(verbs.mr) == 0) &&
          (ibv_destroy_cq(verbs.cq) == 0) && (ibv_dealloc_pd(verbs.pd) == 0) &&
          (ibv_close_device(verbs.context) == 0), "cannot be closed: %m");
}

const absent_way_t absent_pinned    = {connect_pinned, transfer, disconnect};
const absent_way_t absent_on_demand = {connect_on_demand, transfer, disconnect};
