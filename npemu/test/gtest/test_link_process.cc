/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* NPEMU_LINK with several processes: shared ports, sleep, and death. */

#include "internals.h"
#include "npemu_link.h"
#include "npemu_test.h"

#include <csignal>

#include <sys/wait.h>

using namespace npt;

/* A side of a connection, on a link. */
struct LinkSide {
    explicit LinkSide(const char *value) :
        link(value), channel(device), cq(device, 256, &channel),
        qp(device, cq, cq), buffer(device, MIB)
    {
    }

    int write(uint64_t wr_id, const Remote &remote, size_t length)
    {
        Wr wr(wr_id, IBV_WR_RDMA_WRITE, {buffer.sge(0, length)});

        return qp.post(wr.rdma(remote));
    }

    int read(uint64_t wr_id, const Remote &remote, size_t length)
    {
        Wr wr(wr_id, IBV_WR_RDMA_READ, {buffer.sge(0, length)});

        return qp.post(wr.rdma(remote));
    }

    Remote remote() const { return {buffer.at(0), buffer.mr->rkey}; }
    unsigned flows() const { return npt_port_flows(device.context); }

    Link    link;
    Device  device;
    Channel channel;
    Cq      cq;
    Qp      qp;
    Buffer  buffer;
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
    ASSERT_EQ(0, side.read(1, remote, MIB));
    EXPECT_EQ(0u, side.flows());
    EXPECT_EQ(1u, npt_peer_port_flows(side.qp));
    ASSERT_EQ(0, side.write(2, remote, MIB));
    EXPECT_EQ(1u, side.flows());
    EXPECT_TRUE(side.cq.expect(1, IBV_WC_SUCCESS, 2));
    EXPECT_TRUE(pattern_holds(side.buffer.data, MIB, 3));
    child.pipe().signal();
    child.join();
}

/* The wire is the one of the process that has the data: none, there. */
TEST(test_link_process, a_target_without_a_link_delays_no_read)
{
    Child child(idle(""));
    LinkSide side(SLOW_FAIR);

    connect_over(child.pipe(), side.qp);
    Remote remote = child.pipe().recv<Remote>();
    ASSERT_EQ(0, side.read(1, remote, MIB));
    EXPECT_EQ(0u, npt_qp_admitted(side.qp)); /* done */
    EXPECT_TRUE(side.cq.expect(1));
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

/* The control: another port is another wire. */
TEST(test_link_process, other_ports_are_other_wires)
{
    Child child(busy("1MB/s,port=1"));
    LinkSide side("1MB/s");

    connect_over(child.pipe(), side.qp);
    ASSERT_TRUE(child.pipe().await());
    EXPECT_EQ(0u, side.flows());
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
        ASSERT_EQ(0, (i % 2) ? side.write(i, remote, MIB) :
                               side.read(i, remote, MIB));
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

/* Killed with the lock of the port. */
TEST(test_link_process, a_lock_of_a_dead_process_is_taken_over)
{
    Child child([](Pipe &pipe) {
        LinkSide side("1000GB/s,port=1");

        connect_over(pipe, side.qp);
        npt_port_lock(side.device.context);
        EXPECT_TRUE(pipe.signal());
        pipe.await();
    });
    LinkSide side("1000GB/s,port=1");

    connect_over(child.pipe(), side.qp);
    Pair pair(side.device);
    ASSERT_TRUE(child.pipe().await());
    child.kill();
    Wr wr(1, IBV_WR_RDMA_WRITE, {side.buffer.sge(0, 8)});
    ASSERT_EQ(0, pair.a.post(wr.rdma(side.buffer, 64)));
    EXPECT_TRUE(pair.cq_a.expect(1));
}

/* Stopped with it: requests wait until it continues, and posting does not. */
TEST(test_link_process, a_lock_of_a_stopped_process_is_waited_for)
{
    Child child([](Pipe &pipe) {
        LinkSide side("1000GB/s,port=1");

        connect_over(pipe, side.qp);
        npt_port_lock(side.device.context);
        EXPECT_TRUE(pipe.signal());
        raise(SIGSTOP);
        npt_port_unlock(side.device.context);
        EXPECT_TRUE(pipe.await());
    });
    LinkSide side("1000GB/s,port=1");
    int status;

    connect_over(child.pipe(), side.qp);
    Pair pair(side.device);
    ASSERT_TRUE(child.pipe().await());
    ASSERT_EQ(child.pid(), waitpid(child.pid(), &status, WUNTRACED));
    ASSERT_TRUE(WIFSTOPPED(status));
    Wr wr(1, IBV_WR_RDMA_WRITE, {side.buffer.sge(0, 8)});
    ASSERT_EQ(0, pair.a.post(wr.rdma(side.buffer, 64)));
    pair.cq_a.expect_empty();
    ASSERT_EQ(0, kill(child.pid(), SIGCONT));
    EXPECT_TRUE(pair.cq_a.expect(1));
    child.pipe().signal();
    child.join();
}

/* A program that sleeps has the event, and the npemu thread executes. */
TEST(test_link_process, a_process_that_sleeps_is_served)
{
    LinkSide side("10MB/s");
    Pair pair(side.device, QpOptions(), QpOptions());
    Qp a(side.device, side.cq, side.cq), b(side.device, pair.cq_b, pair.cq_b);

    connect(a, b);
    for (int i = 0; i < 4; ++i) {
        Wr wr(i, IBV_WR_RDMA_WRITE, {side.buffer.sge(0, 64 << 10)});
        ASSERT_EQ(0, a.post(wr.rdma(side.buffer, 512 << 10)));
    }
    for (int done = 0; done < 4;) {
        ibv_wc wc;

        ASSERT_EQ(0, ibv_req_notify_cq(side.cq, 0));
        while ((done < 4) && (ibv_poll_cq(side.cq, 1, &wc) == 1)) {
            ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
            ASSERT_EQ((uint64_t)done++, wc.wr_id);
        }
        if (done < 4) {
            ASSERT_EQ(side.cq.cq, side.channel.take());
        }
    }
}

/* A child has a wire of its own, and no part in what its parent has there. */
TEST(test_link_process, a_forked_child_begins_anew)
{
    SKIP_UNLESS(NPT_FORK_WITH_THREADS, "no thread starts after fork");
    LinkSide side(SLOW_FAIR);
    Pair pair(side.device);

    for (int i = 0; i < 8; ++i) {
        Wr wr(i, IBV_WR_RDMA_WRITE, {side.buffer.sge()});
        ASSERT_EQ(0, pair.a.post(wr.rdma(side.buffer)));
    }
    in_child([&] {
        ibv_port_attr attr = {};
        Wr wr(9, IBV_WR_RDMA_WRITE, {side.buffer.sge(0, 8)});
        EXPECT_EQ(EPERM, pair.a.post(wr.rdma(side.buffer)));
        EXPECT_EQ(0, npemu_query_port(side.device.context, 1, &attr));

        LinkSide own(SLOW_FAIR);
        EXPECT_EQ(0u, own.flows());
        Pair mine(own.device);
        Wr again(10, IBV_WR_RDMA_WRITE, {own.buffer.sge(0, 8)});
        EXPECT_EQ(0, mine.a.post(again.rdma(own.buffer, 64)));
        EXPECT_TRUE(mine.cq_a.expect(10));
    });
    EXPECT_NE(0u, npt_qp_admitted(pair.a));
}
