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

enum Op { SEND, SEND_IMM, WRITE, WRITE_IMM, READ };

/*
 * Sizes around each limit of the implementation: what rides inline, in a CQ
 * entry, in one page, in one chunk; in the same process and between two.
 */
class test_rc_sizes :
    public testing::TestWithParam<std::tuple<Op, size_t, bool>> {
protected:
    static constexpr size_t GUARD  = 512;
    static constexpr uint32_t IMM  = 0x12345678;
    static constexpr uint8_t AROUND = 0xa5;

    static bool is_send(Op op) { return (op == SEND) || (op == SEND_IMM); }

    static bool has_imm(Op op)
    {
        return (op == SEND_IMM) || (op == WRITE_IMM);
    }

    static void check_around(const Buffer &buffer, size_t offset, size_t size)
    {
        for (size_t i = 0; i < GUARD; ++i) {
            ASSERT_EQ(AROUND, buffer.data[offset - 1 - i]) << "before, " << i;
            ASSERT_EQ(AROUND, buffer.data[offset + size + i]) << "after, " << i;
        }
    }

    /* The side that posts the operation. Odd offsets on purpose. */
    static void requester(Device &device, Cq &cq, Qp &qp, Op op, size_t size,
                          const Remote &remote)
    {
        static const ibv_wr_opcode opcodes[] = {
                IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
                IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ};
        static const ibv_wc_opcode completions[] = {
                IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE,
                IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ};
        Buffer buffer(device, size + 2 * GUARD + 3);
        size_t offset = GUARD + 3;

        buffer.fill_byte(AROUND);
        if (op != READ) {
            pattern_fill(buffer.data + offset, size, size);
        }
        Wr wr(42, opcodes[op]);
        if (size > 0) {
            wr.list = {buffer.sge(offset, size)};
            wr.sg_list = wr.list.data();
            wr.num_sge = 1;
        }
        wr.imm(IMM);
        if (!is_send(op)) {
            wr.rdma(remote);
        }
        ASSERT_EQ(0, qp.post(wr));
        ibv_wc wc = cq.wait();
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(42u, wc.wr_id);
        EXPECT_EQ(completions[op], wc.opcode);
        EXPECT_EQ(qp.qp->qp_num, wc.qp_num);
        if (op == READ) {
            EXPECT_EQ(size, wc.byte_len);
        }
        EXPECT_TRUE(pattern_holds(buffer.data + offset, size, size));
        check_around(buffer, offset, size);
    }

    /* What the other side sees of it once the requester is done. */
    static void check_target(Cq &cq, Qp &qp, Op op, size_t size, Buffer &buffer,
                             size_t offset)
    {
        if (is_send(op) || has_imm(op)) {
            ibv_wc wc = cq.wait();
            EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
            EXPECT_EQ(77u, wc.wr_id);
            EXPECT_EQ(is_send(op) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
                      wc.opcode);
            EXPECT_EQ(size, wc.byte_len);
            EXPECT_EQ(qp.qp->qp_num, wc.qp_num);
            EXPECT_EQ(has_imm(op), (wc.wc_flags & IBV_WC_WITH_IMM) != 0);
            if (has_imm(op)) {
                EXPECT_EQ(IMM, be32toh(wc.imm_data));
            }
        } else {
            cq.expect_empty();
        }
        EXPECT_TRUE(pattern_holds(buffer.data + offset, size, size));
        check_around(buffer, offset, size);
    }

    static void prepare_target(Qp &qp, Op op, size_t size, Buffer &buffer,
                               size_t offset)
    {
        buffer.fill_byte(AROUND);
        if (op == READ) {
            pattern_fill(buffer.data + offset, size, size);
        } else if (is_send(op)) {
            std::vector<ibv_sge> list;
            if (size > 0) {
                list.push_back(buffer.sge(offset, size));
            }
            ASSERT_EQ(0, qp.post_recv(77, list));
        } else if (op == WRITE_IMM) {
            ASSERT_EQ(0, qp.post_recv(77, {}));
        }
    }
};

TEST_P(test_rc_sizes, transfers)
{
    auto [op_, size_, two_processes] = GetParam();
    Op op         = op_; /* lambdas cannot capture bindings in C++17 */
    size_t size   = size_;
    size_t offset = GUARD + 1;

    if (!two_processes) {
        Device device;
        Pair pair(device);
        Buffer target(device, size + 2 * GUARD + 3);
        prepare_target(pair.b, op, size, target, offset);
        requester(device, pair.cq_a, pair.a, op, size,
                  Remote{target.at(offset), target.mr->rkey});
        check_target(pair.cq_b, pair.b, op, size, target, offset);
        return;
    }

    Child target([=](Pipe &pipe) {
        Device device;
        Cq cq(device);
        Qp qp(device, cq, cq);
        Buffer buffer(device, size + 2 * GUARD + 3);
        connect_over(pipe, qp);
        prepare_target(qp, op, size, buffer, offset);
        pipe.send(Remote{buffer.at(offset), buffer.mr->rkey});
        EXPECT_TRUE(pipe.await());
        check_target(cq, qp, op, size, buffer, offset);
    });
    Device device;
    Cq cq(device);
    Qp qp(device, cq, cq);
    connect_over(target.pipe(), qp);
    requester(device, cq, qp, op, size, target.pipe().recv<Remote>());
    target.pipe().signal();
    target.join();
}

/* Such as write_64_within_one */
static std::string
size_name(const testing::TestParamInfo<test_rc_sizes::ParamType> &info)
{
    static const char *names[] = {"send", "send_imm", "write", "write_imm",
                                  "read"};

    return names[std::get<0>(info.param)] + std::string("_") +
           std::to_string(std::get<1>(info.param)) +
           (std::get<2>(info.param) ? "_between_processes" : "_within_one");
}

INSTANTIATE_TEST_SUITE_P(
        all, test_rc_sizes,
        testing::Combine(testing::Values(SEND, SEND_IMM, WRITE, WRITE_IMM,
                                         READ),
                         testing::Values(0, 1, 8, 63, 64, 65, 255, 256, 257,
                                         4096, 8193, 65536, 65537,
                                         (1 << 20) + 1),
                         testing::Bool()),
        size_name);

/* --- atomics -------------------------------------------------------------- */

TEST_F(test_rc, compare_and_swap)
{
    uint64_t *word = (uint64_t*)(remote.data + 64);
    uint64_t *old  = (uint64_t*)local.data;

    *word = 10;
    Wr hit(1, IBV_WR_ATOMIC_CMP_AND_SWP, {local.sge(0, 8)});
    hit.atomic(Remote{remote.at(64), remote.mr->rkey}, 10, 99);
    ASSERT_EQ(0, pair.a.post(hit));
    ibv_wc wc = pair.cq_a.wait();
    EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
    EXPECT_EQ(IBV_WC_COMP_SWAP, wc.opcode);
    EXPECT_EQ(8u, wc.byte_len);
    EXPECT_EQ(10u, *old);
    EXPECT_EQ(99u, *word);

    Wr miss(2, IBV_WR_ATOMIC_CMP_AND_SWP, {local.sge(0, 8)});
    miss.atomic(Remote{remote.at(64), remote.mr->rkey}, 10, 5);
    ASSERT_EQ(0, pair.a.post(miss));
    pair.cq_a.expect(2);
    EXPECT_EQ(99u, *old);
    EXPECT_EQ(99u, *word);
    pair.cq_b.expect_empty();
}

TEST_F(test_rc, fetch_and_add)
{
    uint64_t *word = (uint64_t*)(remote.data + 64);
    uint64_t *old  = (uint64_t*)local.data;

    word[-1] = word[1] = 0x5555555555555555ull;
    *word              = UINT64_MAX - 1;
    for (uint64_t add : {(uint64_t)1, (uint64_t)3, (uint64_t)-7}) {
        uint64_t before = *word;
        Wr wr(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {local.sge(0, 8)});
        wr.atomic(Remote{remote.at(64), remote.mr->rkey}, add);
        ASSERT_EQ(0, pair.a.post(wr));
        ibv_wc wc = pair.cq_a.wait();
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(IBV_WC_FETCH_ADD, wc.opcode);
        EXPECT_EQ(before, *old);
        EXPECT_EQ(before + add, *word);
    }
    EXPECT_EQ(0x5555555555555555ull, word[-1]);
    EXPECT_EQ(0x5555555555555555ull, word[1]);
}

/* --- inline data ---------------------------------------------------------- */

/* Taken at once also where it cannot go out yet. */
TEST_F(test_rc, inline_data_outlives_the_wait_for_a_receive)
{
    uint8_t bytes[32];

    pattern_fill(bytes, sizeof(bytes), 3);
    Wr send(2, IBV_WR_SEND, {{(uintptr_t)bytes, 32, 0}},
            IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    ASSERT_EQ(0, pair.a.post(send));
    memset(bytes, 0, sizeof(bytes));
    ASSERT_EQ(0, pair.b.post_recv(1, {remote.sge(0, 64)}));
    pair.cq_a.expect(2);
    pair.cq_b.expect(1);
    EXPECT_TRUE(pattern_holds(remote.data, 32, 3));
}

/* --- scatter, gather ------------------------------------------------------ */

TEST_F(test_rc, gathers_and_scatters)
{
    for (size_t unit : {3, 100, 5000}) {
        local.fill(unit);
        remote.fill_byte(0);
        ASSERT_EQ(0, pair.b.post_recv(1, {remote.sge(0, unit),
                                          remote.sge(20000, 2 * unit),
                                          remote.sge(40000, unit)}));
        Wr send(2, IBV_WR_SEND,
                {local.sge(30000, 2 * unit), local.sge(1, 0),
                 local.sge(10, unit / 2)});
        ASSERT_EQ(0, pair.a.post(send));
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

/* --- order, signalling, lists --------------------------------------------- */

TEST(test_rc_options, send_queue_overflow)
{
    Device device;
    QpOptions options;
    options.send_wr = 8;
    Pair pair(device, options);
    Buffer buffer(device, 4096);
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    ASSERT_EQ(0, npemu_query_qp(pair.a, &attr, IBV_QP_CAP, &init));
    uint32_t depth = init.cap.max_send_wr;

    auto write = [&](uint64_t id, unsigned flags) {
        Wr wr(id, IBV_WR_RDMA_WRITE, {buffer.sge(0, 8)}, flags);
        return pair.a.post(wr.rdma(buffer, 64));
    };
    /* Room comes back with the completion that is polled, not before. */
    for (uint32_t i = 0; i < depth; ++i) {
        ASSERT_EQ(0, write(i, IBV_SEND_SIGNALED));
    }
    EXPECT_EQ(ENOMEM, write(99, IBV_SEND_SIGNALED));
    pair.cq_a.expect(0);
    EXPECT_EQ(0, write(depth, IBV_SEND_SIGNALED));
    EXPECT_EQ(ENOMEM, write(99, IBV_SEND_SIGNALED));
    pair.cq_a.expect(1, IBV_WC_SUCCESS, depth);

    /* A polled completion frees the silent ones before it. */
    for (uint32_t round = 0; round < 10; ++round) {
        for (uint32_t i = 0; i + 1 < depth; ++i) {
            ASSERT_EQ(0, write(i, 0));
        }
        ASSERT_EQ(0, write(50, IBV_SEND_SIGNALED));
        ASSERT_EQ(ENOMEM, write(99, IBV_SEND_SIGNALED));
        pair.cq_a.expect(50);
    }
}

TEST(test_rc_options, receive_queue_overflow)
{
    Device device;
    QpOptions options;
    options.recv_wr = 8;
    Pair pair(device, QpOptions(), options);
    Buffer buffer(device, 4096);
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    ASSERT_EQ(0, npemu_query_qp(pair.b, &attr, IBV_QP_CAP, &init));

    for (uint32_t i = 0; i < init.cap.max_recv_wr; ++i) {
        ASSERT_EQ(0, pair.b.post_recv(i, {buffer.sge(0, 64)}));
    }
    EXPECT_EQ(ENOMEM, pair.b.post_recv(99, {buffer.sge(0, 64)}));
    Wr send(1, IBV_WR_SEND, {buffer.sge(1024, 8)});
    ASSERT_EQ(0, pair.a.post(send));
    pair.cq_a.expect(1);
    pair.cq_b.expect(0);
    EXPECT_EQ(0, pair.b.post_recv(5, {buffer.sge(0, 64)}));
    EXPECT_EQ(ENOMEM, pair.b.post_recv(99, {buffer.sge(0, 64)}));
}
