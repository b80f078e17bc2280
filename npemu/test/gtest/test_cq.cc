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
        b.recv(7, {buffer.sge(2048, 64)});
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
        pair.a.post(write.rdma(buffer.remote(64)));
        /* In error after the overflow: may be refused */
    }
    AsyncEvent event = take_async(device);
    EXPECT_EQ(IBV_EVENT_CQ_ERR, event.type);
    EXPECT_EQ((void*)pair.cq_a.cq, event.element);
}

/* --- channels ------------------------------------------------------------- */

/* The program makes the channel non-blocking, or blocking: neither changes
 * whether an event can be added. More events than a pipe of the smallest size
 * contains; then they are taken while others are added, and each wait ends. An
 * event too many is legal then. */
TEST_F(test_cq_channel, counts_each_of_many_events)
{
    constexpr int COUNT = 5000;
    int fd              = channel.channel->fd;
    ibv_cq *cq;
    void *cq_context;
    auto raise = [&] {
        for (int i = 0; i < COUNT; ++i) {
            ASSERT_EQ(0, ibv_req_notify_cq(recv_cq, 0));
        }
    };
    auto take = [&](int flags, int max) {
        int taken = 0;

        EXPECT_EQ(0, fcntl(fd, F_SETFL, flags));
        while ((taken < max) && (npemu_get_cq_event(channel.channel, &cq,
                                                    &cq_context) == 0)) {
            ++taken;
        }
        npemu_ack_cq_events(recv_cq, taken);
        return taken;
    };

    fcntl(fd, F_SETPIPE_SZ, 4096);
    message(); /* each arming raises one event while it is not polled */
    raise();
    EXPECT_EQ(COUNT, take(O_NONBLOCK, 2 * COUNT));
    EXPECT_EQ(EAGAIN, errno);

    std::thread raiser(raise);
    EXPECT_EQ(COUNT / 2, take(0, COUNT / 2));
    raiser.join();
    EXPECT_LE(COUNT / 2, take(O_NONBLOCK, 2 * COUNT));
    recv_cq.expect(7);
}

/* The application has closed descriptors that it does not own, and its number
 * is another file's: a peer does not write there. */
TEST(test_cq_channel_fd, of_another_file_is_not_written)
{
    Child sender([](Pipe &pipe) {
        Side side;
        connect_over(pipe, side.qp);
        side.send(1);
        side.cq.expect(1);
    });
    Side side;
    int fd = side.channel.channel->fd, fds[2], saved = dup(fd);

    ASSERT_EQ(0, ibv_req_notify_cq(side.cq, 0));
    ASSERT_EQ(0, pipe(fds));
    ASSERT_EQ(fd, dup2(fds[1], fd));
    connect_over(sender.pipe(), side.qp);
    side.qp.recv(1, {side.buffer.sge()});
    sender.join();
    side.cq.expect(1);
    EXPECT_FALSE(is_readable(fds[0], 0));
    dup2(saved, fd);
    for (int it : {fds[0], fds[1], saved}) {
        close(it);
    }
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
        c.recv(1, {});
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
        c.write(9, {buffer.sge(0, 8)}, buffer.remote(64));
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
