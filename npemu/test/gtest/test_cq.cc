/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Completion queues and channels. */

#include "npemu_test.h"

#include <atomic>
#include <cerrno>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

using namespace npt;

/* A pair whose receiving side has its CQ on a channel. */
class test_cq_channel : public testing::Test {
protected:
    test_cq_channel() :
        channel(device), send_cq(device), recv_cq(device, 64, &channel, this),
        a(device, send_cq, send_cq), b(device, recv_cq, recv_cq),
        buffer(device, 4096)
    {
        connect(a, b);
    }

    /* One message from a to b, completed at both ends. */
    void message(unsigned flags = 0)
    {
        ASSERT_EQ(0, b.post_recv(7, {buffer.sge(2048, 64)}));
        Wr send(1, IBV_WR_SEND, {buffer.sge(0, 8)},
                IBV_SEND_SIGNALED | flags);
        ASSERT_EQ(0, a.post(send));
        send_cq.expect(1);
    }

    Device  device;
    Channel channel;
    Cq      send_cq, recv_cq;
    Qp      a, b;
    Buffer  buffer;
};

TEST(test_cq, overflow_raises_an_event)
{
    Device device;
    QpOptions options;
    options.send_wr = 256;
    Pair pair(device, options, QpOptions(), 8);
    Buffer buffer(device, 4096);

    for (int i = 0; i <= pair.cq_a.cq->cqe; ++i) {
        Wr write(i, IBV_WR_RDMA_WRITE, {buffer.sge(0, 8)});
        if (pair.a.post(write.rdma(buffer, 64)) != 0) {
            break; /* in error after the overflow: may be refused */
        }
    }
    AsyncEvent event = take_async(device);
    EXPECT_EQ(IBV_EVENT_CQ_ERR, event.type);
    EXPECT_EQ((void*)pair.cq_a.cq, event.element);
}

/* --- channels ------------------------------------------------------------- */

/* The program makes the channel non-blocking, or blocking: neither changes
 * whether an event can be added. More events than a pipe of the smallest size
 * contains. */
TEST_F(test_cq_channel, counts_each_of_many_events)
{
    constexpr int COUNT = 5000;
    int fd              = channel.channel->fd;
    int taken           = 0;
    ibv_cq *cq;
    void *cq_context;

    fcntl(fd, F_SETPIPE_SZ, 4096);
    message(); /* each arming raises one event while it is not polled */
    for (int i = 0; i < COUNT; ++i) {
        ASSERT_EQ(0, ibv_req_notify_cq(recv_cq, 0));
    }
    ASSERT_EQ(0, fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
    while (npemu_get_cq_event(channel.channel, &cq, &cq_context) == 0) {
        ++taken;
    }
    EXPECT_EQ(EAGAIN, errno);
    EXPECT_EQ(COUNT, taken);
    npemu_ack_cq_events(recv_cq, taken);
    recv_cq.expect(7);
}

TEST_F(test_cq_channel, fires_once_per_arming)
{
    ASSERT_EQ(0, ibv_req_notify_cq(recv_cq, 0));
    EXPECT_FALSE(channel.readable());
    message();
    EXPECT_EQ(recv_cq.cq, channel.take());
    EXPECT_FALSE(channel.readable());
    message();
    EXPECT_FALSE(channel.readable()) << "was not armed again";
    recv_cq.expect(7);
    recv_cq.expect(7);

    ASSERT_EQ(0, ibv_req_notify_cq(recv_cq, 0));
    message();
    EXPECT_EQ(recv_cq.cq, channel.take());
    recv_cq.expect(7);
}

/* Only what is solicited fires at once, too. */
TEST_F(test_cq_channel, solicited_only_with_unsolicited_completions_pending)
{
    message();
    message();
    ASSERT_EQ(0, ibv_req_notify_cq(recv_cq, 1));
    EXPECT_FALSE(channel.readable());
    message();
    EXPECT_FALSE(channel.readable());
    message(IBV_SEND_SOLICITED);
    EXPECT_EQ(recv_cq.cq, channel.take());
    EXPECT_FALSE(channel.readable());

    /* Behind three that are not. */
    ASSERT_EQ(0, ibv_req_notify_cq(recv_cq, 1));
    EXPECT_EQ(recv_cq.cq, channel.take());
    for (int i = 0; i < 4; ++i) {
        recv_cq.expect(7);
    }

    /* What has been polled does not count. */
    ASSERT_EQ(0, ibv_req_notify_cq(recv_cq, 1));
    EXPECT_FALSE(channel.readable());
    message();
    EXPECT_FALSE(channel.readable());
    recv_cq.expect(7);
}

/* An event that was not delivered is discarded with its CQ. */
TEST_F(test_cq_channel, destroy_discards_its_events)
{
    {
        Cq other(device, 16, &channel);
        Qp c(device, other, other);
        ASSERT_EQ(0, c.to_init());
        ASSERT_EQ(0, c.post_recv(1, {buffer.sge(0, 8)}));
        ASSERT_EQ(0, ibv_req_notify_cq(other, 0));
        ASSERT_EQ(0, c.to_state(IBV_QPS_ERR));
        EXPECT_TRUE(channel.readable(WAIT_MS));
    }
    EXPECT_FALSE(channel.readable());
    ASSERT_EQ(0, ibv_req_notify_cq(recv_cq, 0));
    message();
    EXPECT_EQ(recv_cq.cq, channel.take());
    recv_cq.expect(7);
}

/* The manual: destroying a CQ waits until all its events are acknowledged. */
TEST_F(test_cq_channel, destroy_waits_for_ack)
{
    ibv_cq *cq = npemu_create_cq(device.context, 16, nullptr, channel.channel,
                                 0);
    ibv_cq *got;
    void *cq_context;
    std::atomic<bool> acked{false}, destroyed{false};

    ASSERT_NE(nullptr, cq);
    {
        Qp c(device, cq, cq), d(device, cq, cq);
        connect(c, d);
        ASSERT_EQ(0, ibv_req_notify_cq(cq, 0));
        Wr write(9, IBV_WR_RDMA_WRITE, {buffer.sge(0, 8)});
        ASSERT_EQ(0, c.post(write.rdma(buffer, 64)));
        ASSERT_TRUE(channel.readable(WAIT_MS));
        ASSERT_EQ(0, npemu_get_cq_event(channel.channel, &got, &cq_context));
        ASSERT_EQ(cq, got);
    }

    std::thread destroyer([&] {
        EXPECT_EQ(0, npemu_destroy_cq(cq));
        EXPECT_TRUE(acked.load());
        destroyed = true;
    });
    /* Time in which a destroy that does not wait would have returned. */
    EXPECT_FALSE(wait_until([&] { return destroyed.load(); }, 50));
    acked = true;
    npemu_ack_cq_events(got, 1);
    destroyer.join();
    EXPECT_TRUE(destroyed.load());
}
