/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* emlx5_verbs DEVICE DEVICE [CASE...]: verbs of an emulated adapter, by the
 * unmodified drivers, in a guest. Without cases, all. */

#include "emlx5_pair.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

static uint64_t remote(const side_t *side, size_t offset)
{
    return (uintptr_t)side->memory + offset;
}

static request_t to_b(const pair_t *pair, enum ibv_wr_opcode opcode,
                      uint32_t length)
{
    return (request_t){.opcode = opcode, .length = length,
                       .remote = remote(&pair->b, 0), .rkey = pair->b.mr->rkey};
}

/* --- data ------------------------------------------------------------------*/

static const uint32_t sizes[] = {1, 8, 100, 4096, 4097, 65537, 1 << 20};

enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void test_write_read(pair_t *pair)
{
    request_t request;
    unsigned i;

    pair_connect(pair);
    for (i = 0; i < SIZES; ++i) {
        fill(pair->a.memory, sizes[i], i);
        request = to_b(pair, IBV_WR_RDMA_WRITE, sizes[i]);
        side_post(&pair->a, &request);
        side_wait_ok(&pair->a);
        CHECK(is_filled(pair->b.memory, sizes[i], i), "%u bytes", sizes[i]);

        fill(pair->b.memory, sizes[i], i + 100);
        request = to_b(pair, IBV_WR_RDMA_READ, sizes[i]);
        side_post(&pair->a, &request);
        side_wait_ok(&pair->a);
        CHECK(is_filled(pair->a.memory, sizes[i], i + 100), "%u bytes",
              sizes[i]);
    }
}

static void test_send(pair_t *pair)
{
    request_t request;
    struct ibv_wc wc;
    unsigned i;

    pair_connect(pair);
    for (i = 0; i < SIZES; ++i) {
        CHECK(side_post_recv(&pair->b, 0, PAIR_MEMORY) == 0, "receive");
        fill(pair->a.memory, sizes[i], i);
        request     = to_b(pair, IBV_WR_SEND_WITH_IMM, sizes[i]);
        request.imm = i + 7;
        side_post(&pair->a, &request);
        side_wait_ok(&pair->a);
        wc = side_wait_ok(&pair->b);
        CHECK((wc.opcode == IBV_WC_RECV) && (wc.wc_flags & IBV_WC_WITH_IMM) &&
              (wc.imm_data == i + 7) && (wc.byte_len == sizes[i]),
              "opcode %d, %u bytes, %u", wc.opcode, wc.byte_len, wc.imm_data);
        CHECK(is_filled(pair->b.memory, sizes[i], i), "%u bytes", sizes[i]);
    }
}

/* --- transactions ----------------------------------------------------------*/

static atomic_int stop_writing;

/* Writes 1 everywhere, then 2... from the begin to the end of a page. */
static void *write_on(void *page)
{
    volatile uint64_t *words = page;
    uint64_t value;
    int i;

    for (value = 1; !stop_writing; ++value) {
        for (i = 0; i < 512; ++i) {
            words[i] = value;
        }
    }
    return NULL;
}

/* A READ is not a snapshot: some must see several states of a page, and an
 * older one before a newer one. The latter needs pauses between transactions
 * (--delay), in which the page changes. */
static void test_torn(pair_t *pair)
{
    request_t request      = to_b(pair, IBV_WR_RDMA_READ, 4096);
    const uint64_t *words  = (uint64_t*)pair->a.memory;
    int k, reads = 0, torn = 0, turned = 0, is_torn, is_turned;
    time_t end             = time(NULL) + PAIR_SECONDS;
    pthread_t writer;

    pair_connect(pair);
    stop_writing = 0;
    CHECK(pthread_create(&writer, NULL, write_on, pair->b.memory) == 0,
          "no thread");
    for (; ((torn == 0) || (turned == 0)) && (time(NULL) < end); ++reads) {
        side_post(&pair->a, &request);
        side_wait_ok(&pair->a);
        for (k = 1, is_torn = 0, is_turned = 0; k < 512; ++k) {
            is_torn   |= words[k] != words[k - 1];
            is_turned |= words[k] > words[k - 1];
        }
        torn   += is_torn;
        turned += is_turned;
    }
    stop_writing = 1;
    pthread_join(writer, NULL);
    printf("  of %d READs, %d saw several states, %d an older one first\n",
           reads, torn, turned);
    CHECK((torn > 0) && (turned > 0), "all READs are snapshots");
}

/* --- errors ----------------------------------------------------------------*/

static void expect(side_t *side, enum ibv_wc_status status)
{
    struct ibv_wc wc = side_wait(side);

    CHECK(wc.status == status, "%s rather than %s",
          ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
}

static void expect_state(const side_t *side, enum ibv_qp_state state)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    CHECK(ibv_query_qp(side->qp, &attr, IBV_QP_STATE, &init) == 0, "query");
    CHECK(attr.qp_state == state, "state %d", attr.qp_state);
}

/* The request fails, the next one is flushed, both ends are in the error state,
 * and the responder's driver gets an event. */
static void refused(pair_t *pair, const request_t *request)
{
    request_t next = to_b(pair, IBV_WR_RDMA_WRITE, 8);

    pair_connect(pair);
    side_post(&pair->a, request);
    side_post(&pair->a, &next);
    expect(&pair->a, IBV_WC_REM_ACCESS_ERR);
    expect(&pair->a, IBV_WC_WR_FLUSH_ERR);
    side_wait_event(&pair->b, IBV_EVENT_QP_ACCESS_ERR, PAIR_SECONDS);
    expect_state(&pair->a, IBV_QPS_ERR);
    expect_state(&pair->b, IBV_QPS_ERR);
}

static void test_access(pair_t *pair)
{
    request_t request = to_b(pair, IBV_WR_RDMA_WRITE, 64);

    request.rkey ^= 0x100;
    refused(pair, &request);
    request.rkey ^= 0x101;
    refused(pair, &request);
    request.rkey  ^= 1;
    request.remote = remote(&pair->b, PAIR_MEMORY - 63);
    refused(pair, &request);
    request.opcode = IBV_WR_RDMA_READ;
    refused(pair, &request);
    request.remote = remote(&pair->b, 0) - 1;
    refused(pair, &request);
}

/* --- all -------------------------------------------------------------------*/

static const struct {
    const char *name;
    void       (*run)(pair_t *pair);
} tests[] = {
    {"write_read", test_write_read}, {"send", test_send},
    {"torn", test_torn}, {"access", test_access},
};

static int is_wanted(const char *name, int argc, char **argv)
{
    int i;

    for (i = 3; i < argc; ++i) {
        if (!strcmp(name, argv[i])) {
            return 1;
        }
    }
    return argc == 3;
}

int main(int argc, char **argv)
{
    unsigned i, done = 0;
    pair_t pair;

    if (argc < 3) {
        fprintf(stderr, "usage: emlx5_verbs DEVICE DEVICE [CASE...]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (i = 0; i < sizeof(tests) / sizeof(tests[0]); ++i) {
        if (is_wanted(tests[i].name, argc, argv)) {
            printf("%s\n", tests[i].name);
            pair_open(&pair, argv[1], argv[2]);
            tests[i].run(&pair);
            pair_close(&pair);
            ++done;
        }
    }
    CHECK(done > 0, "no such case");
    printf("%u cases passed\n", done);
    return 0;
}
