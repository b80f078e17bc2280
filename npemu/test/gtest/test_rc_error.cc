/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Reliable connections: every error, at both ends. */

#include "npemu_test.h"

#include <algorithm>
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

    /* The queues of both ends are flushed and the ends in error. */
    static void expect_dead(Qp &qp, Cq &cq, Buffer &buffer)
    {
        EXPECT_EQ(IBV_QPS_ERR, qp.state());
        Wr more(1000, IBV_WR_SEND, {buffer.sge(0, 8)}, 0);
        ASSERT_EQ(0, qp.post(more));
        cq.expect(1000, IBV_WC_WR_FLUSH_ERR);
    }

    Device device;
    Buffer local, remote;
};

/* --- remote access -------------------------------------------------------- */

struct RemoteCase {
    const char *name;
    ibv_wr_opcode op;
    std::function<void(Buffer &, ibv_mr *, Remote &)> spoil;
    ibv_wc_status status = IBV_WC_REM_ACCESS_ERR;
};

static void PrintTo(const RemoteCase &it, std::ostream *out)
{
    *out << it.name << " op " << it.op;
}

class test_rc_error_remote : public testing::TestWithParam<RemoteCase> {};

/*
 * One request that must not pass: nothing is read or written, the requester
 * learns the reason, and both ends are in error.
 */
TEST_P(test_rc_error_remote, is_refused)
{
    const RemoteCase &it = GetParam();
    Device device;
    Pair pair(device);
    Buffer local(device, 16 << 10), memory(device, 16 << 10, -1);
    local.fill(1);
    memory.fill(2);
    /* What is registered starts and ends in the midst of the memory. */
    ibv_mr *mr = npemu_reg_mr(device.pd, memory.data + 4096, 8192, ACCESS_ALL);
    ASSERT_NE(nullptr, mr);
    Remote remote = {memory.at(4096), mr->rkey};
    it.spoil(memory, mr, remote);

    bool atomic = (it.op == IBV_WR_ATOMIC_CMP_AND_SWP) ||
                  (it.op == IBV_WR_ATOMIC_FETCH_AND_ADD);
    Wr wr(1, it.op, {local.sge(0, atomic ? 8 : 64)});
    if (atomic) {
        wr.atomic(remote, 1, 2);
    } else {
        wr.rdma(remote);
    }
    if (it.op == IBV_WR_RDMA_WRITE_WITH_IMM) {
        ASSERT_EQ(0, pair.b.post_recv(70, {}));
    }
    ASSERT_EQ(0, pair.b.post_recv(71, {local.sge(1024, 64)}));
    ASSERT_EQ(0, pair.a.post_recv(72, {local.sge(1024, 64)}));
    ASSERT_EQ(0, pair.a.post(wr));

    pair.cq_a.expect(1, it.status);
    EXPECT_TRUE(pattern_holds(local.data, 16 << 10, 1));
    EXPECT_TRUE(pattern_holds(memory.data, 16 << 10, 2));
    EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
    pair.cq_a.expect(72, IBV_WC_WR_FLUSH_ERR);

    /* Class C fault of the responder (IB 9.9.3): error state, async event. */
    AsyncEvent event = take_async(device);
    EXPECT_EQ((it.status == IBV_WC_REM_ACCESS_ERR) ?
                      IBV_EVENT_QP_ACCESS_ERR :
                      IBV_EVENT_QP_REQ_ERR,
              event.type);
    EXPECT_EQ((void*)pair.b.qp, event.element);
    EXPECT_EQ(IBV_QPS_ERR, pair.b.state());
    if (it.op == IBV_WR_RDMA_WRITE_WITH_IMM) {
        EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, pair.cq_b.wait().status);
    }
    pair.cq_b.expect(71, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(0, npemu_dereg_mr(mr));
}

static std::vector<RemoteCase> remote_cases()
{
    std::vector<RemoteCase> cases;

    for (auto op : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                    IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
                    IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        uint64_t size = (op == IBV_WR_ATOMIC_CMP_AND_SWP) ||
                                        (op == IBV_WR_ATOMIC_FETCH_AND_ADD) ?
                                8 :
                                64;
        cases.push_back({"key 0", op,
                         [](auto &, auto *, auto &r) { r.rkey = 0; }});
        cases.push_back({"other generation", op, [](auto &, auto *, auto &r) {
                             r.rkey ^= 1u << 31;
                         }});
        cases.push_back({"other index", op, [](auto &, auto *, auto &r) {
                             r.rkey ^= 1u << 12;
                         }});
        cases.push_back({"before the start", op, [](auto &, auto *, auto &r) {
                             r.addr -= 8;
                         }});
        cases.push_back({"beyond the end", op, [=](auto &, auto *, auto &r) {
                             r.addr += 8192 - size + 8;
                         }});
        cases.push_back({"far away", op, [](auto &, auto *, auto &r) {
                             r.addr += 1ull << 40;
                         }});
        cases.push_back({"wraps around", op, [](auto &, auto *, auto &r) {
                             r.addr = ~7ull;
                         }});
        cases.push_back({"address 0", op,
                         [](auto &, auto *, auto &r) { r.addr = 0; }});
        cases.push_back({"deregistered", op, [](Buffer &memory, auto *mr,
                                                auto &r) {
                             ibv_mr *gone = npemu_reg_mr(mr->pd, memory.data,
                                                         16 << 10, ACCESS_ALL);
                             ASSERT_NE(nullptr, gone);
                             r.rkey = gone->rkey;
                             ASSERT_EQ(0, npemu_dereg_mr(gone));
                         }});
    }
    for (auto op : {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        cases.push_back({"misaligned", op,
                         [](auto &, auto *, auto &r) { r.addr += 4; },
                         IBV_WC_REM_INV_REQ_ERR});
    }
    return cases;
}

/* A name of a case, which may have letters, digits and '_' only */
static std::string words(std::string name)
{
    std::replace(name.begin(), name.end(), ' ', '_');
    return name;
}

static std::string op_name(ibv_wr_opcode op)
{
    switch (op) {
    case IBV_WR_RDMA_WRITE:
        return "write";
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return "write_imm";
    case IBV_WR_RDMA_READ:
        return "read";
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return "compare_and_swap";
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return "fetch_and_add";
    default:
        return "op " + std::to_string(op);
    }
}

INSTANTIATE_TEST_SUITE_P(all, test_rc_error_remote,
                         testing::ValuesIn(remote_cases()),
                         [](const testing::TestParamInfo<RemoteCase> &info) {
                             return words(op_name(info.param.op) +
                                          std::string(" ") + info.param.name);
                         });

/* Access flags of the MR and of the QP: both must allow. */
TEST_F(test_rc_error, remote_access_flags)
{
    struct {
        ibv_wr_opcode op;
        int flag;
    } ops[] = {{IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
               {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
               {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC},
               {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_ATOMIC}};

    for (auto &op : ops) {
        /* bit 0: the MR allows it, bit 1: the QP does */
        for (int allowed = 0; allowed < 4; ++allowed) {
            QpOptions options;
            options.access = (allowed & 2) ? op.flag : ACCESS_ALL & ~op.flag;
            Pair pair(device, QpOptions(), options);
            Buffer target(device, 4096,
                          IBV_ACCESS_LOCAL_WRITE |
                                  ((allowed & 1) ? op.flag :
                                                   ACCESS_ALL & ~op.flag));
            Wr wr(1, op.op, {local.sge(0, 8)});
            if (op.flag == IBV_ACCESS_REMOTE_ATOMIC) {
                wr.atomic(Remote{target.at(0), target.mr->rkey}, 0, 0);
            } else {
                wr.rdma(target);
            }
            ASSERT_EQ(0, pair.a.post(wr));
            ibv_wc wc = pair.cq_a.wait();
            if (allowed == 3) {
                EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
            } else {
                /* IB: a QP that takes no such request calls it invalid. */
                EXPECT_TRUE((wc.status == IBV_WC_REM_ACCESS_ERR) ||
                            ((wc.status == IBV_WC_REM_INV_REQ_ERR) &&
                             !(allowed & 2)))
                        << "op " << op.op << " allowed " << allowed
                        << " status " << wc.status;
                EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
                take_async(device);
            }
        }
    }
}

/* --- local protection ----------------------------------------------------- */

struct LocalCase {
    const char *name;
    std::function<void(Buffer &, ibv_sge &)> spoil;
};

static std::vector<LocalCase> local_cases()
{
    return {
            {"key 0", [](auto &, auto &sge) { sge.lkey = 0; }},
            {"other generation", [](auto &, auto &sge) {
                 sge.lkey ^= 1u << 31;
             }},
            {"before the start", [](auto &, auto &sge) { sge.addr -= 1; }},
            {"beyond the end", [](auto &buffer, auto &sge) {
                 /* the first four bytes are good */
                 sge.addr = buffer.at(buffer.length - 4);
             }},
            {"wraps around", [](auto &, auto &sge) { sge.addr = ~3ull; }},
            {"too long", [](auto &, auto &sge) { sge.length = 1 << 20; }},
    };
}

/* At the requester: its own error, the responder sees nothing of it. */
TEST_F(test_rc_error, local_protection_of_requests)
{
    for (auto &it : local_cases()) {
        for (auto op : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                        IBV_WR_ATOMIC_FETCH_AND_ADD}) {
            if ((op == IBV_WR_ATOMIC_FETCH_AND_ADD) &&
                !strcmp(it.name, "too long")) {
                continue; /* that is a length error */
            }
            SCOPED_TRACE(std::string(it.name) + " op " + std::to_string(op));
            Pair pair(device);
            ibv_sge sge = local.sge(0, 8);
            it.spoil(local, sge);
            Wr wr(1, op, {sge});
            if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
                wr.atomic(Remote{remote.at(0), remote.mr->rkey}, 1);
            } else if (op != IBV_WR_SEND) {
                wr.rdma(remote);
            }
            ASSERT_EQ(0, pair.b.post_recv(2, {remote.sge(8192, 64)}));
            ASSERT_EQ(0, pair.a.post(wr));
            pair.cq_a.expect(1, IBV_WC_LOC_PROT_ERR);
            expect_dead(pair.a, pair.cq_a, local);
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
    {
        Pair pair(device);
        Wr write(1, IBV_WR_RDMA_WRITE, {read_only.sge(0, 8)});
        ASSERT_EQ(0, pair.a.post(write.rdma(remote, 512)));
        pair.cq_a.expect(1);
    }
    for (auto op : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        Pair pair(device);
        Wr wr(1, op, {read_only.sge(0, 8)});
        if (op == IBV_WR_RDMA_READ) {
            wr.rdma(remote);
        } else {
            wr.atomic(Remote{remote.at(0), remote.mr->rkey}, 1);
        }
        ASSERT_EQ(0, pair.a.post(wr));
        pair.cq_a.expect(1, IBV_WC_LOC_PROT_ERR);
    }
}

/*
 * A receive buffer that is not what its key says: the receiver's local error,
 * and a remote operation error for the sender. Both ways a payload can take.
 */
TEST_F(test_rc_error, local_protection_of_receives)
{
    for (auto &it : local_cases()) {
        for (size_t size : {8, 6000}) {
            SCOPED_TRACE(std::string(it.name) + " size " +
                         std::to_string(size));
            Pair pair(device);
            ibv_sge sge = remote.sge(0, 8192);
            it.spoil(remote, sge);
            if (sge.length > 8192) {
                continue; /* a message that fits touches nothing bad */
            }
            ASSERT_EQ(0, pair.b.post_recv(2, {sge}));
            Wr send(1, IBV_WR_SEND, {local.sge(0, size)});
            ASSERT_EQ(0, pair.a.post(send));
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
        ASSERT_EQ(0, pair.b.post_recv(2, {buffer.sge()}));
        buffer.dereg();
        Wr send(1, IBV_WR_SEND, {local.sge(0, size)});
        ASSERT_EQ(0, pair.a.post(send));
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
        ASSERT_EQ(0, pair.b.post_recv(2, {remote.sge(0, 32),
                                          remote.sge(100, size - 33)}));
        Wr send(1, IBV_WR_SEND, {local.sge(0, size)});
        ASSERT_EQ(0, pair.a.post(send));
        pair.cq_b.expect(2, IBV_WC_LOC_LEN_ERR);
        pair.cq_a.expect(1, IBV_WC_REM_INV_REQ_ERR);
        EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
        EXPECT_EQ(IBV_QPS_ERR, pair.b.state());
        EXPECT_TRUE(pattern_holds(remote.data, SIZE, 2));
    }
}

/* --- receiver not ready --------------------------------------------------- */

TEST_F(test_rc_error, rnr_gives_up_after_the_count)
{
    QpOptions sender, receiver;
    sender.rnr_retry       = 3;
    receiver.min_rnr_timer = 20; /* 10.24 ms */
    Pair pair(device, sender, receiver);
    Wr send(1, IBV_WR_SEND, {local.sge(0, 8)});

    auto start = Clock::now();
    ASSERT_EQ(0, pair.a.post(send));
    pair.cq_a.expect(1, IBV_WC_RNR_RETRY_EXC_ERR);
    EXPECT_LE(3 * 10.24 * 0.99, ms_since(start));
    expect_dead(pair.a, pair.cq_a, local);
    EXPECT_EQ(IBV_QPS_RTS, pair.b.state()) << "no fault of the receiver";
}

TEST_F(test_rc_error, rnr_retry_seven_never_gives_up)
{
    QpOptions receiver;
    receiver.min_rnr_timer = 1; /* 10 us: hundreds of tries in 50 ms */
    Pair pair(device, QpOptions(), receiver);
    Wr send(1, IBV_WR_SEND, {local.sge(0, 100)});
    Wr after(2, IBV_WR_RDMA_WRITE, {local.sge(0, 8)});

    ASSERT_EQ(0, pair.a.post(send));
    ASSERT_EQ(0, pair.a.post(after.rdma(remote, 4096)));
    ibv_wc wc;
    EXPECT_FALSE(wait_until(
            [&] { return ibv_poll_cq(pair.cq_a, 1, &wc) != 0; }, 50));
    EXPECT_EQ(pattern_byte(2, 4096), remote.data[4096]) << "out of order";
    ASSERT_EQ(0, pair.b.post_recv(3, {remote.sge(0, 100)}));
    pair.cq_a.expect(1, IBV_WC_SUCCESS, 2);
    pair.cq_b.expect(3);
    EXPECT_TRUE(pattern_holds(remote.data, 100, 1));
}

/* Each message has its own count. */
TEST_F(test_rc_error, rnr_count_starts_again)
{
    QpOptions sender, receiver;
    sender.rnr_retry       = 6;
    receiver.min_rnr_timer = 24; /* 40.96 ms */
    Pair pair(device, sender, receiver);

    for (int i = 0; i < 8; ++i) {
        Wr send(i, IBV_WR_SEND, {local.sge(0, 8)});
        ASSERT_EQ(0, pair.a.post(send));
        pair.cq_a.expect_empty();
        ASSERT_EQ(0, pair.b.post_recv(10 + i, {remote.sge(0, 100)}));
        pair.cq_a.expect(i);
        pair.cq_b.expect(10 + i);
    }
}

/* --- transport retry ------------------------------------------------------ */

/* What the requester's peer looks like when the request goes out. */
struct AbsentCase {
    const char *name;
    std::function<void(Qp &b)> spoil;
};

static void PrintTo(const AbsentCase &it, std::ostream *out)
{
    *out << it.name;
}

class test_rc_error_retry : public testing::TestWithParam<AbsentCase> {};

TEST_P(test_rc_error_retry, fails_after_the_count)
{
    Device device;
    QpOptions options;
    options.timeout   = 12; /* 16.8 ms */
    options.retry_cnt = 2;
    Pair pair(device, options);
    Buffer buffer(device, 4096);
    GetParam().spoil(pair.b);

    auto start = Clock::now();
    Wr write(1, IBV_WR_RDMA_WRITE, {buffer.sge(0, 8)});
    ASSERT_EQ(0, pair.a.post(write.rdma(buffer, 64)));
    pair.cq_a.expect(1, IBV_WC_RETRY_EXC_ERR);
    double ms = ms_since(start);
    /* IB: from (retries + 1) times the time-out on. How much later depends on
     * the machine; but then there are fewer tries, at least 5 ms apart. */
    EXPECT_LE(3 * 16.77 * 0.99, ms);
    EXPECT_GE(11u, npemu_cq_retries(pair.cq_a));
    EXPECT_EQ(IBV_QPS_ERR, pair.a.state());
    EXPECT_EQ(0, buffer.data[64]);
}

INSTANTIATE_TEST_SUITE_P(
        all, test_rc_error_retry,
        testing::Values(
                AbsentCase{"reset", [](Qp &b) {
                               ASSERT_EQ(0, b.to_state(IBV_QPS_RESET));
                           }},
                AbsentCase{"init", [](Qp &b) {
                               ASSERT_EQ(0, b.to_state(IBV_QPS_RESET));
                               ASSERT_EQ(0, b.to_init());
                           }},
                AbsentCase{"error", [](Qp &b) {
                               ASSERT_EQ(0, b.to_state(IBV_QPS_ERR));
                           }},
                AbsentCase{"connected elsewhere", [](Qp &b) {
                               ASSERT_EQ(0, b.to_state(IBV_QPS_RESET));
                               b.connect(b.address());
                           }},
                AbsentCase{"other packet sequence number", [](Qp &b) {
                               ibv_qp_attr attr;
                               ibv_qp_init_attr init;
                               ASSERT_EQ(0, npemu_query_qp(b.qp, &attr, -1,
                                                           &init));
                               ASSERT_EQ(0, b.to_state(IBV_QPS_RESET));
                               b.connect(Address{attr.dest_qp_num,
                                                 attr.rq_psn + 7,
                                                 attr.ah_attr.dlid});
                           }}),
        [](const testing::TestParamInfo<AbsentCase> &info) {
            return words(info.param.name);
        });

/* The device knows that it will not answer, whatever the transport timer */
TEST_F(test_rc_error, destroyed_queue_pair_is_not_waited_for)
{
    QpOptions options;
    options.timeout   = 31; /* hours */
    options.retry_cnt = 7;
    Pair pair(device, options);
    ASSERT_EQ(0, npemu_destroy_qp(pair.b.qp));
    pair.b.qp = nullptr;

    Wr write(1, IBV_WR_RDMA_WRITE, {local.sge(0, 8)});
    ASSERT_EQ(0, pair.a.post(write.rdma(remote)));
    pair.cq_a.expect(1, IBV_WC_RETRY_EXC_ERR);
    expect_dead(pair.a, pair.cq_a, local);
}

/* A peer that comes up within the retries is found: no error. */
TEST_F(test_rc_error, peer_that_connects_late_gets_the_request)
{
    Cq cq_a(device), cq_b(device);
    QpOptions patient;
    patient.timeout   = 16; /* 268 ms */
    patient.retry_cnt = 7;
    Qp a(device, cq_a, cq_a, patient), b(device, cq_b, cq_b);
    ASSERT_EQ(0, b.to_init());
    a.connect(b.address());
    Wr write(1, IBV_WR_RDMA_WRITE, {local.sge(0, 8)});
    ASSERT_EQ(0, a.post(write.rdma(remote)));
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
        ASSERT_EQ(0, pair.a.post_recv(10 + i, {local.sge(64, 64)}));
    }
    bad.rdma(Remote{remote.at(0), 3}).then(second);
    second.rdma(remote).then(third);
    third.rdma(remote);
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
        Wr wr(2, IBV_WR_RDMA_WRITE, {local.sge(0, 64)});
        EXPECT_EQ(0, pair.a.post(wr.rdma({remote.at(0), 0})));
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
        Wr send(i, IBV_WR_SEND, {local.sge(0, 8)});
        ASSERT_EQ(0, pair.a.post(send));
    }
    ASSERT_EQ(0, pair.a.to_state(IBV_QPS_ERR));
    pair.cq_a.expect(0, IBV_WC_WR_FLUSH_ERR, 3);
    pair.cq_a.expect_empty();

    /* And never arrives. */
    ASSERT_EQ(0, pair.b.post_recv(1, {remote.sge(0, 8)}));
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
    target.pipe().signal();
    target.join();
}

/* IBA 11.6.2: longer than what the port takes is a local length error. And a
 * receive may have more room than any message needs. */
TEST(test_rc_error_length, longest_message)
{
    in_child([] {
        Env pin("NPEMU_PIN", "none"); /* no program may pin that much */
        QpOptions options;
        options.sge = 16;
        Device device;
        Pair pair(device, options, options);
        ibv_port_attr port;
        ASSERT_EQ(0, npemu_query_port(device.context, 1, &port));
        /* The same memory again and again is long enough. */
        Buffer large(device, port.max_msg_sz / options.sge + 4096);
        std::vector<ibv_sge> list(options.sge, large.sge());

        ASSERT_EQ(0, pair.b.post_recv(1, std::vector<ibv_sge>(
                                                 4, large.sge())));
        ASSERT_EQ(0, pair.b.post_recv(2, list));
        for (int i = 1; i <= 2; ++i) {
            Wr send(i, IBV_WR_SEND, {large.sge(0, 8)});
            ASSERT_EQ(0, pair.a.post(send));
            EXPECT_TRUE(pair.cq_a.expect(i));
            EXPECT_TRUE(pair.cq_b.expect(i));
        }
        Wr write(3, IBV_WR_RDMA_WRITE, list);
        ASSERT_EQ(0, pair.a.post(write.rdma(large)));
        EXPECT_TRUE(pair.cq_a.expect(3, IBV_WC_LOC_LEN_ERR));
        EXPECT_EQ(IBV_QPS_RTS, pair.b.state());
    });
}
