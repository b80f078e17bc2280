/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Reliable connections: every error, at both ends. */

#include "npemu_test.h"

#include <atomic>
#include <thread>

#include <sys/mman.h>

using namespace npt;

class test_rc_error : public testing::Test {
protected:
    static constexpr size_t SIZE = 16 << 10;

    test_rc_error() : local(device, SIZE), remote(device, SIZE)
    {
        local.fill(1);
        remote.fill(2);
    }

    static bool is_atomic(ibv_wr_opcode op)
    {
        return (op == IBV_WR_ATOMIC_CMP_AND_SWP) ||
               (op == IBV_WR_ATOMIC_FETCH_AND_ADD);
    }

    static int post(Qp &qp, ibv_wr_opcode op, const ibv_sge &sge,
                    const Remote &target)
    {
        Wr wr(1, op, {sge});

        if (is_atomic(op)) {
            wr.atomic(target, 1, 2);
        } else if (op != IBV_WR_SEND) {
            wr.rdma(target);
        }
        return qp.post(wr);
    }

    /* The queues of an end are flushed, and it is in error. */
    static void expect_dead(Qp &qp, Cq &cq)
    {
        EXPECT_EQ(IBV_QPS_ERR, qp.state());
        qp.send(1000, {});
        cq.expect(1000, IBV_WC_WR_FLUSH_ERR);
    }

    Device device;
    Buffer local, remote;
};

/* --- remote access -------------------------------------------------------- */

/*
 * One request that must not pass: nothing is read or written, the requester
 * learns the reason, and both ends are in error.
 */
class test_rc_error_remote :
        public test_rc_error,
        public testing::WithParamInterface<ibv_wr_opcode> {
protected:
    /* What is registered starts and ends in the midst of the memory. */
    test_rc_error_remote() :
        mr(npemu_reg_mr(device.pd, remote.data + 4096, 8192, ACCESS_ALL)),
        good{remote.at(4096), mr->rkey}, size(is_atomic(GetParam()) ? 8 : 64)
    {
    }
    ~test_rc_error_remote() override { EXPECT_EQ(0, npemu_dereg_mr(mr)); }

    void expect_refused(const char *why, Remote bad,
                        ibv_wc_status status = IBV_WC_REM_ACCESS_ERR)
    {
        SCOPED_TRACE(why);
        Pair pair(device);

        pair.b.recv(71, {local.sge(1024, 64)});
        pair.b.recv(72, {local.sge(1024, 64)});
        pair.a.recv(73, {local.sge(1024, 64)});
        ASSERT_EQ(0, post(pair.a, GetParam(), local.sge(0, size), bad));
        pair.cq_a.expect(1, status);
        EXPECT_TRUE(pattern_holds(local.data, SIZE, 1));
        EXPECT_TRUE(pattern_holds(remote.data, SIZE, 2));
        EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
        pair.cq_a.expect(73, IBV_WC_WR_FLUSH_ERR);

        /* Class C fault of the responder (IB 9.9.3): error state, event. */
        AsyncEvent event = take_async(device);
        EXPECT_EQ((status == IBV_WC_REM_ACCESS_ERR) ?
                          IBV_EVENT_QP_ACCESS_ERR :
                          IBV_EVENT_QP_REQ_ERR,
                  event.type);
        EXPECT_EQ((void*)pair.b.qp, event.element);
        EXPECT_EQ(IBV_QPS_ERR, pair.b.state());
        pair.cq_b.expect(71, IBV_WC_WR_FLUSH_ERR, 2);
    }

    ibv_mr   *mr;
    Remote   good;
    uint32_t size;
};

TEST_P(test_rc_error_remote, is_refused)
{
    ibv_mr *gone = npemu_reg_mr(device.pd, remote.data, SIZE, ACCESS_ALL);
    Remote old   = {good.addr, gone->rkey};

    ASSERT_EQ(0, npemu_dereg_mr(gone));
    expect_refused("key 0", {good.addr, 0});
    expect_refused("other generation", {good.addr, good.rkey ^ (1u << 31)});
    expect_refused("other index", {good.addr, good.rkey ^ (1u << 12)});
    expect_refused("deregistered", old);
    expect_refused("before the start", {good.addr - 8, good.rkey});
    expect_refused("beyond the end",
                   {good.addr + 8192 - size + 8, good.rkey});
    expect_refused("wraps around", {~7ull, good.rkey});
    if (is_atomic(GetParam())) {
        expect_refused("misaligned", {good.addr + 4, good.rkey},
                       IBV_WC_REM_INV_REQ_ERR);
    }
}

INSTANTIATE_TEST_SUITE_P(op, test_rc_error_remote,
                         testing::Values(IBV_WR_RDMA_WRITE,
                                         IBV_WR_RDMA_WRITE_WITH_IMM,
                                         IBV_WR_RDMA_READ,
                                         IBV_WR_ATOMIC_CMP_AND_SWP,
                                         IBV_WR_ATOMIC_FETCH_AND_ADD),
                         testing::PrintToStringParamName());

/* Access flags of the MR and of the QP: both must allow. */
TEST_F(test_rc_error, remote_access_flags)
{
    const std::pair<ibv_wr_opcode, int> ops[] = {
            {IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
            {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
            {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC}};

    for (auto &op : ops) {
        /* bit 0: the MR allows it, bit 1: the QP does */
        for (int allowed = 0; allowed < 4; ++allowed) {
            SCOPED_TRACE(testing::Message() << op.first << " " << allowed);
            int others = ACCESS_ALL & ~op.second;
            QpOptions options;
            options.access = (allowed & 2) ? op.second : others;
            Pair pair(device, QpOptions(), options);
            Buffer target(device, 4096,
                          IBV_ACCESS_LOCAL_WRITE |
                                  ((allowed & 1) ? op.second : others));
            ASSERT_EQ(0, post(pair.a, op.first, local.sge(0, 8),
                              target.remote()));
            ibv_wc_status status = pair.cq_a.wait().status;
            if (allowed == 3) {
                EXPECT_EQ(IBV_WC_SUCCESS, status);
                continue;
            }
            /* IB: a QP that takes no such request calls it invalid. */
            EXPECT_TRUE((status == IBV_WC_REM_ACCESS_ERR) ||
                        ((status == IBV_WC_REM_INV_REQ_ERR) && !(allowed & 2)))
                    << status;
            EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
            take_async(device);
        }
    }
}

/* --- local protection ----------------------------------------------------- */

/* Of memory that is not what the key says. */
static std::vector<ibv_sge> bad_sges(Buffer &buffer, uint32_t length)
{
    ibv_sge good = buffer.sge(0, length);

    return {{good.addr, length, 0},
            {good.addr, length, good.lkey ^ (1u << 31)},
            {good.addr - 1, length, good.lkey},
            {buffer.at(buffer.length - 4), length, good.lkey}};
}

/* At the requester: its own error, the responder sees nothing of it. */
TEST_F(test_rc_error, local_protection_of_requests)
{
    for (auto op : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                    IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        for (auto &sge : bad_sges(local, 8)) {
            SCOPED_TRACE(testing::Message() << op << " " << sge.addr);
            Pair pair(device);
            pair.b.recv(2, {remote.sge(8192, 64)});
            ASSERT_EQ(0, post(pair.a, op, sge, remote.remote()));
            pair.cq_a.expect(1, IBV_WC_LOC_PROT_ERR);
            expect_dead(pair.a, pair.cq_a);
            EXPECT_EQ(IBV_QPS_RTS, pair.b.state());
            pair.cq_b.expect_empty();
            EXPECT_TRUE(pattern_holds(remote.data, SIZE, 2));
        }
    }
}

/* Results need LOCAL_WRITE, sources do not. */
TEST_F(test_rc_error, local_write_permission)
{
    Buffer read_only(device, 4096, IBV_ACCESS_REMOTE_READ);

    for (auto op : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                    IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        Pair pair(device);
        ASSERT_EQ(0, post(pair.a, op, read_only.sge(0, 8), remote.remote()));
        pair.cq_a.expect(1, (op == IBV_WR_RDMA_WRITE) ? IBV_WC_SUCCESS :
                                                        IBV_WC_LOC_PROT_ERR);
    }
}

/*
 * A receive buffer that is not what its key says: the receiver's local error,
 * and a remote operation error for the sender. Both ways a payload can take.
 */
TEST_F(test_rc_error, local_protection_of_receives)
{
    for (auto &sge : bad_sges(remote, 8192)) {
        for (size_t size : {8, 6000}) {
            SCOPED_TRACE(testing::Message() << size << " " << sge.addr);
            Pair pair(device);
            pair.b.recv(2, {sge});
            pair.a.send(1, {local.sge(0, size)});
            pair.cq_b.expect(2, IBV_WC_LOC_PROT_ERR);
            pair.cq_a.expect(1, IBV_WC_REM_OP_ERR);
            EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
            EXPECT_EQ(IBV_QPS_ERR, pair.b.state());
            EXPECT_TRUE(pattern_holds(remote.data, SIZE, 2));
        }
    }
}

/*
 * The key is valid when the receive is posted, and not when the message comes.
 * The sender of a small message gets success before its receiver polls, which
 * differs from a NIC. Nothing is written in either case, and the receiving QP
 * fails.
 */
TEST_F(test_rc_error, receive_buffer_deregistered_after_the_post)
{
    for (size_t size : {8, 6000}) {
        Pair pair(device);
        Buffer buffer(device, 8192);
        pair.b.recv(2, {buffer.sge()});
        buffer.dereg();
        pair.a.send(1, {local.sge(0, size)});
        pair.cq_b.expect(2, IBV_WC_LOC_PROT_ERR);
        pair.cq_a.expect(1, (size == 8) ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR);
        EXPECT_EQ(IBV_QPS_ERR, pair.b.state());
        EXPECT_EQ(0, buffer.data[0]);
    }
}

/* --- length --------------------------------------------------------------- */

TEST_F(test_rc_error, message_longer_than_the_receive)
{
    for (size_t size : {65, 6000}) {
        Pair pair(device);
        pair.b.recv(2, {remote.sge(0, 32), remote.sge(100, size - 33)});
        pair.a.send(1, {local.sge(0, size)});
        pair.cq_b.expect(2, IBV_WC_LOC_LEN_ERR);
        pair.cq_a.expect(1, IBV_WC_REM_INV_REQ_ERR);
        EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
        EXPECT_EQ(IBV_QPS_ERR, pair.b.state());
        EXPECT_TRUE(pattern_holds(remote.data, SIZE, 2));
    }
}

/* IBA 11.6.2: longer than what the port takes is a local length error. And a
 * receive may have more room than any message needs. */
TEST(test_rc_error_length, longest_message)
{
    in_child([] {
        QpOptions options;
        options.sge = 16;
        Device device;
        Pair pair(device, options, options);
        ibv_port_attr port;
        ASSERT_EQ(0, npemu_query_port(device.context, 1, &port));
        /* The same memory again and again is long enough. */
        Buffer large(device, port.max_msg_sz / options.sge + 4096);
        std::vector<ibv_sge> list(options.sge, large.sge());

        pair.b.recv(1, list);
        pair.a.send(1, {large.sge(0, 8)});
        EXPECT_TRUE(pair.cq_a.expect(1));
        EXPECT_TRUE(pair.cq_b.expect(1));
        pair.a.write(3, list, large.remote());
        EXPECT_TRUE(pair.cq_a.expect(3, IBV_WC_LOC_LEN_ERR));
        EXPECT_EQ(IBV_QPS_RTS, pair.b.state());
    });
}

/* --- receiver not ready --------------------------------------------------- */

TEST_F(test_rc_error, rnr_gives_up_after_the_count)
{
    QpOptions sender, receiver;
    sender.rnr_retry       = 3;
    receiver.min_rnr_timer = 20; /* 10.24 ms */
    Pair pair(device, sender, receiver);

    auto start = Clock::now();
    pair.a.send(1, {local.sge(0, 8)});
    pair.cq_a.expect(1, IBV_WC_RNR_RETRY_EXC_ERR);
    EXPECT_LE(3 * 10.24 * 0.99, ms_since(start));
    expect_dead(pair.a, pair.cq_a);
    EXPECT_EQ(IBV_QPS_RTS, pair.b.state()) << "no fault of the receiver";
}

TEST_F(test_rc_error, rnr_retry_seven_never_gives_up)
{
    Pair pair(device); /* 10 us: hundreds of tries in 50 ms */
    ibv_wc wc;

    pair.a.send(1, {local.sge(0, 100)});
    pair.a.write(2, {local.sge(0, 8)}, remote.remote(4096));
    EXPECT_FALSE(wait_until(
            [&] { return ibv_poll_cq(pair.cq_a, 1, &wc) != 0; }, 50));
    EXPECT_EQ(pattern_byte(2, 4096), remote.data[4096]) << "out of order";
    pair.b.recv(3, {remote.sge(0, 100)});
    pair.cq_a.expect(1, IBV_WC_SUCCESS, 2);
    pair.cq_b.expect(3);
    EXPECT_TRUE(pattern_holds(remote.data, 100, 1));
}

/* --- transport retry ------------------------------------------------------ */

/* The requester's peer does not answer when the request goes out. */
TEST_F(test_rc_error, transport_retry_gives_up_after_the_count)
{
    QpOptions options;
    options.timeout   = 12; /* 16.8 ms */
    options.retry_cnt = 2;
    const std::function<void(Qp &, const Address &)> spoil[] = {
            [](Qp &b, auto &) { b.to_state(IBV_QPS_ERR); },
            [](Qp &b, auto &) {
                b.to_state(IBV_QPS_RESET);
                b.connect(b.address());
            },
            [](Qp &b, Address a) { /* of another connection than this */
                a.psn += 7;
                b.to_state(IBV_QPS_RESET);
                b.connect(a);
            }};

    for (auto &it : spoil) {
        Pair pair(device, options);
        it(pair.b, pair.a.address());
        auto start = Clock::now();
        pair.a.write(1, {local.sge(0, 8)}, remote.remote());
        pair.cq_a.expect(1, IBV_WC_RETRY_EXC_ERR);
        /* IB: from (retries + 1) times the time-out on. How much later depends
         * on the machine; but then there are fewer tries, at least 5 ms
         * apart. */
        EXPECT_LE(3 * 16.77 * 0.99, ms_since(start));
        EXPECT_GE(11u, npemu_cq_retries(pair.cq_a));
        EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
        EXPECT_TRUE(pattern_holds(remote.data, SIZE, 2));
    }
}

/* The device knows that it will not answer, whatever the transport timer */
TEST_F(test_rc_error, destroyed_queue_pair_is_not_waited_for)
{
    QpOptions options;
    options.timeout = 31; /* hours */
    Pair pair(device, options);
    pair.b.qp.reset();

    pair.a.write(1, {local.sge(0, 8)}, remote.remote());
    pair.cq_a.expect(1, IBV_WC_RETRY_EXC_ERR);
    expect_dead(pair.a, pair.cq_a);
}

/* A peer that comes up within the retries is found: no error. */
TEST_F(test_rc_error, peer_that_connects_late_gets_the_request)
{
    Cq cq_a(device), cq_b(device);
    QpOptions patient;
    patient.timeout = 16; /* 268 ms */
    Qp a(device, cq_a, cq_a, patient), b(device, cq_b, cq_b);
    ASSERT_EQ(0, b.to_init());
    a.connect(b.address());
    a.write(1, {local.sge(0, 8)}, remote.remote());
    cq_a.expect_empty();
    ASSERT_EQ(0, b.to_rtr(a.address()));
    cq_a.expect(1);
    EXPECT_TRUE(pattern_holds(remote.data, 8, 1));
}

/* --- flush ---------------------------------------------------------------- */

TEST_F(test_rc_error, everything_after_the_error_is_flushed_in_order)
{
    Pair pair(device);
    Wr bad(1, IBV_WR_RDMA_WRITE, {local.sge(0, 8)});
    Wr second(2, IBV_WR_RDMA_WRITE, {local.sge(0, 8)}, 0);
    Wr third(3, IBV_WR_RDMA_WRITE, {local.sge(0, 8)});

    for (int i = 0; i < 3; ++i) {
        pair.a.recv(10 + i, {local.sge(64, 64)});
    }
    bad.rdma({remote.at(0), 3}).then(second);
    second.rdma(remote.remote()).then(third);
    third.rdma(remote.remote());
    ASSERT_EQ(0, pair.a.post(bad));
    pair.cq_a.expect(1, IBV_WC_REM_ACCESS_ERR);

    uint64_t next_send = 2, next_recv = 10;
    for (int i = 0; i < 5; ++i) {
        ibv_wc wc = pair.cq_a.wait();
        EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, wc.status);
        EXPECT_EQ((wc.wr_id < 10) ? next_send++ : next_recv++, wc.wr_id);
        EXPECT_EQ(pair.a.qp->qp_num, wc.qp_num);
    }
    pair.cq_a.expect_empty();
    EXPECT_TRUE(pattern_holds(remote.data, 8, 2));
}

/*
 * The program learns the cause first. It posts receives without end meanwhile,
 * which flushes the receive queue as soon as the state is ERR.
 */
TEST_F(test_rc_error, cause_comes_before_what_it_flushes)
{
    for (int round = 0; round < 200; ++round) {
        Pair pair(device);
        std::atomic<bool> is_full(false), stop(false);
        std::thread poster([&]() {
            while (pair.a.post_recv(1, {local.sge(0, 64)}) == 0) {
            }
            is_full = true;
            while (!stop && (pair.a.post_recv(1, {local.sge(0, 64)}) != 0)) {
            }
        });
        EXPECT_TRUE(wait_until([&]() { return is_full.load(); }));
        pair.a.write(2, {local.sge(0, 64)}, {remote.at(0), 0});
        ibv_wc wc = pair.cq_a.wait();
        stop      = true;
        poster.join();
        ASSERT_EQ(IBV_WC_REM_ACCESS_ERR, wc.status) << "round " << round;
        EXPECT_EQ(2u, wc.wr_id);
        EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
    }
}

TEST_F(test_rc_error, request_that_waits_for_a_receive_is_flushed)
{
    Pair pair(device);
    for (int i = 0; i < 3; ++i) {
        pair.a.send(i, {local.sge(0, 8)});
    }
    ASSERT_EQ(0, pair.a.to_state(IBV_QPS_ERR));
    pair.cq_a.expect(0, IBV_WC_WR_FLUSH_ERR, 3);
    pair.cq_a.expect_empty();

    /* And never arrives. */
    pair.b.recv(1, {remote.sge(0, 8)});
    pair.cq_b.expect_empty();
}

/* A page that is unmapped under a pinned region: an error and no crash. */
TEST(test_rc_error_memory, unmapped_page_fails)
{
    Child target([](Pipe &pipe) {
        Side side;
        connect_over(pipe, side.qp);
        ASSERT_EQ(0, munmap(side.buffer.data + 4 * 4096, 4096));
        pipe.send(side.remote());
        pipe.await();
    });
    Side side;
    connect_over(target.pipe(), side.qp);
    side.write(1, target.pipe().recv<Remote>(), 32 << 10);
    EXPECT_TRUE(side.cq.expect(1, IBV_WC_REM_OP_ERR));
    target.release();
}

/* --- end of a queue pair -------------------------------------------------- */

/* A receive that is posted while another thread ends the queue pair */
TEST_F(test_rc_error, receive_beside_the_end)
{
    Cq cq(device);
    Qp qp(device, cq, cq);
    std::atomic<int> turn{0};
    const int rounds = 20000;

    std::thread other([&]() {
        for (int i = 1; i <= rounds; ++i) {
            while (turn != i) {
                if (turn > rounds) {
                    return;
                }
            }
            qp.to_state(IBV_QPS_ERR);
            turn = -i;
        }
    });
    for (int i = 1; i <= rounds; ++i) {
        EXPECT_EQ(0, qp.to_init());
        turn = i;
        for (int pause = i % 64; pause > 0; --pause) {
            std::atomic_signal_fence(std::memory_order_seq_cst);
        }
        qp.recv(i, {local.sge(0, 64)});
        while (turn != -i) {
        }
        if (!cq.expect(i, IBV_WC_WR_FLUSH_ERR)) {
            turn = rounds + 1;
            break;
        }
        qp.to_state(IBV_QPS_RESET);
    }
    other.join();
}
