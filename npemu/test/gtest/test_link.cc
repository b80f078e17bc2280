/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * NPEMU_LINK in one process: what it accepts, what goes first, and that the
 * rules of verbs hold for requests that wait for the wire. What must not come
 * would come after many seconds, so a slow machine changes no result.
 */

#include "internals.h"
#include "npemu_link.h"
#include "npemu_test.h"

#include <cerrno>
#include <memory>

using namespace npt;

/* --- the variable --------------------------------------------------------- */

struct LinkValue {
    const char *name;
    const char *text;
    const char *item; /* that is wrong; nullptr: none */
    uint64_t    rate;
    uint64_t    latency_ns;
    uint32_t    port;
    uint32_t    arb;
};

static void PrintTo(const LinkValue &value, std::ostream *out)
{
    *out << value.text;
}

class test_link_value : public testing::TestWithParam<LinkValue> {};

TEST_P(test_link_value, is_parsed_or_its_item_is_named)
{
    const LinkValue &value = GetParam();
    uint64_t rate, latency_ns;
    uint32_t port, arb;
    char item[64];

    EXPECT_EQ((value.item == nullptr) ? 0 : EINVAL,
              npt_link_parse(value.text, &rate, &latency_ns, &port, &arb,
                             item));
    EXPECT_EQ(value.rate, rate);
    EXPECT_EQ(value.latency_ns, latency_ns);
    EXPECT_EQ(value.port, port);
    EXPECT_EQ(value.arb, arb);
    if (value.item == nullptr) {
        return;
    }

    EXPECT_STREQ(value.item, item);
    Link link(value.text);
    std::string text = stderr_of([] {
        Device device;
        EXPECT_TRUE(device.ok()); /* without a wire */
    });
    EXPECT_NE(std::string::npos,
              text.find(std::string("NPEMU_LINK=") + value.text + ": \"" +
                        value.item + "\"")) << text;
}

INSTANTIATE_TEST_SUITE_P(link, test_link_value, testing::Values(
    LinkValue{"rate", "1GB/s", nullptr, 1000000000, 0, 0, 0},
    LinkValue{"bits", "100Gb/s", nullptr, 12500000000, 0, 0, 0},
    LinkValue{"fraction", "1.5MB/s", nullptr, 1500000, 0, 0, 0},
    LinkValue{"all", "25Gb/s,latency=1.5us,port=64,arb=prio", nullptr,
              3125000000, 1500, 64, 2},
    LinkValue{"order", "8Mb/s,arb=fifo,latency=1s", nullptr, 1000000,
              1000000000, 0, 1},
    LinkValue{"fair", "1000GB/s,arb=fair", nullptr, 1000000000000, 0, 0, 0},
    LinkValue{"number_only", "100", "100", 0, 0, 0, 0},
    LinkValue{"no_number", "GB/s", "GB/s", 0, 0, 0, 0},
    LinkValue{"two_points", "1.2.3GB/s", "1.2.3GB/s", 0, 0, 0, 0},
    LinkValue{"sign", "-1GB/s", "-1GB/s", 0, 0, 0, 0},
    LinkValue{"too_slow", "0.9MB/s", "0.9MB/s", 0, 0, 0, 0},
    LinkValue{"too_fast", "1001GB/s", "1001GB/s", 0, 0, 0, 0},
    LinkValue{"unit", "1TB/s", "1TB/s", 0, 0, 0, 0},
    LinkValue{"rate_not_first", "arb=fair,1GB/s", "arb=fair", 0, 0, 0, 0},
    LinkValue{"no_unit_of_time", "1GB/s,latency=2", "latency=2", 0, 0, 0, 0},
    LinkValue{"long_latency", "1GB/s,latency=1.1s", "latency=1.1s", 0, 0, 0,
              0},
    LinkValue{"port_0", "1GB/s,port=0", "port=0", 0, 0, 0, 0},
    LinkValue{"port_65", "1GB/s,port=65", "port=65", 0, 0, 0, 0},
    LinkValue{"port_text", "1GB/s,port=1x", "port=1x", 0, 0, 0, 0},
    LinkValue{"arb", "1GB/s,arb=fast", "arb=fast", 0, 0, 0, 0},
    LinkValue{"unknown", "1GB/s,mtu=4096", "mtu=4096", 0, 0, 0, 0},
    LinkValue{"empty_item", "1GB/s,", "", 0, 0, 0, 0}),
    [](const auto &info) { return info.param.name; });

struct LinkSpeed {
    const char *name;
    const char *text;
    uint8_t     width;
    uint8_t     speed;
};

static void PrintTo(const LinkSpeed &speed, std::ostream *out)
{
    *out << speed.text;
}

class test_link_speed : public testing::TestWithParam<LinkSpeed> {};

TEST_P(test_link_speed, is_that_of_the_port)
{
    Link link(GetParam().text);
    Device device;
    ibv_port_attr attr = {};

    ASSERT_TRUE(device.ok());
    ASSERT_EQ(0, npemu_query_port(device.context, 1, &attr));
    EXPECT_EQ(GetParam().width, attr.active_width);
    EXPECT_EQ(GetParam().speed, attr.active_speed);
}

INSTANTIATE_TEST_SUITE_P(link, test_link_speed, testing::Values(
    LinkSpeed{"none", "", 2, 32},
    LinkSpeed{"mb_1", "1MB/s", 1, 1},        /* the slowest that there is */
    LinkSpeed{"gb_1", "1GB/s", 2, 1},        /* 4 x 2 Gbit/s */
    LinkSpeed{"gbit_10", "10Gb/s", 1, 8},
    LinkSpeed{"gbit_25", "25Gb/s", 1, 32},
    LinkSpeed{"gbit_100", "100Gb/s", 2, 32},
    LinkSpeed{"gbit_200", "200Gb/s", 2, 64},
    LinkSpeed{"gb_1000", "1000GB/s", 8, 128}),
    [](const auto &info) { return info.param.name; });

/* --- traffic -------------------------------------------------------------- */

/* Pairs of queue pairs on one wire, which complete in one CQ. */
class test_link : public testing::Test {
protected:
    /* Opens the device; then it has pairs. */
    void open(const char *value, unsigned count = 2)
    {
        Link link(value);

        device.reset(new Device);
        ASSERT_TRUE(device->ok());
        cq.reset(new Cq(*device));
        local.reset(new Buffer(*device, MIB));
        remote.reset(new Buffer(*device, MIB));
        local->fill(1);
        for (unsigned i = 0; i < count; ++i) {
            pairs.emplace_back(new Pair(*device));
        }
    }

    /* Requests of a, and the wr_id of the last. */
    Qp &a(unsigned index) { return pairs[index]->a; }
    Cq &cq_a(unsigned index) { return pairs[index]->cq_a; }

    int write(unsigned index, uint64_t wr_id, size_t length,
              unsigned flags = IBV_SEND_SIGNALED)
    {
        Wr wr(wr_id, IBV_WR_RDMA_WRITE, {local->sge(0, length)}, flags);

        return a(index).post(wr.rdma(*remote));
    }

    int read(unsigned index, uint64_t wr_id, size_t length)
    {
        Wr wr(wr_id, IBV_WR_RDMA_READ, {local->sge(0, length)});

        return a(index).post(wr.rdma(*remote));
    }

    unsigned flows() const { return npt_port_flows(device->context); }

    std::unique_ptr<Device> device;
    std::unique_ptr<Cq>     cq;
    std::unique_ptr<Buffer> local, remote;
    std::vector<std::unique_ptr<Pair>> pairs;
};

/* The control of all below: without the variable, posting executes. */
TEST_F(test_link, without_it_nothing_waits)
{
    open("", 1);
    ASSERT_EQ(0, write(0, 1, MIB));
    EXPECT_TRUE(pattern_holds(remote->data, MIB, 1));
    EXPECT_TRUE(cq_a(0).expect(1));
    EXPECT_EQ(0u, flows());
}

TEST_F(test_link, requests_wait_in_the_send_queue)
{
    open("100MB/s", 1);
    auto start = Clock::now();
    ASSERT_EQ(0, write(0, 1, MIB));
    ASSERT_EQ(0, write(0, 2, MIB));
    EXPECT_TRUE(cq_a(0).expect(1, IBV_WC_SUCCESS, 2));
    EXPECT_GE(ms_since(start), 2 * MIB / 100e3);
    EXPECT_TRUE(pattern_holds(remote->data, MIB, 1));
    cq_a(0).expect_empty();
}

TEST_F(test_link, a_full_send_queue_takes_no_more)
{
    int count = 0;

    open(SLOW_FAIR, 1);
    while (write(0, count, 64 << 10) == 0) {
        ++count;
    }
    EXPECT_EQ(64, count);
    EXPECT_EQ(ENOMEM, write(0, count, 1));
    EXPECT_EQ(64u, npt_qp_admitted(a(0)));
    EXPECT_EQ(0, remote->data[0]);
    cq_a(0).expect_empty();
}

/* Inline data is that at the time of posting. */
TEST_F(test_link, inline_data_is_copied)
{
    open("1MB/s,latency=20ms", 1);
    ASSERT_EQ(0, write(0, 1, 64, IBV_SEND_INLINE | IBV_SEND_SIGNALED));
    memset(local->data, 0xee, 64);
    EXPECT_TRUE(cq_a(0).expect(1));
    EXPECT_TRUE(pattern_holds(remote->data, 64, 1));
}

TEST_F(test_link, latency_counts_once_or_twice)
{
    open("1000GB/s,latency=30ms", 1);
    auto start = Clock::now();
    ASSERT_EQ(0, write(0, 1, 8));
    EXPECT_TRUE(cq_a(0).expect(1));
    EXPECT_GE(ms_since(start), 30);

    start = Clock::now();
    ASSERT_EQ(0, read(0, 2, 8));
    EXPECT_TRUE(cq_a(0).expect(2));
    EXPECT_GE(ms_since(start), 60);
}

/* --- arbitration ---------------------------------------------------------- */

/* 4 MiB before it take seconds; a short one of another queue pair does not. */
TEST_F(test_link, fair_lets_a_short_one_pass)
{
    open(SLOW_FAIR);
    for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(0, write(0, i, MIB));
    }
    ASSERT_EQ(0, write(1, 10, 8));
    /* Two flows: twice its work */
    EXPECT_LE(npt_qp_left_ns(a(1), 0) + MIB * 1000,
              npt_qp_left_ns(a(0), 1));
    EXPECT_TRUE(cq_a(1).expect(10));
    EXPECT_NE(0u, npt_qp_admitted(a(0)));
    EXPECT_EQ(1u, flows());
}

/* Byte accounting: each has half until the shorter ends. */
TEST_F(test_link, fair_halves)
{
    open(SLOW_FAIR);
    ASSERT_EQ(0, write(0, 1, MIB));
    ASSERT_EQ(0, write(1, 2, MIB));
    /* The second was estimated with both there. The first had been sending
     * alone for as long as the test took to come here */
    uint64_t work = npt_qp_work_ns(a(1), 0);
    EXPECT_EQ((MIB + 64) * 1000, work);
    EXPECT_LE(npt_qp_left_ns(a(1), 0), npt_qp_left_ns(a(0), 0) + work + 1);
    EXPECT_GE(npt_qp_left_ns(a(1), 0) + 1, npt_qp_left_ns(a(0), 0) + work);
}

/* It is behind all that was posted before, of whatever queue pair. */
TEST_F(test_link, fifo_keeps_the_order_of_posting)
{
    open(SLOW_FIFO);
    for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(0, write(0, i, MIB));
    }
    ASSERT_EQ(0, write(1, 10, 8));
    uint64_t before = npt_qp_left_ns(a(0), 3);
    uint64_t mine   = npt_qp_left_ns(a(1), 0);
    EXPECT_LE(before + 71000, mine);
    EXPECT_GE(before + 73000, mine);
    EXPECT_EQ(0u, flows()); /* none of its own */
}

TEST_F(test_link, prio_goes_by_service_level)
{
    ibv_qp_attr attr = {};

    open(SLOW_PRIO, 3);
    for (unsigned i = 1; i < 3; ++i) {
        ASSERT_EQ(0, a(i).to_state(IBV_QPS_SQD));
        attr.qp_state         = IBV_QPS_SQD;
        attr.ah_attr.dlid     = a(i).address().lid;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.sl       = (i == 1) ? 5 : 0;
        ASSERT_EQ(0, npemu_modify_qp(a(i), &attr, IBV_QP_AV));
        ASSERT_EQ(0, a(i).to_state(IBV_QPS_RTS));
    }
    ASSERT_EQ(0, write(0, 1, MIB));
    for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(0, write(1, 2 + i, MIB / 8)); /* of level 5 */
    }
    ASSERT_EQ(0, write(2, 10, 8));
    for (int i = 0; i < 16; ++i) { /* More seconds than anything takes here */
        ASSERT_EQ(0, write(2, 11 + i, MIB));
    }
    /* Level 5 has all until it is done, so a short one waits for it */
    EXPECT_GE(npt_qp_left_ns(a(2), 0), npt_qp_left_ns(a(1), 3));
    EXPECT_TRUE(cq_a(1).expect(2, IBV_WC_SUCCESS, 4));
    EXPECT_NE(0u, npt_qp_admitted(a(2)));
}

/* --- order, errors, ends -------------------------------------------------- */

/* What a fence holds back is not on the wire. Repeated until it has looked
 * before a READ was done, which needs the CPU for some milliseconds. */
TEST_F(test_link, fenced_requests_wait_for_reads)
{
    auto start   = Clock::now();
    bool is_late = true;
    unsigned fenced, control;

    open("50MB/s");
    remote->fill(7);
    while (is_late) {
        ASSERT_GT(WAIT_MS, ms_since(start));
        ASSERT_EQ(0, read(0, 1, MIB));
        ASSERT_EQ(0, write(0, 2, 8, IBV_SEND_FENCE | IBV_SEND_SIGNALED));
        ASSERT_EQ(0, write(0, 3, 8));
        ASSERT_EQ(0, read(1, 4, MIB));
        ASSERT_EQ(0, write(1, 5, 8));
        fenced  = npt_qp_admitted(a(0));
        control = npt_qp_admitted(a(1));
        is_late = (npt_qp_waiting(a(0)) < 3) || (npt_qp_waiting(a(1)) < 2);
        EXPECT_TRUE(cq_a(0).expect(1, IBV_WC_SUCCESS, 3));
        EXPECT_TRUE(cq_a(1).expect(4, IBV_WC_SUCCESS, 2));
    }
    EXPECT_EQ(1u, fenced);
    EXPECT_EQ(2u, control); /* no fence */
    EXPECT_TRUE(pattern_holds(local->data, MIB, 7));
}

TEST_F(test_link, error_flushes_what_waits)
{
    open(SLOW_FAIR);
    for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(0, (i % 2) ? read(0, i, MIB) : write(0, i, MIB));
    }
    ASSERT_EQ(0, write(1, 10, MIB));
    EXPECT_EQ(2u, flows());
    ASSERT_EQ(0, a(0).to_state(IBV_QPS_ERR));
    EXPECT_TRUE(cq_a(0).expect(0, IBV_WC_WR_FLUSH_ERR, 8));
    EXPECT_EQ(1u, flows());
    ASSERT_EQ(0, write(0, 8, 8));
    EXPECT_TRUE(cq_a(0).expect(8, IBV_WC_WR_FLUSH_ERR));
    EXPECT_EQ(0, remote->data[0]);
}

/* The first fails when it is executed, and takes the others with it. */
TEST_F(test_link, a_failed_request_flushes_those_behind)
{
    open("10MB/s", 1);
    Wr bad(1, IBV_WR_RDMA_WRITE, {local->sge(0, 8)});
    bad.rdma(Remote{remote->at(0), remote->mr->rkey + 0x1000000});
    ASSERT_EQ(0, write(0, 0, 64 << 10));
    ASSERT_EQ(0, a(0).post(bad));
    ASSERT_EQ(0, write(0, 2, MIB));
    ASSERT_EQ(0, write(0, 3, MIB));
    EXPECT_TRUE(cq_a(0).expect(0));
    EXPECT_TRUE(cq_a(0).expect(1, IBV_WC_REM_ACCESS_ERR));
    EXPECT_TRUE(cq_a(0).expect(2, IBV_WC_WR_FLUSH_ERR, 2));
    EXPECT_EQ(0u, flows());
}

TEST_F(test_link, a_queue_pair_that_waits_can_be_destroyed)
{
    open(SLOW_FAIR);
    for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(0, write(0, i, MIB));
    }
    EXPECT_EQ(1u, flows());
    pairs[0].reset();
    EXPECT_EQ(0u, flows());
    ASSERT_EQ(0, write(1, 1, 8));
    EXPECT_TRUE(cq_a(1).expect(1));
}

TEST_F(test_link, reset_starts_anew)
{
    open(SLOW_FAIR, 1);
    for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(0, write(0, i, MIB));
    }
    ASSERT_EQ(0, a(0).to_state(IBV_QPS_RESET));
    EXPECT_EQ(0u, flows());
    ASSERT_EQ(0, pairs[0]->b.to_state(IBV_QPS_RESET));
    connect(pairs[0]->a, pairs[0]->b);
    ASSERT_EQ(0, write(0, 20, 8));
    EXPECT_TRUE(cq_a(0).expect(20));
    cq_a(0).expect_empty();
}

/* In SQD what was begun ends, and the rest stays. Repeated until the first was
 * still on the wire when the state changed. */
TEST_F(test_link, drained_with_a_request_on_the_wire)
{
    auto start       = Clock::now();
    ibv_qp_attr attr = {};
    bool is_late     = true;

    open("10MB/s", 1);
    attr.qp_state            = IBV_QPS_SQD;
    attr.en_sqd_async_notify = 1;
    while (is_late) {
        ASSERT_GT(WAIT_MS, ms_since(start));
        ASSERT_EQ(0, write(0, 1, MIB));
        ASSERT_EQ(0, write(0, 2, 8));
        ASSERT_EQ(0, npemu_modify_qp(a(0), &attr, IBV_QP_STATE |
                                     IBV_QP_EN_SQD_ASYNC_NOTIFY));
        is_late = npt_qp_waiting(a(0)) < 2;
        if (is_late) {
            EXPECT_EQ(IBV_EVENT_SQ_DRAINED, take_async(*device).type);
            ASSERT_EQ(0, a(0).to_state(IBV_QPS_RTS));
            EXPECT_TRUE(cq_a(0).expect(1, IBV_WC_SUCCESS, 2));
        }
    }
    EXPECT_TRUE(cq_a(0).expect(1));
    AsyncEvent event = take_async(*device);
    EXPECT_EQ(IBV_EVENT_SQ_DRAINED, event.type);
    ASSERT_EQ(0, write(0, 3, 8)); /* kept */
    EXPECT_EQ(1u, npt_qp_admitted(a(0)));
    cq_a(0).expect_empty();
    ASSERT_EQ(0, a(0).to_state(IBV_QPS_RTS));
    EXPECT_TRUE(cq_a(0).expect(2, IBV_WC_SUCCESS, 2));
}

/* The wire first, then the receive. */
TEST_F(test_link, a_send_without_receive_is_retried)
{
    ibv_wc wc;

    open("100MB/s", 1);
    Wr one(1, IBV_WR_SEND, {local->sge(0, 64)});
    Wr two(2, IBV_WR_SEND, {local->sge(64, 64)});
    ASSERT_EQ(0, a(0).post(one.then(two)));
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(0, ibv_poll_cq(cq_a(0), 1, &wc));
    }
    ASSERT_EQ(0, pairs[0]->b.post_recv(5, {remote->sge(0, 64)}));
    ASSERT_EQ(0, pairs[0]->b.post_recv(6, {remote->sge(64, 64)}));
    EXPECT_TRUE(cq_a(0).expect(1, IBV_WC_SUCCESS, 2));
    EXPECT_TRUE(pairs[0]->cq_b.expect(5, IBV_WC_SUCCESS, 2));
    EXPECT_TRUE(pattern_holds(remote->data, 128, 1));
}

/* A request that waits for the wire has not been tried. */
TEST_F(test_link, a_wait_for_the_wire_is_no_retry)
{
    QpOptions impatient;

    open("1000GB/s,latency=20ms", 1);
    ASSERT_EQ(0, write(0, 1, 8));
    EXPECT_TRUE(cq_a(0).expect(1));
    EXPECT_EQ(0u, npemu_cq_retries(cq_a(0)));

    impatient.rnr_retry = 0;
    Pair pair(*device, impatient);
    Wr wr(2, IBV_WR_SEND, {local->sge(0, 64)});
    ASSERT_EQ(0, pair.a.post(wr));
    EXPECT_TRUE(pair.cq_a.expect(2, IBV_WC_RNR_RETRY_EXC_ERR));
    EXPECT_EQ(0u, npemu_cq_retries(pair.cq_a));
}

TEST_F(test_link, datagrams_wait_too)
{
    QpOptions ud;

    open("1000GB/s,latency=20ms", 0);
    ud.type = IBV_QPT_UD;
    Pair pair(*device, ud, ud);
    ibv_ah_attr ah_attr = {};
    ah_attr.dlid     = pair.b.address().lid;
    ah_attr.port_num = 1;
    ibv_ah *ah = npemu_create_ah(device->pd, &ah_attr);
    ASSERT_NE(nullptr, ah);
    ASSERT_EQ(0, pair.b.post_recv(1, {remote->sge(0, 1024)}));
    auto start = Clock::now();
    Wr wr(2, IBV_WR_SEND, {local->sge(0, 512)});
    ASSERT_EQ(0, pair.a.post(wr.ud(ah, pair.b.address().qpn)));
    EXPECT_TRUE(pair.cq_a.expect(2));
    EXPECT_GE(ms_since(start), 20);
    EXPECT_TRUE(pair.cq_b.expect(1));
    EXPECT_TRUE(pattern_holds(remote->data + 40, 512, 1));
    EXPECT_EQ(0, npemu_destroy_ah(ah));
}

/* --- the CPU -------------------------------------------------------------- */

/* If a sample of long copies takes longer than the wire, one line says so. */
TEST_F(test_link, a_cpu_that_is_slower_than_the_wire_is_reported_once)
{
    open("1GB/s", 1);
    std::string text = stderr_of([&] {
        for (int i = 0; i < 128; ++i) {
            npt_port_account(device->context, MIB, 1000, 999);
        }
        for (int i = 0; i < 1000; ++i) { /* what is short does not count */
            npt_port_account(device->context, 4096, 1, 1000000);
        }
    });
    EXPECT_EQ("", text);

    text = stderr_of([&] {
        for (int i = 0; i < 256; ++i) {
            npt_port_account(device->context, MIB, 1000, 1001);
        }
    });
    size_t first = text.find("NPEMU_LINK: the CPU copies");
    EXPECT_NE(std::string::npos, first) << text;
    EXPECT_EQ(std::string::npos, text.find("NPEMU_LINK", first + 1)) << text;
}

/* No CPU copies 1000 GB/s. */
TEST_F(test_link, an_absurd_rate_is_reported)
{
    open("1000GB/s", 1);
    std::string text = stderr_of([&] {
        for (int i = 0; i < 80; ++i) {
            ASSERT_EQ(0, write(0, i, MIB));
            EXPECT_TRUE(cq_a(0).expect(i));
        }
    });
    EXPECT_NE(std::string::npos, text.find("the CPU copies")) << text;
}
