/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* emlx5_nodes DEVICE 0|1: two guests on one switch. Node 0 sends, writes and
 * reads, node 1 answers. They find each other by words that the model keeps for
 * them. */

#include "emlx5_pair.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    NOTES   = 0x800 / 8, /* registers: see firmware/emlx5_monitor.h */
    LENGTH  = 1 << 20,
    ROUNDS  = 20,
    MINUTES = 20
};

/* What a node tells the other one */
enum { NOTE_READY, NOTE_LID, NOTE_QPN, NOTE_ADDRESS, NOTE_RKEY, NOTE_DONE,
       NOTES_OF_NODE = 8 };

static volatile uint64_t *notes(volatile uint64_t *monitor, int node)
{
    return monitor + NOTES + (NOTES_OF_NODE * node);
}

/* The other guest may boot much later. */
static void wait_note(volatile uint64_t *monitor, int node, int note,
                      uint64_t value)
{
    time_t end = time(NULL) + (60 * MINUTES);

    while (notes(monitor, node)[note] != value) {
        CHECK(time(NULL) < end, "node %d does not come", node);
        usleep(1000);
    }
}

static void meet(pair_t *pair, volatile uint64_t *monitor, int node)
{
    volatile uint64_t *own = notes(monitor, node);
    volatile uint64_t *its = notes(monitor, !node);
    side_t other           = {0};
    struct ibv_qp qp       = {0};

    own[NOTE_LID]     = pair->a.lid;
    own[NOTE_QPN]     = pair->a.qp->qp_num;
    own[NOTE_ADDRESS] = (uintptr_t)pair->a.memory;
    own[NOTE_RKEY]    = pair->a.mr->rkey;
    own[NOTE_READY]   = 1;
    wait_note(monitor, !node, NOTE_READY, 1);
    qp.qp_num = its[NOTE_QPN];
    other.lid = its[NOTE_LID];
    other.qp  = &qp;
    side_connect(&pair->a, &other, &pair_default);
    own[NOTE_READY] = 2;
    wait_note(monitor, !node, NOTE_READY, 2);
}

static void talk(pair_t *pair, volatile uint64_t *monitor)
{
    volatile uint64_t *its = notes(monitor, 1);
    request_t request      = {.length = LENGTH, .remote = its[NOTE_ADDRESS],
                              .rkey = its[NOTE_RKEY]};
    uint8_t *memory        = pair->a.memory;
    uint32_t i;

    for (i = 0; i < ROUNDS; ++i) {
        fill(memory, LENGTH, i);
        request.opcode = IBV_WR_RDMA_WRITE;
        side_post(&pair->a, &request);
        side_wait_ok(&pair->a);
        memset(memory, 0, LENGTH);
        request.opcode = IBV_WR_RDMA_READ;
        side_post(&pair->a, &request);
        side_wait_ok(&pair->a);
        CHECK(is_filled(memory, LENGTH, i), "round %u", i);
        request.opcode = IBV_WR_SEND_WITH_IMM;
        request.imm    = i;
        side_post(&pair->a, &request);
        side_wait_ok(&pair->a);
    }
}

static void listen(pair_t *pair)
{
    struct ibv_wc wc;
    uint32_t i;

    for (i = 0; i < ROUNDS; ++i) {
        CHECK(side_post_recv(&pair->a, LENGTH, LENGTH) == 0, "receive");
        wc = side_wait_ok(&pair->a);
        CHECK(wc.imm_data == i, "%u rather than %u", wc.imm_data, i);
        CHECK(is_filled(pair->a.memory + LENGTH, LENGTH, i), "round %u", i);
    }
}

int main(int argc, char **argv)
{
    volatile uint64_t *monitor;
    pair_t pair;
    int node;

    if (argc != 3) {
        fprintf(stderr, "usage: emlx5_nodes DEVICE 0|1\n");
        return 2;
    }
    node = atoi(argv[2]) != 0;
    pair_open(&pair, argv[1], argv[1]);
    monitor = side_monitor(&pair.a);
    side_make(&pair.a, &pair_default);
    meet(&pair, monitor, node);
    if (node == 0) {
        talk(&pair, monitor);
    } else {
        listen(&pair);
    }
    notes(monitor, node)[NOTE_DONE] = 1;
    wait_note(monitor, !node, NOTE_DONE, 1);
    pair_close(&pair);
    printf("node %d: %d rounds\n", node, ROUNDS);
    return 0;
}
