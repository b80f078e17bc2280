/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Events of a queue pair: it is drained; communication is established. */

#include "npemu_test.h"

#include <cerrno>

using namespace npt;

/* Time in which an event that must not come would come. */
constexpr int QUIET_MS = 20;

/* --- a drained send queue ------------------------------------------------- */

class test_qp_event_drain : public testing::Test {
protected:
    test_qp_event_drain() : buffer(device, 64 << 10), pair(device) {}

    /* From RTS to SQD. */
    static int drain(Qp &qp, bool notify = true)
    {
        ibv_qp_attr attr = {};

        attr.qp_state            = IBV_QPS_SQD;
        attr.en_sqd_async_notify = notify;
        return npemu_modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
    }

    static bool is_draining(Qp &qp)
    {
        ibv_qp_attr attr;
        ibv_qp_init_attr init;

        EXPECT_EQ(0, npemu_query_qp(qp, &attr, IBV_QP_STATE, &init));
        return attr.sq_draining;
    }

    void send(Qp &qp, uint64_t wr_id)
    {
        Wr wr(wr_id, IBV_WR_SEND, {buffer.sge(0, 64)});
        ASSERT_EQ(0, qp.post(wr));
    }

    void expect_drained(Qp &qp)
    {
        AsyncEvent event = take_async(device);
        EXPECT_EQ(IBV_EVENT_SQ_DRAINED, event.type);
        EXPECT_EQ((void*)qp.qp, event.element);
        EXPECT_FALSE(is_draining(qp));
        EXPECT_EQ(IBV_QPS_SQD, qp.state());
    }

    /* Drains pair.a, which has begun a SEND that finds no receive. */
    void begin_and_drain()
    {
        send(pair.a, 1);
        ASSERT_EQ(0, drain(pair.a));
    }

    Device device;
    Buffer buffer;
    Pair   pair;
};

/*
 * A SEND that the peer had no receive for has been begun. It is tried again in
 * SQD, and only when it is done is the queue drained. What is behind it is not
 * begun.
 */
TEST_F(test_qp_event_drain, finishes_what_it_has_begun)
{
    send(pair.a, 1);
    send(pair.a, 2);
    ASSERT_EQ(0, drain(pair.a));
    EXPECT_TRUE(is_draining(pair.a));
    send(pair.a, 3);
    EXPECT_FALSE(has_async(device, QUIET_MS)) << "the SEND is under way";
    pair.cq_a.expect_empty();

    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(0, pair.b.post_recv(10 + i, {buffer.sge(1024, 64)}));
    }
    pair.cq_a.expect(1);
    pair.cq_b.expect(10);
    expect_drained(pair.a);
    pair.cq_a.expect_empty();
    pair.cq_b.expect_empty();
    EXPECT_FALSE(has_async(device));

    ASSERT_EQ(0, pair.a.to_state(IBV_QPS_RTS));
    pair.cq_a.expect(2, IBV_WC_SUCCESS, 2);
    pair.cq_b.expect(11, IBV_WC_SUCCESS, 2);
    EXPECT_FALSE(has_async(device, QUIET_MS));
}

/* The npemu thread raises it if the process does not poll. */
TEST_F(test_qp_event_drain, event_comes_without_polling)
{
    begin_and_drain();
    ASSERT_EQ(0, pair.b.post_recv(2, {buffer.sge(1024, 64)}));
    expect_drained(pair.a);
    pair.cq_a.expect(1);
    pair.cq_b.expect(2);
}

/* Nor if what was begun fails. */
TEST_F(test_qp_event_drain, no_event_if_the_queue_fails)
{
    QpOptions options;
    options.retry_cnt = 0;
    Pair impatient(device, options, options);

    ASSERT_EQ(0, impatient.b.to_state(IBV_QPS_RESET));
    send(impatient.a, 1);
    ASSERT_EQ(0, drain(impatient.a));
    send(impatient.a, 2);
    impatient.cq_a.expect(1, IBV_WC_RETRY_EXC_ERR);
    impatient.cq_a.expect(2, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(IBV_QPS_ERR, impatient.a.state());
    EXPECT_FALSE(has_async(device, QUIET_MS));
}

/* --- communication established -------------------------------------------- */

/* a is in RTS and talks to b, which is in RTR. */
class test_qp_event_comm_est : public testing::Test {
protected:
    test_qp_event_comm_est() :
        cq_a(device), cq_b(device), a(device, cq_a, cq_a),
        b(device, cq_b, cq_b), buffer(device, 64 << 10)
    {
        meet();
    }

    void meet()
    {
        EXPECT_EQ(0, a.to_init());
        EXPECT_EQ(0, b.to_init());
        EXPECT_EQ(0, a.to_rtr(b.address()));
        EXPECT_EQ(0, b.to_rtr(a.address()));
        EXPECT_EQ(0, a.to_rts());
    }

    /* A WRITE by a queue pair. */
    void write(Qp &qp, uint64_t wr_id)
    {
        Wr wr(wr_id, IBV_WR_RDMA_WRITE, {buffer.sge(0, 64)});
        ASSERT_EQ(0, qp.post(wr.rdma(buffer, 1024)));
    }

    void expect_event()
    {
        AsyncEvent event = take_async(device);
        EXPECT_EQ(IBV_EVENT_COMM_EST, event.type);
        EXPECT_EQ((void*)b.qp, event.element);
    }

    Device device;
    Cq     cq_a, cq_b;
    Qp     a, b;
    Buffer buffer;
};

TEST_F(test_qp_event_comm_est, comes_once)
{
    EXPECT_FALSE(has_async(device, QUIET_MS)) << "nothing has been sent";
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(0, b.post_recv(i, {buffer.sge(1024, 64)}));
        Wr send(i, IBV_WR_SEND, {buffer.sge(0, 64)});
        ASSERT_EQ(0, a.post(send));
        cq_a.expect(i);
        cq_b.expect(i);
    }
    expect_event();
    ASSERT_EQ(0, b.to_rts());
    write(a, 3);
    cq_a.expect(3);
    EXPECT_FALSE(has_async(device, QUIET_MS));
}

/* From another process, whose message wakes the one that sleeps. */
TEST(test_qp_event_process, comes_from_a_peer)
{
    Child sender([](Pipe &pipe) {
        Device device;
        ASSERT_TRUE(device.ok());
        Cq cq(device);
        Qp qp(device, cq, cq);
        Buffer buffer(device, 4096);
        ASSERT_EQ(0, qp.to_init());
        pipe.send(qp.address());
        ASSERT_EQ(0, qp.to_rtr(pipe.recv<Address>()));
        ASSERT_EQ(0, qp.to_rts());
        Remote remote = pipe.recv<Remote>();
        Wr write(1, IBV_WR_RDMA_WRITE, {buffer.sge(0, 8)});
        ASSERT_EQ(0, qp.post(write.rdma(remote)));
        cq.expect(1);
        EXPECT_TRUE(pipe.await());
    });
    Device device;
    ASSERT_TRUE(device.ok());
    Cq cq(device);
    Qp qp(device, cq, cq);
    Buffer buffer(device, 4096);

    ASSERT_EQ(0, qp.to_init());
    ASSERT_EQ(0, qp.to_rtr(sender.pipe().recv<Address>()));
    sender.pipe().send(qp.address());
    sender.pipe().send(Remote{buffer.at(0), buffer.mr->rkey});
    AsyncEvent event = take_async(device);
    EXPECT_EQ(IBV_EVENT_COMM_EST, event.type);
    EXPECT_EQ((void*)qp.qp, event.element);
    EXPECT_EQ(IBV_QPS_RTR, qp.state());
    sender.pipe().signal();
    sender.join();
}
