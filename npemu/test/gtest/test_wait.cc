/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Thousands of queue pairs that wait for receives: what is served, in which
 * order, and how many of them the device retries.
 */

#include "npemu_test.h"

#include <map>

#include <arpa/inet.h>

using namespace npt;

namespace {

/* Sanitizers need a multiple of the memory and the time. */
constexpr int CROWD = NPT_MLOCK_WORKS ? 3000 : 1000;

/* 655 ms: in most tests time has no part. */
constexpr uint8_t SLOW_TIMER = 0;
constexpr int SLOW_TIMER_MS  = 655;

QpOptions slow_options()
{
    QpOptions options;
    options.send_wr       = 4;
    options.recv_wr       = 1;
    options.min_rnr_timer = SLOW_TIMER;
    return options;
}

} // namespace

/* Senders that complete in one CQ, and targets with one SRQ or without. */
class test_wait : public testing::Test {
protected:
    static constexpr int SRQ_SIZE = 64;

    test_wait() :
        srq(device, SRQ_SIZE), send_cq(device, 4 * CROWD),
        recv_cq(device, 4 * CROWD), buffer(device, 8192),
        start(Clock::now())
    {
    }

    void add_pairs(int count, const QpOptions &sender = slow_options(),
                   bool on_srq = true)
    {
        QpOptions options = slow_options();
        if (on_srq) {
            options.on(srq);
        }
        options.min_rnr_timer = sender.min_rnr_timer;
        for (int i = 0; i < count; ++i) {
            senders.emplace_back(new Qp(device, send_cq, send_cq, sender));
            targets.emplace_back(new Qp(device, recv_cq, recv_cq, options));
            senders.back()->connect(targets.back()->address());
            targets.back()->connect(senders.back()->address());
        }
    }

    /* The wr_id is the sender, the immediate data the message. */
    void send(int index, int number = 0)
    {
        Wr wr(index, IBV_WR_SEND_WITH_IMM, {buffer.sge(0, 8)});
        wr.imm(number);
        ASSERT_EQ(0, senders[index]->post(wr));
    }

    uint64_t retries() const { return npemu_cq_retries(send_cq); }

    /* How many retries time may have cost so far: one per sender and timer. */
    uint64_t retries_of_time(uint64_t waiting) const
    {
        return waiting * (uint64_t)(ms_since(start) / SLOW_TIMER_MS + 1);
    }

    Device device;
    Srq    srq;
    Cq     send_cq, recv_cq;
    Buffer buffer;
    Clock::time_point start;
    std::vector<std::unique_ptr<Qp>> senders, targets;
};

/* A round of receives costs a retry per receive, and one that finds none. */
TEST_F(test_wait, waiting_senders_are_served_in_order)
{
    constexpr int MESSAGES = 2;
    int rounds = 0, received = 0, completed = 0;
    std::map<uint32_t, uint32_t> next;

    add_pairs(CROWD);
    start = Clock::now();
    for (int number = 0; number < MESSAGES; ++number) {
        for (int i = 0; i < CROWD; ++i) {
            send(i, number);
        }
    }
    EXPECT_LE(retries(), retries_of_time(CROWD));

    for (; received < CROWD * MESSAGES; ++rounds) {
        for (int i = 0; i < SRQ_SIZE; ++i) {
            ASSERT_EQ(0, srq.post(i, {buffer.sge(4096, 64)}));
        }
        for (int i = 0; (i < SRQ_SIZE) && (received < CROWD * MESSAGES); ++i) {
            send_cq.wait();
            ++completed;
            ibv_wc wc = recv_cq.wait();
            ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
            ASSERT_EQ(next[wc.qp_num]++, ntohl(wc.imm_data)) << "out of order";
            ++received;
        }
    }
    EXPECT_EQ(CROWD * MESSAGES, completed);
    EXPECT_LE(retries(), (uint64_t)received + rounds + retries_of_time(CROWD));
    send_cq.expect_empty();
}

/* Of thousands of receive queues, that which got a receive. */
TEST_F(test_wait, only_the_target_with_a_receive_is_retried)
{
    const int one = CROWD / 2;

    add_pairs(CROWD, slow_options(), false);
    start = Clock::now();
    for (int i = 0; i < CROWD; ++i) {
        send(i);
    }
    ASSERT_EQ(0, targets[one]->post_recv(7, {buffer.sge(0, 8)}));
    send_cq.expect(one);
    recv_cq.expect(7);
    EXPECT_LE(retries(), 1 + retries_of_time(CROWD));
    send_cq.expect_empty();
}

/* No receive is posted, and one of the targets ends: its sender fails. */
TEST_F(test_wait, a_target_that_leaves_the_group_is_noticed)
{
    const int one     = CROWD / 2;
    QpOptions options = slow_options();
    options.timeout       = 8; /* 1 ms */
    options.retry_cnt     = 1;
    options.min_rnr_timer = 1;

    add_pairs(CROWD, options);
    for (int i = 0; i < CROWD; ++i) {
        send(i);
    }
    ASSERT_EQ(0, targets[one]->to_state(IBV_QPS_ERR));
    send_cq.expect(one, IBV_WC_RETRY_EXC_ERR);
    send_cq.expect_empty();
}

/* A receiver that posts receives one by one posts some of them during a scan of
 * the waiting send queues. That is no reason to sleep, since no thread has the
 * send queue locked. Posting had it locked before; but a scan that began then
 * has ended when the first message arrives, since a later scan sends it. */
TEST_F(test_wait, a_receive_that_is_posted_during_a_scan_is_seen)
{
    constexpr int MESSAGES = 2000;
    QpOptions options      = slow_options();
    options.send_wr        = MESSAGES;
    options.min_rnr_timer  = 2; /* 20 us */
    uint64_t pauses        = 0;

    add_pairs(1, options);
    for (int i = 0; i < MESSAGES; ++i) {
        send(0, i);
    }
    for (int i = 0; i < MESSAGES; ++i) {
        ASSERT_EQ(0, srq.post(i, {buffer.sge(4096, 64)}));
        ASSERT_EQ(IBV_WC_SUCCESS, recv_cq.wait().status);
        if (i == 0) {
            pauses = npemu_cq_pauses(send_cq);
        }
    }
    EXPECT_EQ(pauses, npemu_cq_pauses(send_cq));
    for (int i = 0; i < MESSAGES; ++i) {
        ASSERT_EQ(IBV_WC_SUCCESS, send_cq.wait().status);
    }
}

/* The owner of the SRQ is killed: all that wait for it fail at once. */
TEST(test_wait_kill, death_of_the_target_ends_all_waits)
{
    constexpr int COUNT = 200;
    QpOptions options   = slow_options();

    Child child([&](Pipe &pipe) {
        Device device;
        Srq srq(device, 4);
        Cq cq(device, 4);
        std::vector<std::unique_ptr<Qp>> qps;
        QpOptions on_srq = QpOptions(options).on(srq);
        for (int i = 0; i < COUNT; ++i) {
            qps.emplace_back(new Qp(device, cq, cq, on_srq));
            connect_over(pipe, *qps.back());
        }
        pipe.signal();
        pipe.await(); /* killed here */
    });

    Device device;
    Cq cq(device, 2 * COUNT);
    std::vector<std::unique_ptr<Qp>> qps;
    for (int i = 0; i < COUNT; ++i) {
        qps.emplace_back(new Qp(device, cq, cq, options));
        connect_over(child.pipe(), *qps.back());
    }
    ASSERT_TRUE(child.pipe().await());
    for (int i = 0; i < COUNT; ++i) {
        qps[i]->send(i, {});
    }
    cq.expect_empty();
    child.kill();
    for (int i = 0; i < COUNT; ++i) {
        ASSERT_EQ(IBV_WC_RETRY_EXC_ERR, cq.wait().status);
    }
}
