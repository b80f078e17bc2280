/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What a killed process leaves to its peers; see test_stress.cc as well. */

#include "internals.h"
#include "npemu_test.h"

#include <fstream>
#include <set>
#include <thread>

using namespace npt;

static void take_a_receive(Pipe &pipe)
{
    Side side;
    connect_over(pipe, side.qp);
    pipe.send(npt_slot(side.device.context));
    EXPECT_EQ(0, npt_peer_take_receive(side.qp));
    pipe.signal();
    pipe.await();
}

/* No receive is lost with a sender that dies between taking and filling it.
 * Also if another one has taken its slot and ended, before the owner's thread
 * has heard of either. */
TEST(test_kill, receives_of_unseen_senders_are_not_lost)
{
    Child victim(take_a_receive);
    Child successor([](Pipe &pipe) {
        ASSERT_TRUE(pipe.await());
        Device device;
        pipe.send(npt_slot(device.context));
        pipe.await();
    });
    Device device;
    Srq srq(device, 4);
    Cq send_cq(device), recv_cq(device);
    QpOptions on_srq = QpOptions().on(srq);
    Qp of_victim(device, recv_cq, recv_cq, on_srq);
    Qp a(device, send_cq, send_cq), b(device, recv_cq, recv_cq, on_srq);

    connect(a, b);
    connect_over(victim.pipe(), of_victim);
    auto slot = victim.pipe().recv<unsigned>();
    ASSERT_EQ(0, srq.post(7, {}));
    ASSERT_TRUE(victim.pipe().await());
    a.send(1, {});
    send_cq.expect_empty();

    npt_peers_lock(device.context);
    victim.kill();
    successor.pipe().signal();
    EXPECT_EQ(slot, successor.pipe().recv<unsigned>());
    successor.kill();
    npt_peers_unlock(device.context);
    send_cq.expect(1);
    recv_cq.expect(7);
}

/* It comes back to a queue pair in error when all others are flushed. */
TEST(test_kill, receives_of_unseen_senders_are_flushed)
{
    Child victim(take_a_receive);
    Side side;

    connect_over(victim.pipe(), side.qp);
    victim.pipe().recv<unsigned>();
    side.qp.recv(1, {});
    ASSERT_TRUE(victim.pipe().await());
    npt_peers_lock(side.device.context);
    victim.kill();
    ASSERT_EQ(0, side.qp.to_state(IBV_QPS_ERR));
    side.cq.expect_empty();
    npt_peers_unlock(side.device.context);
    side.cq.expect(1, IBV_WC_WR_FLUSH_ERR);
}

/* A message of a sender that has died, to a queue pair that is being destroyed,
 * has used its receive: that is there for one more message. */
TEST(test_kill, receives_of_ending_queue_pairs_return_once)
{
    Child victim([](Pipe &pipe) {
        Side side;
        Qp idle(side.device, side.cq, side.cq);
        connect_over(pipe, side.qp);
        connect_over(pipe, idle);
        side.send(1);
        side.cq.expect(1);
        pipe.signal();
        pipe.await();
    });
    Device device;
    Srq srq(device, 4);
    Cq cq(device), recv_cq(device);
    QpOptions on_srq = QpOptions().on(srq);
    Buffer buffer(device, 4096);
    auto ending = std::make_unique<Qp>(device, recv_cq, recv_cq, on_srq);
    Qp waits(device, cq, cq), a(device, cq, cq),
            b(device, recv_cq, recv_cq, on_srq);

    ASSERT_EQ(0, srq.post(7, {buffer.sge()}));
    connect(a, b);
    connect_over(victim.pipe(), *ending);
    connect_over(victim.pipe(), waits);
    waits.send(2, {});
    ASSERT_TRUE(victim.pipe().await());

    ibv_qp *qp = *ending;
    npt_qp_lock(qp);
    std::thread destroys([&] { ending.reset(); });
    EXPECT_TRUE(wait_until([&] { return npt_qp_is_dying(qp) != 0; }));
    victim.kill();
    cq.expect(2, IBV_WC_RETRY_EXC_ERR); /* the thread has been there */
    npt_qp_unlock(qp);
    destroys.join();

    a.send(3, {});
    a.send(4, {});
    for (int i : {3, 4}) {
        cq.expect_empty();
        ASSERT_EQ(0, srq.post(5 + i, {buffer.sge()}));
        cq.expect(i);
        recv_cq.expect(5 + i);
    }
}

/* A sender has raised an event of a queue and died before it signalled it,
 * while an event of another one waits: each later event is of its own queue,
 * and what poll() shows can be taken. */
TEST(test_kill, events_stay_with_their_queues)
{
    Child victim([](Pipe &pipe) {
        Side side;
        Qp other(side.device, side.cq, side.cq);
        connect_over(pipe, side.qp);
        connect_over(pipe, other);
        pipe.await();
    });
    Device device;
    Channel channel(device);
    Cq a(device, 16, &channel), b(device, 16, &channel);
    Qp of_a(device, a, a), of_b(device, b, b);

    connect_over(victim.pipe(), of_a);
    connect_over(victim.pipe(), of_b);
    of_b.write(0, {}, {0, 0});
    ASSERT_EQ(0, ibv_req_notify_cq(b, 0));
    ASSERT_TRUE(channel.readable(WAIT_MS));
    of_a.send(1, {});
    of_b.send(1, {});
    npt_cq_raise(a);
    victim.kill();
    /* The thread raises one more event of each */
    EXPECT_TRUE(wait_until([&] {
        return (npt_cq_raised(a) == 2) && (npt_cq_raised(b) == 2);
    }));
    a.expect(1, IBV_WC_RETRY_EXC_ERR);
    b.expect(0);
    b.expect(1, IBV_WC_RETRY_EXC_ERR);
    while (channel.readable()) {
        channel.take();
    }

    of_a.send(2, {});
    of_b.send(2, {}); /* not polled: each arming raises an event */
    for (auto *it : {&a, &a, &b, &b}) {
        ASSERT_EQ(0, ibv_req_notify_cq(*it, 0));
        EXPECT_EQ(it->cq, channel.take());
        EXPECT_FALSE(channel.readable());
    }
}

/* What a process of the fabric takes: descriptors, and segments mapped, which
 * may be in several pieces */
static std::pair<size_t, size_t> held()
{
    std::set<std::string> segments;
    std::ifstream maps("/proc/self/maps");
    for (std::string range, rights, offset, device, inode, rest;
         maps >> range >> rights >> offset >> device >> inode &&
         std::getline(maps, rest);) {
        if (rest.find("/SYSV") != std::string::npos) {
            segments.insert(inode);
        }
    }
    return {open_fds().size(), segments.size()};
}

/* Is connected twice, and armed: peers need a descriptor of its channel */
static void be_connected(Pipe &pipe)
{
    Side side;
    Qp without(side.device, side.cq, side.cq);

    connect_over(pipe, side.qp);
    connect_over(pipe, without);
    side.qp.recv(1, {side.buffer.sge()});
    ASSERT_EQ(0, ibv_req_notify_cq(side.cq, 0));
    pipe.signal();
    pipe.await();
}

/* Its peer keeps nothing of it, though its queue pairs stay connected. What
 * waits on one, and what is posted later, fails at once. */
static void expect_release(Device &device, Cq &cq, Buffer &buffer)
{
    Child victim(be_connected);
    Qp idle(device, cq, cq), waits(device, cq, cq);
    auto before = held();

    connect_over(victim.pipe(), idle);
    connect_over(victim.pipe(), waits);
    ASSERT_TRUE(victim.pipe().await());
    idle.send(1, {buffer.sge()});
    ASSERT_TRUE(cq.expect(1));
    waits.send(2, {buffer.sge()});
    EXPECT_LT(before.first, held().first);
    EXPECT_EQ(before.second + 1, held().second);

    victim.kill();
    ASSERT_TRUE(wait_until([&] { return held() == before; }))
            << held().first << " descriptors, " << before.first
            << " before; " << held().second << " segments, " << before.second
            << " before";
    EXPECT_TRUE(cq.expect(2, IBV_WC_RETRY_EXC_ERR));
    EXPECT_EQ(IBV_QPS_RTS, idle.state());
    idle.send(3, {buffer.sge()});
    EXPECT_TRUE(cq.expect(3, IBV_WC_RETRY_EXC_ERR));
    EXPECT_EQ(IBV_QPS_ERR, idle.state());
}

TEST(test_kill, peers_release_what_they_hold)
{
    SKIP_UNLESS(NPT_FORK_WITH_THREADS, "TSan permits no such fork");
    Device device;
    Cq cq(device);
    Buffer buffer(device, 4096);

    for (int round = 0; round < 3; ++round) {
        ASSERT_NO_FATAL_FAILURE(expect_release(device, cq, buffer)) << round;
    }
}
