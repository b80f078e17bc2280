/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Reliable connections: every operation, and what it must leave alone. */

#include "npemu_test.h"

#include <cerrno>

using namespace npt;

class test_rc : public testing::Test {
protected:
    static constexpr size_t SIZE = 64 << 10;

    test_rc() : pair(device), local(device, SIZE), remote(device, SIZE) {}

    Device device;
    Pair   pair;
    Buffer local, remote;
};

/* --- one operation, all sizes --------------------------------------------- */

/* How the two sides see an operation. */
struct Op {
    const char    *name;
    ibv_wr_opcode opcode;
    ibv_wc_opcode completion;
    ibv_wc_opcode received; /* by the target; 0xff: nothing */
};

static const Op ops[] = {
        {"send", IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, IBV_WC_RECV},
        {"write", IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, (ibv_wc_opcode)0xff},
        {"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE,
         IBV_WC_RECV_RDMA_WITH_IMM},
        {"read", IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, (ibv_wc_opcode)0xff}};

/*
 * Sizes around each limit of the implementation: what rides inline, in a CQ
 * entry, in one page, in one chunk.
 */
class test_rc_sizes : public testing::TestWithParam<Op> {
protected:
    static constexpr uint32_t IMM  = 0x12345678;
    static constexpr size_t MARGIN = 512, MAX = (1 << 20) + 1;
    static constexpr size_t sizes[] = {0,   1,    8,    63,    64,    65,  256,
                                       257, 4096, 8193, 65536, 65537, MAX};

    /* Odd offsets on purpose. */
    static constexpr size_t FROM = MARGIN + 3, TO = MARGIN + 1;
    static constexpr size_t LENGTH = MAX + 2 * MARGIN + 3;

    static bool is_read() { return GetParam().opcode == IBV_WR_RDMA_READ; }

    /* Nothing but the data has changed. */
    static void check(const Buffer &buffer, size_t offset, size_t size)
    {
        EXPECT_TRUE(pattern_holds(buffer.data + offset, size, size));
        for (size_t i = 0; i < MARGIN; ++i) {
            ASSERT_EQ(0xa5, buffer.data[offset - 1 - i]) << "before, " << i;
            ASSERT_EQ(0xa5, buffer.data[offset + size + i]) << "after, " << i;
        }
    }

    static void prepare(Buffer &buffer, size_t offset, size_t size, bool filled)
    {
        buffer.fill_byte(0xa5);
        if (filled) {
            pattern_fill(buffer.data + offset, size, size);
        }
    }

    /* The side that posts the operation. */
    static void request(Qp &qp, Cq &cq, Buffer &buffer, size_t size,
                        const Remote &remote)
    {
        prepare(buffer, FROM, size, !is_read());
        Wr wr(42, GetParam().opcode, {buffer.sge(FROM, size)});
        wr.num_sge = (size > 0);
        if (GetParam().opcode != IBV_WR_SEND_WITH_IMM) {
            wr.rdma(remote);
        }
        ASSERT_EQ(0, qp.post(wr.imm(IMM)));
        ibv_wc wc = cq.wait();
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(42u, wc.wr_id);
        EXPECT_EQ(GetParam().completion, wc.opcode);
        EXPECT_EQ(qp.qp->qp_num, wc.qp_num);
        EXPECT_TRUE(!is_read() || (wc.byte_len == size));
        check(buffer, FROM, size);
    }

    static void prepare_target(Qp &qp, Buffer &buffer, size_t size)
    {
        prepare(buffer, TO, size, is_read());
        if (GetParam().received != 0xff) {
            qp.recv(77, {buffer.sge(TO, size)});
        }
    }

    /* What the other side sees of it once the requester is done. */
    static void check_target(Qp &qp, Cq &cq, Buffer &buffer, size_t size)
    {
        if (GetParam().received != 0xff) {
            ibv_wc wc = cq.wait();
            EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
            EXPECT_EQ(77u, wc.wr_id);
            EXPECT_EQ(GetParam().received, wc.opcode);
            EXPECT_EQ(size, wc.byte_len);
            EXPECT_EQ(qp.qp->qp_num, wc.qp_num);
            EXPECT_TRUE(wc.wc_flags & IBV_WC_WITH_IMM);
            EXPECT_EQ(IMM, be32toh(wc.imm_data));
        }
        cq.expect_empty();
        check(buffer, TO, size);
    }
};

constexpr size_t test_rc_sizes::sizes[];

TEST_P(test_rc_sizes, move_between_processes)
{
    Child target([](Pipe &pipe) {
        Side side(QpOptions(), LENGTH);
        connect_over(pipe, side.qp);
        pipe.send(side.remote(TO));
        for (size_t size : sizes) {
            SCOPED_TRACE(size);
            prepare_target(side.qp, side.buffer, size);
            pipe.signal();
            EXPECT_TRUE(pipe.await());
            check_target(side.qp, side.cq, side.buffer, size);
        }
    });
    Side side(QpOptions(), LENGTH);
    connect_over(target.pipe(), side.qp);
    Remote remote = target.pipe().recv<Remote>();
    for (size_t size : sizes) {
        SCOPED_TRACE(size);
        ASSERT_TRUE(target.pipe().await());
        request(side.qp, side.cq, side.buffer, size, remote);
        target.pipe().signal();
    }
    target.join();
}

INSTANTIATE_TEST_SUITE_P(all, test_rc_sizes, testing::ValuesIn(ops),
                         [](const auto &info) { return info.param.name; });

/* --- atomics -------------------------------------------------------------- */

TEST_F(test_rc, compare_and_swap)
{
    uint64_t *word = (uint64_t*)(remote.data + 64);
    uint64_t *old  = (uint64_t*)local.data;

    *word = 10;
    for (uint64_t before : {10, 99}) { /* the second finds what it does not
                                        * expect */
        Wr wr(1, IBV_WR_ATOMIC_CMP_AND_SWP, {local.sge(0, 8)});
        ASSERT_EQ(0, pair.a.post(wr.atomic(remote.remote(64), 10, 99)));
        ibv_wc wc = pair.cq_a.wait();
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(IBV_WC_COMP_SWAP, wc.opcode);
        EXPECT_EQ(8u, wc.byte_len);
        EXPECT_EQ(before, *old);
        EXPECT_EQ(99u, *word);
    }
    pair.cq_b.expect_empty();
}

TEST_F(test_rc, fetch_and_add)
{
    uint64_t *word = (uint64_t*)(remote.data + 64);

    word[-1] = word[1] = 0x5555555555555555ull;
    *word              = UINT64_MAX - 1;
    for (uint64_t add : {(uint64_t)1, (uint64_t)3, (uint64_t)-7}) {
        uint64_t before = *word;
        Wr wr(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {local.sge(0, 8)});
        ASSERT_EQ(0, pair.a.post(wr.atomic(remote.remote(64), add)));
        ibv_wc wc = pair.cq_a.wait();
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(IBV_WC_FETCH_ADD, wc.opcode);
        EXPECT_EQ(before, *(uint64_t*)local.data);
        EXPECT_EQ(before + add, *word);
    }
    EXPECT_EQ(0x5555555555555555ull, word[-1]);
    EXPECT_EQ(0x5555555555555555ull, word[1]);
}

/* --- inline data, scatter, gather ----------------------------------------- */

/* Taken at once also where it cannot go out yet. */
TEST_F(test_rc, inline_data_outlives_the_wait_for_a_receive)
{
    uint8_t bytes[32];

    pattern_fill(bytes, sizeof(bytes), 3);
    Wr send(2, IBV_WR_SEND, {{(uintptr_t)bytes, 32, 0}},
            IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    ASSERT_EQ(0, pair.a.post(send));
    memset(bytes, 0, sizeof(bytes));
    pair.b.recv(1, {remote.sge(0, 64)});
    pair.cq_a.expect(2);
    pair.cq_b.expect(1);
    EXPECT_TRUE(pattern_holds(remote.data, 32, 3));
}

TEST_F(test_rc, gathers_and_scatters)
{
    for (size_t unit : {3, 100, 5000}) {
        local.fill(unit);
        remote.fill_byte(0);
        pair.b.recv(1, {remote.sge(0, unit), remote.sge(20000, 2 * unit),
                        remote.sge(40000, unit)});
        pair.a.send(2, {local.sge(30000, 2 * unit), local.sge(1, 0),
                        local.sge(10, unit / 2)});
        pair.cq_a.expect(2);
        EXPECT_EQ(2 * unit + unit / 2, pair.cq_b.wait().byte_len);

        std::vector<uint8_t> sent(local.data + 30000,
                                  local.data + 30000 + 2 * unit);
        sent.insert(sent.end(), local.data + 10, local.data + 10 + unit / 2);
        EXPECT_EQ(0, memcmp(remote.data, &sent[0], unit));
        EXPECT_EQ(0, memcmp(remote.data + 20000, &sent[unit],
                            sent.size() - unit));
        EXPECT_EQ(0, remote.data[20000 + sent.size() - unit]);
        EXPECT_EQ(0, remote.data[40000]);
    }
}

/* --- full queues ---------------------------------------------------------- */

static ibv_qp_cap capacity(Qp &qp)
{
    ibv_qp_attr attr;
    ibv_qp_init_attr init;

    EXPECT_EQ(0, npemu_query_qp(qp, &attr, IBV_QP_CAP, &init));
    return init.cap;
}

TEST_F(test_rc, send_queue_overflow)
{
    uint32_t depth = capacity(pair.a).max_send_wr;
    auto write     = [&](uint64_t id, unsigned flags = IBV_SEND_SIGNALED) {
        Wr wr(id, IBV_WR_RDMA_WRITE, {local.sge(0, 8)}, flags);
        return pair.a.post(wr.rdma(remote.remote()));
    };

    /* Room comes back with the completion that is polled, not before. */
    for (uint32_t i = 0; i < depth; ++i) {
        ASSERT_EQ(0, write(i));
    }
    EXPECT_EQ(ENOMEM, write(99));
    pair.cq_a.expect(0);
    EXPECT_EQ(0, write(depth));
    EXPECT_EQ(ENOMEM, write(99));
    pair.cq_a.expect(1, IBV_WC_SUCCESS, depth);

    /* A polled completion frees the silent ones before it. */
    for (uint32_t round = 0; round < 10; ++round) {
        for (uint32_t i = 0; i + 1 < depth; ++i) {
            ASSERT_EQ(0, write(i, 0));
        }
        ASSERT_EQ(0, write(50));
        ASSERT_EQ(ENOMEM, write(99));
        pair.cq_a.expect(50);
    }
}

TEST_F(test_rc, receive_queue_overflow)
{
    for (uint32_t i = 0; i < capacity(pair.b).max_recv_wr; ++i) {
        pair.b.recv(i, {remote.sge(0, 64)});
    }
    EXPECT_EQ(ENOMEM, pair.b.post_recv(99, {remote.sge(0, 64)}));
    pair.a.send(1, {local.sge(0, 8)});
    pair.cq_a.expect(1);
    pair.cq_b.expect(0);
    pair.b.recv(5, {remote.sge(0, 64)});
    EXPECT_EQ(ENOMEM, pair.b.post_recv(99, {remote.sge(0, 64)}));
}
