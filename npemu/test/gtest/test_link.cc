/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * NPEMU_LINK: what it accepts, what goes first, what several processes share,
 * and that the rules of verbs hold for requests that wait for the wire. What
 * must not come would come after many seconds, so a slow machine changes no
 * result.
 */

#include "internals.h"
#include "npemu_test.h"

#include <cerrno>
#include <csignal>
#include <memory>

using namespace npt;

/* At this rate a MiB takes a second, and what a test leaves on the wire would
 * take longer than the test may. */
constexpr const char *SLOW_FAIR = "1MB/s";
constexpr size_t MIB            = 1 << 20;

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
    Env link("NPEMU_LINK", value.text);
    expect_line(std::string("NPEMU_LINK=") + value.text + ": \"" +
                value.item + "\"", [] {
        Device device;
    });
}

INSTANTIATE_TEST_SUITE_P(link, test_link_value, testing::Values(
    LinkValue{"rate", "1GB/s", nullptr, 1000000000, 0, 0, 0},
    LinkValue{"fraction", "1.5MB/s", nullptr, 1500000, 0, 0, 0},
    LinkValue{"all", "25Gb/s,latency=1.5us,port=64,arb=prio", nullptr,
              3125000000, 1500, 64, 2},
    LinkValue{"fair", "1000GB/s,arb=fair", nullptr, 1000000000000, 0, 0, 0},
    LinkValue{"number_only", "100", "100", 0, 0, 0, 0},
    LinkValue{"too_slow", "0.9MB/s", "0.9MB/s", 0, 0, 0, 0},
    LinkValue{"too_fast", "1001GB/s", "1001GB/s", 0, 0, 0, 0},
    LinkValue{"rate_not_first", "arb=fair,1GB/s", "arb=fair", 0, 0, 0, 0},
    LinkValue{"no_unit_of_time", "1GB/s,latency=2", "latency=2", 0, 0, 0, 0},
    LinkValue{"port_0", "1GB/s,port=0", "port=0", 0, 0, 0, 0},
    LinkValue{"port_65", "1GB/s,port=65", "port=65", 0, 0, 0, 0},
    LinkValue{"arb", "1GB/s,arb=fast", "arb=fast", 0, 0, 0, 0},
    LinkValue{"unknown", "1GB/s,mtu=4096", "mtu=4096", 0, 0, 0, 0},
    LinkValue{"empty_item", "1GB/s,", "", 0, 0, 0, 0}),
    [](const auto &info) { return info.param.name; });

/* --- traffic -------------------------------------------------------------- */

/* Pairs of queue pairs on one wire, which complete in one CQ. */
class test_link : public testing::Test {
protected:
    /* Opens the device; then it has pairs. */
    void open(const char *value, unsigned count = 2)
    {
        Env link("NPEMU_LINK", value);

        device.reset(new Device);
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

TEST_F(test_link, prio_goes_by_service_level)
{
    open("1MB/s,arb=prio", 3);
    ASSERT_EQ(0, a(1).to_state(IBV_QPS_RESET));
    a(1).options.sl = 5;
    a(1).connect(pairs[1]->b.address());
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

/* --- several processes ---------------------------------------------------- */

/* A side of a connection, on a link. */
struct LinkSide : private Env, public Side {
    explicit LinkSide(const char *value) :
        Env("NPEMU_LINK", value), Side(QpOptions(), MIB)
    {
    }

    unsigned flows() const { return npt_port_flows(device.context); }
};

/* Connects, and gives its memory; then it waits for the end of the test. */
static Child::Body idle(const char *value)
{
    return [value](Pipe &pipe) {
        LinkSide side(value);

        side.buffer.fill(3);
        connect_over(pipe, side.qp);
        EXPECT_TRUE(pipe.send(side.remote()));
        EXPECT_TRUE(pipe.await());
    };
}

/* Puts 64 MiB on its port, connected to itself and to the test. */
static Child::Body busy(const char *value)
{
    return [value](Pipe &pipe) {
        LinkSide side(value);
        Pair pair(side.device);

        connect_over(pipe, side.qp);
        for (int i = 0; i < 64; ++i) {
            Wr wr(i, IBV_WR_RDMA_WRITE, {side.buffer.sge()});
            EXPECT_EQ(0, pair.a.post(wr.rdma(side.buffer)));
        }
        EXPECT_TRUE(pipe.signal());
        pipe.await();
    };
}

TEST(test_link_process, a_read_loads_the_port_of_the_target)
{
    Child child(idle("1MB/s,port=2"));
    LinkSide side("1MB/s,port=1");

    connect_over(child.pipe(), side.qp);
    Remote remote = child.pipe().recv<Remote>();
    ASSERT_EQ(0, side.post(1, IBV_WR_RDMA_READ, MIB, remote));
    EXPECT_EQ(0u, side.flows());
    EXPECT_EQ(1u, npt_peer_port_flows(side.qp));
    side.write(2, remote, MIB);
    EXPECT_EQ(1u, side.flows());
    EXPECT_TRUE(side.cq.expect(1, IBV_WC_SUCCESS, 2));
    EXPECT_TRUE(pattern_holds(side.buffer.data, MIB, 3));
    child.pipe().signal();
    child.join();
}

TEST(test_link_process, processes_share_a_port)
{
    Child child(busy("1MB/s,port=1"));
    LinkSide side("1MB/s,port=1");

    connect_over(child.pipe(), side.qp);
    ASSERT_TRUE(child.pipe().await());
    EXPECT_EQ(1u, side.flows());
    Pair pair(side.device);
    Wr wr(1, IBV_WR_RDMA_WRITE, {side.buffer.sge(0, 1000 - 64)});
    ASSERT_EQ(0, pair.a.post(wr.rdma(side.buffer)));
    EXPECT_EQ(2u, side.flows());
    EXPECT_TRUE(pair.cq_a.expect(1));
    EXPECT_EQ(1u, side.flows());
    child.pipe().signal();
    child.join();
}

/* In a minute and more, what it owes would have left. */
TEST(test_link_process, a_killed_process_owes_nothing)
{
    Child child(busy("1MB/s,port=1"));
    LinkSide side("1MB/s,port=1");

    connect_over(child.pipe(), side.qp);
    ASSERT_TRUE(child.pipe().await());
    EXPECT_EQ(1u, side.flows());
    auto start = Clock::now();
    child.kill();
    EXPECT_TRUE(wait_until([&] { return side.flows() == 0; }));
    EXPECT_LT(ms_since(start), 60000);
}

/* What waits for data of a dead process fails then, not when it were due. */
TEST(test_link_process, death_of_the_target_ends_the_wait)
{
    Child child(idle(SLOW_FAIR));
    LinkSide side(SLOW_FAIR);

    connect_over(child.pipe(), side.qp);
    Remote remote = child.pipe().recv<Remote>();
    for (int i = 0; i < 32; ++i) {
        ASSERT_EQ(0, side.post(i, (i % 2) ? IBV_WR_RDMA_WRITE :
                                            IBV_WR_RDMA_READ, MIB, remote));
    }
    child.kill();
    ibv_wc wc = side.cq.wait();
    while ((wc.status == IBV_WC_SUCCESS) && (wc.wr_id < 31)) {
        wc = side.cq.wait(); /* a slow machine may have let some through */
    }
    EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, wc.status);
    EXPECT_TRUE(side.cq.expect(wc.wr_id + 1, IBV_WC_WR_FLUSH_ERR,
                               31 - wc.wr_id));
    EXPECT_EQ(0u, side.flows());
}
