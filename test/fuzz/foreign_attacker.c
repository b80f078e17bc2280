/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Uses the emulated RNIC directly, like any program of the same user. */

#include "foreign_attacker.h"

#include "npemu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Constants of the transport's interfaces, which are not secret */
#define FOREIGN_QKEY        0x4e505244

#define FOREIGN_MTU         4096
#define FOREIGN_NUM_RECVS   16
#define FOREIGN_NUM_RANDOM  500

/* One answer may get lost. After this many in a row the target counts as
 * dead. */
#define FOREIGN_MAX_TRIES   50
#define FOREIGN_ANSWER_MS   100

typedef struct {
    const foreign_target_t *target;
    foreign_tally_t        *tally;
    struct ibv_context     *context;
    struct ibv_pd          *pd;
    struct ibv_mr          *mr;
    struct ibv_cq          *cq;
    struct ibv_qp          *qp;
    struct ibv_ah          *ah;
    struct {
        uint8_t            send[FOREIGN_MTU];
        uint8_t            recv[FOREIGN_NUM_RECVS][FOREIGN_MTU];
    } buf;
    uint32_t               conn_id;     /* of the last packet */
    uint32_t               answered;    /* of the last rejected packet */
} foreign_t;


static int foreign_error(const char *what)
{
    fprintf(stderr, "attacker: %s: %s\n", what, strerror(errno));
    return -1;
}

static int foreign_post_recv(foreign_t *self, unsigned index)
{
    struct ibv_sge sge    = {
        .addr   = (uintptr_t)self->buf.recv[index],
        .length = FOREIGN_MTU,
        .lkey   = self->mr->lkey
    };
    struct ibv_recv_wr wr = {.wr_id = index, .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr *bad;

    return ibv_post_recv(self->qp, &wr, &bad);
}

static int foreign_create_qp(foreign_t *self)
{
    struct ibv_qp_init_attr init = {
        .send_cq = self->cq,
        .recv_cq = self->cq,
        .qp_type = IBV_QPT_UD,
        .cap     = {.max_send_wr = 1, .max_recv_wr = FOREIGN_NUM_RECVS,
                    .max_send_sge = 1, .max_recv_sge = 1}
    };
    struct ibv_qp_attr attr      = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = FOREIGN_QKEY
    };

    self->qp = npemu_create_qp(self->pd, &init);
    if ((self->qp == NULL) ||
        npemu_modify_qp(self->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
                        IBV_QP_PORT | IBV_QP_QKEY)) {
        return -1;
    }

    attr.qp_state = IBV_QPS_RTR;
    if (npemu_modify_qp(self->qp, &attr, IBV_QP_STATE)) {
        return -1;
    }

    attr.qp_state = IBV_QPS_RTS;
    return npemu_modify_qp(self->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static int foreign_open(foreign_t *self)
{
    struct ibv_ah_attr ah = {
        .dlid     = self->target->dev.lid,
        .port_num = 1,
        .is_global = 1
    };
    struct ibv_device **list;
    unsigned i;

    list = npemu_get_device_list(NULL);
    if (list == NULL) {
        return foreign_error("npemu_get_device_list");
    }
    self->context = npemu_open_device(list[0]);
    npemu_free_device_list(list);
    if (self->context == NULL) {
        return foreign_error("npemu_open_device");
    }

    memcpy(ah.grh.dgid.raw, self->target->dev.gid, sizeof(ah.grh.dgid.raw));
    self->pd = npemu_alloc_pd(self->context);
    self->mr = npemu_reg_mr(self->pd, &self->buf, sizeof(self->buf),
                            IBV_ACCESS_LOCAL_WRITE);
    self->cq = npemu_create_cq(self->context, FOREIGN_NUM_RECVS + 1, NULL,
                               NULL, 0);
    self->ah = npemu_create_ah(self->pd, &ah);
    if ((self->pd == NULL) || (self->mr == NULL) || (self->cq == NULL) ||
        (self->ah == NULL) || foreign_create_qp(self)) {
        return foreign_error("setting up the emulated RNIC");
    }

    for (i = 0; i < FOREIGN_NUM_RECVS; ++i) {
        if (foreign_post_recv(self, i)) {
            return foreign_error("ibv_post_recv");
        }
    }
    return 0;
}

static void foreign_close(foreign_t *self)
{
    if (self->context == NULL) {
        return;
    }
    npemu_destroy_ah(self->ah);
    npemu_destroy_qp(self->qp);
    npemu_destroy_cq(self->cq);
    npemu_dereg_mr(self->mr);
    npemu_dealloc_pd(self->pd);
    npemu_close_device(self->context);
}

/*
 * Takes one completion, if there is one. The answer to an earlier packet may
 * precede the completion of a later one, so each completion must be examined.
 *
 * @return 1 if it was that of a send, 0 if not, -1 on failure.
 */
static int foreign_poll(foreign_t *self)
{
    uct_nprdma_cm_packet_t answer;
    struct ibv_wc wc;
    int ret;

    ret = ibv_poll_cq(self->cq, 1, &wc);
    if (ret == 0) {
        return 0;
    }
    if ((ret < 0) || (wc.status != IBV_WC_SUCCESS)) {
        return foreign_error("ibv_poll_cq");
    }
    if (wc.wr_id == FOREIGN_NUM_RECVS) {
        return 1;
    }

    memcpy(&answer, self->buf.recv[wc.wr_id] + UCT_NPRDMA_GRH_LEN,
           sizeof(answer));
    if ((wc.byte_len == sizeof(answer) + UCT_NPRDMA_GRH_LEN) &&
        (answer.type == UCT_NPRDMA_CM_REJ) &&
        (answer.reason == UCT_NPRDMA_CM_REASON_STALE)) {
        self->answered = answer.conn_id;
    }
    return foreign_post_recv(self, wc.wr_id) ?
           foreign_error("ibv_post_recv") : 0;
}

/* Sends a datagram. The caller counts its expected effect. */
static int foreign_send(foreign_t *self, const void *data, size_t length,
                        uint32_t qkey)
{
    struct ibv_sge sge    = {
        .addr   = (uintptr_t)self->buf.send,
        .length = length,
        .lkey   = self->mr->lkey
    };
    struct ibv_send_wr wr = {
        .sg_list    = &sge,
        .num_sge    = (length > 0),
        .opcode     = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
        .wr_id      = FOREIGN_NUM_RECVS,
        .wr.ud      = {.ah = self->ah, .remote_qpn = self->target->iface.ud_qpn,
                       .remote_qkey = qkey}
    };
    struct ibv_send_wr *bad;
    int ret;

    memcpy(self->buf.send, data, length);
    if (ibv_post_send(self->qp, &wr, &bad)) {
        return foreign_error("ibv_post_send");
    }

    do {
        ret = foreign_poll(self);
    } while (ret == 0);
    return (ret > 0) ? 0 : -1;
}

/* A packet that the parser accepts */
static void foreign_fill(foreign_t *self, uct_nprdma_cm_packet_t *packet,
                         uint8_t type, uint64_t dst_nonce)
{
    *packet = (uct_nprdma_cm_packet_t){
        .magic     = UCT_NPRDMA_CM_MAGIC,
        .version   = UCT_NPRDMA_WIRE_VERSION,
        .type      = type,
        .kind      = UCT_NPRDMA_CONN_AM,
        .src_nonce = 0x0123456789abcdef,
        .dst_nonce = dst_nonce,
        .conn_id   = ++self->conn_id,
        .ud_qpn    = self->qp->qp_num,
        .qp        = {.qpn = self->qp->qp_num, .psn = 1}
    };
    packet->qp.dev = self->target->dev;
}

/*
 * Receives until the answer to conn_id arrives, or until a time limit.
 *
 * @return 1 if it arrived, 0 if not, -1 on failure.
 */
static int foreign_wait_answer(foreign_t *self, uint32_t conn_id)
{
    struct timespec begin, now;
    long elapsed_ms;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        if (self->answered == conn_id) {
            return 1;
        }
        if (foreign_poll(self) < 0) {
            return -1;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        elapsed_ms = (now.tv_sec - begin.tv_sec) * 1000 +
                     (now.tv_nsec - begin.tv_nsec) / 1000000;
    } while (elapsed_ms < FOREIGN_ANSWER_MS);
    return self->answered == conn_id;
}

/*
 * Sends a request for an earlier interface with this queue pair number, which
 * the interface rejects. The answer proves that earlier packets were handled,
 * and that wire-up still works.
 */
static int foreign_sync(foreign_t *self)
{
    uct_nprdma_cm_packet_t packet;
    int i, ret;

    foreign_fill(self, &packet, UCT_NPRDMA_CM_REQ,
                 self->target->iface.nonce + 1);
    for (i = 0; i < FOREIGN_MAX_TRIES; ++i) {
        if (foreign_send(self, &packet, sizeof(packet), FOREIGN_QKEY)) {
            return -1;
        }
        ++self->tally->stale;
        ret = foreign_wait_answer(self, packet.conn_id);
        if (ret != 0) {
            return (ret > 0) ? 0 : -1;
        }
    }

    errno = ETIMEDOUT;
    return foreign_error("the interface does not answer any more");
}

static int foreign_send_malformed(foreign_t *self, const void *data,
                                  size_t length)
{
    if (length <= sizeof(uct_nprdma_cm_packet_t)) {
        ++self->tally->malformed;
    } else {
        ++self->tally->oversized;
    }
    return foreign_send(self, data, length, FOREIGN_QKEY) || foreign_sync(self);
}

/* One wrong field, all others right */
static int foreign_send_fields(foreign_t *self)
{
    uct_nprdma_cm_packet_t packets[16];
    unsigned i, n = 0;

#define FOREIGN_FIELD(_field, _value) \
    foreign_fill(self, &packets[n], UCT_NPRDMA_CM_REQ, \
                 self->target->iface.nonce); \
    packets[n++]._field = (_value)

    FOREIGN_FIELD(magic, 0);
    FOREIGN_FIELD(version, UCT_NPRDMA_WIRE_VERSION + 1);
    FOREIGN_FIELD(type, 0);
    FOREIGN_FIELD(type, UCT_NPRDMA_CM_TYPE_LAST);
    FOREIGN_FIELD(type, 255);
    FOREIGN_FIELD(kind, UCT_NPRDMA_CONN_KIND_LAST);
    FOREIGN_FIELD(reason, UCT_NPRDMA_CM_REASON_LAST);
    FOREIGN_FIELD(ud_qpn, 0);
    FOREIGN_FIELD(ud_qpn, 1u << 24);
    FOREIGN_FIELD(qp.qpn, 0);
    FOREIGN_FIELD(qp.qpn, UINT32_MAX);
    FOREIGN_FIELD(qp.psn, 1u << 24);
    FOREIGN_FIELD(qp.dev.mtu, 0);
    FOREIGN_FIELD(qp.dev.mtu, 6);
    FOREIGN_FIELD(qp.dev.version, 0);

    for (i = 0; i < n; ++i) {
        if (foreign_send_malformed(self, &packets[i], sizeof(packets[i]))) {
            fprintf(stderr, "attacker: that was field packet %u\n", i);
            return -1;
        }
    }
    return 0;
}

static int foreign_send_sizes(foreign_t *self)
{
    static const size_t sizes[] = {0, 1, 4, 39, 40,
                                   sizeof(uct_nprdma_cm_packet_t) - 1,
                                   sizeof(uct_nprdma_cm_packet_t) + 1, 256,
                                   1024, FOREIGN_MTU};
    uint8_t data[FOREIGN_MTU] = {};
    unsigned i;

    foreign_fill(self, (uct_nprdma_cm_packet_t*)data, UCT_NPRDMA_CM_REQ,
                 self->target->iface.nonce);
    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
        if (foreign_send_malformed(self, data, sizes[i])) {
            fprintf(stderr, "attacker: that was after %zu bytes\n", sizes[i]);
            return -1;
        }
    }
    return 0;
}

/* Valid packets for another interface, or for connections that do not exist */
static int foreign_send_strays(foreign_t *self)
{
    uct_nprdma_cm_packet_t packet;
    int type;

    for (type = UCT_NPRDMA_CM_REP; type < UCT_NPRDMA_CM_TYPE_LAST; ++type) {
        foreign_fill(self, &packet, type, self->target->iface.nonce ^ 1);
        ++self->tally->stale;
        if (foreign_send(self, &packet, sizeof(packet), FOREIGN_QKEY) ||
            foreign_sync(self)) {
            return -1;
        }

        foreign_fill(self, &packet, type, self->target->iface.nonce);
        if (foreign_send(self, &packet, sizeof(packet), FOREIGN_QKEY) ||
            foreign_sync(self)) {
            return -1;
        }
    }
    return 0;
}

static int foreign_send_random(foreign_t *self, unsigned seed)
{
    uint8_t data[512];
    size_t length, i;
    int n;

    srand(seed);
    for (n = 0; n < FOREIGN_NUM_RANDOM; ++n) {
        length = rand() % ((n & 1) ? sizeof(data) :
                           (sizeof(uct_nprdma_cm_packet_t) + 1));
        for (i = 0; i < length; ++i) {
            data[i] = rand();
        }
        /* The device drops packets with a wrong key, so they are not counted */
        if (foreign_send(self, data, length, FOREIGN_QKEY + 1) ||
            foreign_send_malformed(self, data, length)) {
            return -1;
        }
    }
    return 0;
}

int foreign_attack(const foreign_target_t *target, unsigned seed,
                   foreign_tally_t *tally)
{
    foreign_t *self = calloc(1, sizeof(*self));
    int ret;

    memset(tally, 0, sizeof(*tally));
    if (self == NULL) {
        return foreign_error("calloc");
    }

    self->target = target;
    self->tally  = tally;
    ret = foreign_open(self) || foreign_sync(self) ||
          foreign_send_fields(self) || foreign_send_strays(self) ||
          foreign_send_random(self, seed) || foreign_send_sizes(self);
    if (ret == 0) {
        foreign_close(self);
    }
    free(self);
    return ret ? -1 : 0;
}
