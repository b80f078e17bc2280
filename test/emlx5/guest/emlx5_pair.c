/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "emlx5_pair.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double pair_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + (t.tv_nsec * 1e-9);
}

/* --- resources -------------------------------------------------------------*/

/* The device of this name, and the length of the name */
static struct ibv_context *side_open_device(const char *name, size_t length)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    const char *found;
    int i;

    CHECK(list != NULL, "no devices");
    for (i = 0; (list[i] != NULL) && (context == NULL); ++i) {
        found = ibv_get_device_name(list[i]);
        if ((strlen(found) == length) && !strncmp(found, name, length)) {
            context = ibv_open_device(list[i]);
        }
    }
    ibv_free_device_list(list);
    CHECK(context != NULL, "%s cannot be opened", name);
    return context;
}

/* Other programs prefer these, too: RoCE version 2, IPv4 addresses */
static int gid_rank(const struct ibv_gid_entry *entry)
{
    static const uint8_t ipv4[12] = {[10] = 0xff, [11] = 0xff};

    if (entry->gid_type != IBV_GID_TYPE_ROCE_V2) {
        return 1;
    }
    return memcmp(entry->gid.raw, ipv4, sizeof(ipv4)) ? 2 : 3;
}

static void side_choose_gid(side_t *side, int count)
{
    struct ibv_gid_entry entry;
    int i, best = 0;

    for (i = 0; (i < count) && (i <= UINT8_MAX); ++i) {
        if ((ibv_query_gid_ex(side->context, side->port, i, &entry, 0) == 0) &&
            (gid_rank(&entry) > best)) {
            best            = gid_rank(&entry);
            side->gid       = entry.gid;
            side->gid_index = (uint8_t)i;
        }
    }
    CHECK(best > 0, "port %u has no GID", side->port);
}

/* Of the port that a name ends in, or of port 1 */
static void side_open_port(side_t *side, const char *name)
{
    size_t length = strcspn(name, "/");
    struct ibv_port_attr port;

    side->context = side_open_device(name, length);
    side->port    = (name[length] == '/') ? atoi(name + length + 1) : 1;
    CHECK(ibv_query_port(side->context, side->port, &port) == 0,
          "%s: no such port", name);
    side->lid     = port.lid;
    side->mtu     = port.active_mtu;
    side->is_roce = (port.link_layer == IBV_LINK_LAYER_ETHERNET);
    if (side->is_roce) {
        side_choose_gid(side, port.gid_tbl_len);
    }
}

static void side_open(side_t *side, const char *name)
{
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

    memset(side, 0, sizeof(*side));
    side_open_port(side, name);
    side->pd = ibv_alloc_pd(side->context);
    CHECK(side->pd != NULL, "no PD");
    side->cq = ibv_create_cq(side->context, 4 * PAIR_DEPTH, NULL, NULL, 0);
    CHECK(side->cq != NULL, "no CQ");
    side->memory = mmap(NULL, PAIR_MEMORY, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(side->memory != MAP_FAILED, "no memory");
    side->mr = ibv_reg_mr(side->pd, side->memory, PAIR_MEMORY, rights);
    CHECK(side->mr != NULL, "no MR: %s", strerror(errno));
    fcntl(side->context->async_fd, F_SETFL, O_NONBLOCK);
}

void pair_open(pair_t *pair, const char *name_a, const char *name_b)
{
    side_open(&pair->a, name_a);
    side_open(&pair->b, name_b);
}

static void side_drop_qp(side_t *side)
{
    struct ibv_wc wc;

    if (side->qp != NULL) {
        CHECK(ibv_destroy_qp(side->qp) == 0, "QP");
    }
    side->qp = NULL;
    while (ibv_poll_cq(side->cq, 1, &wc) > 0) {
    }
}

static void side_close(side_t *side)
{
    side_drop_qp(side);
    CHECK(ibv_dereg_mr(side->mr) == 0, "MR");
    CHECK(ibv_destroy_cq(side->cq) == 0, "CQ");
    CHECK(ibv_dealloc_pd(side->pd) == 0, "PD");
    CHECK(ibv_close_device(side->context) == 0, "device");
    munmap(side->memory, PAIR_MEMORY);
}

void pair_close(pair_t *pair)
{
    side_close(&pair->a);
    side_close(&pair->b);
}

/* --- connection ------------------------------------------------------------*/

static void side_make_qp(side_t *side)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = side->cq, .recv_cq = side->cq, .qp_type = IBV_QPT_RC,
        .cap = {PAIR_DEPTH, PAIR_DEPTH, 2, 2, 64}
    };

    side_drop_qp(side);
    side->qp = ibv_create_qp(side->pd, &attr);
    CHECK(side->qp != NULL, "no QP: %s", strerror(errno));
}

static void side_modify(side_t *side, struct ibv_qp_attr *attr, int mask)
{
    int status = ibv_modify_qp(side->qp, attr, mask | IBV_QP_STATE);

    CHECK(status == 0, "state %d: %s", attr->qp_state, strerror(status));
}

static void side_connect(side_t *side, const side_t *peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = side->port,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_ATOMIC
    };

    side_modify(side, &attr, IBV_QP_PORT | IBV_QP_PKEY_INDEX |
                             IBV_QP_ACCESS_FLAGS);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (side->mtu < peer->mtu) ? side->mtu : peer->mtu,
        .dest_qp_num = peer->qp->qp_num, .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.dlid = peer->lid, .port_num = side->port,
                    .is_global = side->is_roce,
                    .grh = {.dgid = peer->gid, .sgid_index = side->gid_index,
                            .hop_limit = 64}}
    };
    side_modify(side, &attr,
                IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 2,
        .rnr_retry = 7, .max_rd_atomic = 4
    };
    side_modify(side, &attr,
                IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

void pair_connect(pair_t *pair)
{
    side_make_qp(&pair->a);
    side_make_qp(&pair->b);
    side_connect(&pair->a, &pair->b);
    side_connect(&pair->b, &pair->a);
}

/* --- waiting ---------------------------------------------------------------*/

struct ibv_wc side_wait(side_t *side)
{
    double end = pair_seconds() + PAIR_SECONDS;
    struct ibv_wc wc;
    int found;

    while ((found = ibv_poll_cq(side->cq, 1, &wc)) == 0) {
        CHECK(pair_seconds() < end, "no completion");
    }
    CHECK(found == 1, "ibv_poll_cq: %d", found);
    return wc;
}

struct ibv_wc side_wait_ok(side_t *side)
{
    struct ibv_wc wc = side_wait(side);

    CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
    return wc;
}

void side_wait_event(side_t *side, enum ibv_event_type type, int seconds)
{
    struct pollfd fd = {side->context->async_fd, POLLIN, 0};
    struct ibv_async_event event;

    do {
        CHECK(poll(&fd, 1, seconds * 1000) == 1, "no event %s",
              ibv_event_type_str(type));
        CHECK(ibv_get_async_event(side->context, &event) == 0, "event");
        ibv_ack_async_event(&event);
    } while (event.event_type != type);
}

/* --- requests --------------------------------------------------------------*/

int side_post_recv(side_t *side, size_t offset, uint32_t length)
{
    struct ibv_sge sge    = {(uintptr_t)side->memory + offset, length,
                             side->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = offset, .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr *bad;

    return ibv_post_recv(side->qp, &wr, &bad);
}

void side_post(side_t *side, const request_t *request)
{
    struct ibv_sge sge = {(uintptr_t)side->memory + request->from,
                          request->length, side->mr->lkey};
    struct ibv_send_wr wr = {
        .opcode = request->opcode, .sg_list = &sge, .num_sge = 1,
        .send_flags = IBV_SEND_SIGNALED | request->flags,
        .imm_data = request->imm
    };
    struct ibv_send_wr *bad;
    int status;

    wr.wr.rdma.remote_addr = request->remote;
    wr.wr.rdma.rkey        = request->rkey;
    status = ibv_post_send(side->qp, &wr, &bad);
    CHECK(status == 0, "ibv_post_send: %s", strerror(status));
}

/* --- memory ----------------------------------------------------------------*/

static uint8_t pattern(size_t i, uint32_t seed)
{
    return (uint8_t)((i * 31) + (i >> 8) + seed);
}

void fill(uint8_t *memory, size_t length, uint32_t seed)
{
    size_t i;

    for (i = 0; i < length; ++i) {
        memory[i] = pattern(i, seed);
    }
}

int is_filled(const uint8_t *memory, size_t length, uint32_t seed)
{
    size_t i;

    for (i = 0; i < length; ++i) {
        if (memory[i] != pattern(i, seed)) {
            return 0;
        }
    }
    return 1;
}
