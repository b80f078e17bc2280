/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * NPEMU_LINK: what it accepts, what goes first, what several processes share,
 * and that the rules of verbs hold for requests that wait for the wire. What
 * must not come would come after many seconds, so a slow machine changes no
 * result.
 */

#include "internals.h"
#include "npemu_test.h"

#include <memory>

using namespace npt;

/* At this rate a MiB takes a second, and what a test leaves on the wire would
 * take longer than the test may. */
constexpr const char *SLOW_FAIR = "1MB/s";
constexpr size_t MIB            = 1 << 20;

/* --- the variable --------------------------------------------------------- */

TEST(test_link_value, is_parsed)
{
    uint64_t latency_ns;
    uint32_t port, arb;

    for (auto &it : std::vector<std::pair<const char*, uint64_t>>{
                 {"1.5MB/s", 1500000},
                 {"1GB/s,arb=fair", 1000000000},
                 {"25Gb/s,latency=1.5us,port=64,arb=prio", 3125000000}}) {
        EXPECT_EQ(it.second, npt_link_parse(it.first, &latency_ns, &port,
                                            &arb)) << it.first;
    }
    EXPECT_EQ(1500u, latency_ns);
    EXPECT_EQ(64u, port);
    EXPECT_EQ(2u, arb);
}

/* Before the first comma, or behind it */
TEST(test_link_value, wrong_item_is_named)
{
    for (std::string item : {"100", "0.9MB/s", "1001GB/s", "arb=fair",
                             ",latency=2", ",port=0", ",port=65", ",arb=fast",
                             ",mtu=4096", ","}) {
        bool is_behind   = item[0] == ',';
        std::string text = is_behind ? "1GB/s" + item : item;
        Env link("NPEMU_LINK", text);
        expect_line("NPEMU_LINK=" + text + ": \"" + item.substr(is_behind) +
                    "\"", [] {
            Device device;
        });
    }
}

/* --- traffic -------------------------------------------------------------- */

/* Pairs of queue pairs on one wire, which complete in one CQ. */
class test_link : public testing::Test {
protected:
    /* Opens the device; then it has pairs. */
    void open(const char *value, unsigned count = 2)
    {
        Env link("NPEMU_LINK", value);

        device.reset(new Device);
        local.reset(new Buffer(*device, MIB));
        remote.reset(new Buffer(*device, MIB));
        local->fill(1);
        for (unsigned i = 0; i < count; ++i) {
            pairs.emplace_back(new Pair(*device));
        }
    }

    Qp &a(unsigned index) { return pairs[index]->a; }
    Cq &cq_a(unsigned index) { return pairs[index]->cq_a; }

    void write(unsigned index, uint64_t wr_id, size_t length)
    {
        a(index).write(wr_id, {local->sge(0, length)}, remote->remote());
    }

    void read(unsigned index, uint64_t wr_id, size_t length)
    {
        a(index).read(wr_id, {local->sge(0, length)}, remote->remote());
    }

    unsigned flows() const { return npt_port_flows(device->context); }

    std::unique_ptr<Device> device;
    std::unique_ptr<Buffer> local, remote;
    std::vector<std::unique_ptr<Pair>> pairs;
};

TEST_F(test_link, requests_wait_for_rate_and_latency)
{
    open("100MB/s,latency=30ms", 1);
    auto start = Clock::now();
    write(0, 1, MIB);
    write(0, 2, MIB);
    EXPECT_TRUE(cq_a(0).expect(1, IBV_WC_SUCCESS, 2));
    EXPECT_GE(ms_since(start), 2 * MIB / 100e3 + 30);
    EXPECT_TRUE(pattern_holds(remote->data, MIB, 1));
    cq_a(0).expect_empty();

    /* Twice: there and back */
    start = Clock::now();
    read(0, 3, 8);
    EXPECT_TRUE(cq_a(0).expect(3));
    EXPECT_GE(ms_since(start), 60);
}

/* --- arbitration ---------------------------------------------------------- */

/* With a clock of the test: flows of a class share equally, a class sends only
 * while no higher one does, and flows for which there is no room share one. */
TEST(test_link_wire, leaves_when_its_share_has_been_sent)
{
    /* key, level, work, and when it has left: ns */
    npt_message few[] = {{1, 0, 100, 0}, {2, 0, 50, 0}, {3, 0, 40, 0},
                         {4, 7, 30, 0},  {5, 7, 10, 0}};
    std::vector<npt_message> many;

    npt_wire_play(few, 5);
    EXPECT_EQ(20u, few[4].left_ns);
    EXPECT_EQ(40u, few[3].left_ns);
    EXPECT_EQ(160u, few[2].left_ns);
    EXPECT_EQ(180u, few[1].left_ns);
    EXPECT_EQ(230u, few[0].left_ns);

    for (uint64_t key = 1; key <= 300; ++key) {
        many.push_back({key, 0, 1, 0});
    }
    npt_wire_play(many.data(), many.size());
    EXPECT_EQ(129u, many.front().left_ns) << "128 flows and the shared one";
    EXPECT_EQ(300u, many.back().left_ns);
}

TEST_F(test_link, prio_goes_by_service_level)
{
    open("1MB/s,arb=prio", 3);
    ASSERT_EQ(0, a(1).to_state(IBV_QPS_RESET));
    a(1).options.sl = 5;
    a(1).connect(pairs[1]->b.address());
    write(0, 1, MIB);
    for (int i = 0; i < 4; ++i) {
        write(1, 2 + i, MIB / 8); /* of level 5 */
    }
    write(2, 10, 8);
    for (int i = 0; i < 16; ++i) { /* More seconds than anything takes here */
        write(2, 11 + i, MIB);
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
        read(0, 1, MIB);
        Wr fenced_wr(2, IBV_WR_RDMA_WRITE, {local->sge(0, 8)},
                     IBV_SEND_FENCE | IBV_SEND_SIGNALED);
        ASSERT_EQ(0, a(0).post(fenced_wr.rdma(remote->remote())));
        write(0, 3, 8);
        read(1, 4, MIB);
        write(1, 5, 8);
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
        (i % 2) ? read(0, i, MIB) : write(0, i, MIB);
    }
    write(1, 10, MIB);
    EXPECT_EQ(2u, flows());
    ASSERT_EQ(0, a(0).to_state(IBV_QPS_ERR));
    EXPECT_TRUE(cq_a(0).expect(0, IBV_WC_WR_FLUSH_ERR, 8));
    EXPECT_EQ(1u, flows());
    write(0, 8, 8);
    EXPECT_TRUE(cq_a(0).expect(8, IBV_WC_WR_FLUSH_ERR));
    EXPECT_EQ(0, remote->data[0]);
}

TEST_F(test_link, a_queue_pair_that_waits_can_be_destroyed)
{
    open(SLOW_FAIR);
    for (int i = 0; i < 8; ++i) {
        write(0, i, MIB);
    }
    EXPECT_EQ(1u, flows());
    pairs[0].reset();
    EXPECT_EQ(0u, flows());
    write(1, 1, 8);
    EXPECT_TRUE(cq_a(1).expect(1));
}

/* A request that waits for the wire has not been tried. */
TEST_F(test_link, a_wait_for_the_wire_is_no_retry)
{
    QpOptions impatient;

    open("1000GB/s,latency=20ms", 1);
    write(0, 1, 8);
    EXPECT_TRUE(cq_a(0).expect(1));
    EXPECT_EQ(0u, npemu_cq_retries(cq_a(0)));

    impatient.rnr_retry = 0;
    Pair pair(*device, impatient);
    pair.a.send(2, {local->sge(0, 64)});
    EXPECT_TRUE(pair.cq_a.expect(2, IBV_WC_RNR_RETRY_EXC_ERR));
    EXPECT_EQ(0u, npemu_cq_retries(pair.cq_a));
}

/* --- the CPU -------------------------------------------------------------- */

/* If a sample of long copies takes longer than the wire, one line says so. */
TEST_F(test_link, a_cpu_that_is_slower_than_the_wire_is_reported_once)
{
    auto account = [this](int count, uint64_t length, uint64_t cpu_ns) {
        return stderr_of([=] {
            for (int i = 0; i < count; ++i) {
                npt_port_account(device->context, length, 1000, cpu_ns);
            }
        });
    };

    open("1GB/s", 1);
    EXPECT_EQ("", account(128, MIB, 999));
    EXPECT_EQ("", account(1000, 4096, 1000000)); /* short: does not count */
    std::string text = account(256, MIB, 1001);
    size_t first     = text.find("NPEMU_LINK: the CPU copies");
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

/* Waits for the end of the test, with its memory as the target. */
static Child::Body idle(const char *value)
{
    return [value](Pipe &pipe) {
        Env link("NPEMU_LINK", value);
        be_idle(pipe);
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
            pair.a.write(i, {side.buffer.sge()}, side.remote());
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
    side.qp.read(1, {side.buffer.sge()}, remote);
    EXPECT_EQ(0u, side.flows());
    EXPECT_EQ(1u, npt_peer_port_flows(side.qp));
    side.write(2, remote, MIB);
    EXPECT_EQ(1u, side.flows());
    EXPECT_TRUE(side.cq.expect(1, IBV_WC_SUCCESS, 2));
    child.release();
}

/* What a killed one owes would have left in a minute and more */
TEST(test_link_process, processes_share_a_port_while_they_live)
{
    Child child(busy("1MB/s,port=1"));
    LinkSide side("1MB/s,port=1");

    connect_over(child.pipe(), side.qp);
    ASSERT_TRUE(child.pipe().await());
    EXPECT_EQ(1u, side.flows());
    Pair pair(side.device);
    pair.a.write(1, {side.buffer.sge(0, 1000)}, side.remote());
    EXPECT_EQ(2u, side.flows());
    EXPECT_TRUE(pair.cq_a.expect(1));
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
        (i % 2) ? side.write(i, remote, MIB) :
                  side.qp.read(i, {side.buffer.sge()}, remote);
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
