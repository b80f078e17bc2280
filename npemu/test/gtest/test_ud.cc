/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Unreliable datagrams and address handles. */

#include "npemu_test.h"

using namespace npt;

constexpr size_t GRH = 40;

class test_ud : public testing::Test {
protected:
    test_ud() :
        cq_a(device), cq_b(device), a(device, cq_a, cq_a, QpOptions::ud()),
        b(device, cq_b, cq_b, QpOptions::ud()), buffer(device, 64 << 10),
        ah(device)
    {
        a.connect();
        b.connect();
    }

    /* A datagram from a, which completes whatever becomes of it. */
    void send(ibv_ah *to, Qp &target, size_t size, uint32_t qkey = QKEY)
    {
        Wr wr(2, IBV_WR_SEND_WITH_IMM, {buffer.sge(0, size)});
        ASSERT_EQ(0, a.post(wr.imm(size + 3).ud(to, target.qp->qp_num, qkey)));
        ibv_wc wc = cq_a.wait();
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(IBV_WC_SEND, wc.opcode);
        EXPECT_EQ(2u, wc.wr_id);
    }

    /* A global route, whose fields all differ from zero. */
    ibv_ah_attr global()
    {
        ibv_ah_attr attr = {};

        EXPECT_EQ(0, npemu_query_gid(device.context, 1, 0, &attr.grh.dgid));
        attr.sl                = 5;
        attr.is_global         = 1;
        attr.grh.hop_limit     = 3;
        attr.grh.traffic_class = 0x5a;
        attr.grh.flow_label    = 0x12345;
        return attr;
    }

    /* Where the receives are. */
    static constexpr size_t IN = 32 << 10;

    Device  device;
    Cq      cq_a, cq_b;
    Qp      a, b;
    Buffer  buffer;
    Ah      ah;
};

TEST_F(test_ud, all_sizes)
{
    for (size_t size : {0, 1, 40, 64, 65, 256, 257, 1000, 4095, 4096}) {
        SCOPED_TRACE(size);
        pattern_fill(buffer.data, size, size);
        memset(buffer.data + IN, 0xa5, GRH + 4096 + 100);
        b.recv(5, {buffer.sge(IN, GRH + 4096)});
        send(ah, b, size);
        ibv_wc wc = cq_b.wait();
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(IBV_WC_RECV, wc.opcode);
        EXPECT_EQ(5u, wc.wr_id);
        EXPECT_EQ(GRH + size, wc.byte_len);
        EXPECT_EQ(a.qp->qp_num, wc.src_qp);
        EXPECT_EQ(b.qp->qp_num, wc.qp_num);
        EXPECT_EQ(a.address().lid, wc.slid);
        EXPECT_EQ(0, wc.pkey_index);
        EXPECT_TRUE(wc.wc_flags & IBV_WC_WITH_IMM);
        EXPECT_FALSE(wc.wc_flags & IBV_WC_GRH);
        EXPECT_EQ(size + 3, be32toh(wc.imm_data));
        EXPECT_TRUE(pattern_holds(buffer.data + IN + GRH, size, size));
        for (size_t i = 0; i < 100; ++i) {
            ASSERT_EQ(0xa5, buffer.data[IN + GRH + size + i]);
        }
    }
}

TEST_F(test_ud, with_global_route)
{
    union ibv_gid gid;
    ASSERT_EQ(0, npemu_query_gid(device.context, 1, 0, &gid));

    b.recv(1, {buffer.sge(IN, 4096)});
    Ah there(device, global());
    send(there, b, 10);
    ibv_wc wc = cq_b.wait();
    EXPECT_TRUE(wc.wc_flags & IBV_WC_GRH);
    EXPECT_EQ(5, wc.sl);
    const ibv_grh *grh = (const ibv_grh*)(buffer.data + IN);
    EXPECT_EQ((6u << 28) | (0x5au << 20) | 0x12345u,
              be32toh(grh->version_tclass_flow));
    EXPECT_EQ(3, grh->hop_limit) << "no router on the way";
    EXPECT_EQ(0x1b, grh->next_hdr);
    EXPECT_EQ(0, memcmp(&gid, &grh->sgid, sizeof(gid)));
    EXPECT_EQ(0, memcmp(&gid, &grh->dgid, sizeof(gid)));
}

/* --- what is dropped without a word --------------------------------------- */

TEST_F(test_ud, dropped_without_a_receive_or_for_another_queue_key)
{
    send(ah, b, 8);
    b.recv(1, {buffer.sge(IN, 4096)});
    send(ah, b, 8, QKEY + 1);
    cq_b.expect_empty();
    send(ah, b, 9);
    EXPECT_EQ(GRH + 9, cq_b.wait().byte_len);
}

/* --- errors --------------------------------------------------------------- */

/*
 * IB 10.8.5.2: a local error of a UD send stops the send queue only; the user
 * may bring it back.
 */
TEST_F(test_ud, send_queue_error)
{
    ibv_sge bad = buffer.sge(0, 8);
    bad.lkey   ^= 1u << 31;
    Wr wrong(1, IBV_WR_SEND, {bad});
    Wr behind(2, IBV_WR_SEND, {buffer.sge(0, 8)}, 0);
    wrong.ud(ah, b.qp->qp_num).then(behind.ud(ah, b.qp->qp_num));

    a.recv(8, {buffer.sge(IN, 4096)});
    ASSERT_EQ(0, a.post(wrong));
    cq_a.expect(1, IBV_WC_LOC_PROT_ERR);
    cq_a.expect(2, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(IBV_QPS_SQE, a.state());

    Wr more(3, IBV_WR_SEND, {buffer.sge(0, 8)});
    ASSERT_EQ(0, a.post(more.ud(ah, b.qp->qp_num)));
    cq_a.expect(3, IBV_WC_WR_FLUSH_ERR);

    /* It receives as before. */
    Wr to_a(4, IBV_WR_SEND, {buffer.sge(0, 8)});
    ASSERT_EQ(0, b.post(to_a.ud(ah, a.qp->qp_num)));
    cq_b.expect(4);
    cq_a.expect(8);

    ibv_qp_attr attr  = {};
    attr.qp_state     = IBV_QPS_RTS;
    attr.cur_qp_state = IBV_QPS_SQE;
    ASSERT_EQ(0, npemu_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
    EXPECT_EQ(IBV_QPS_RTS, a.state());
    b.recv(9, {buffer.sge(IN, 4096)});
    send(ah, b, 8);
    cq_b.expect(9);
}

/* The receiver's bad buffer is its own error; the sender hears nothing. */
TEST_F(test_ud, error_of_a_bad_key_counts)
{
    for (int part : {0, 1}) {
        SCOPED_TRACE(part);
        Qp c(device, cq_b, cq_b, QpOptions::ud());
        c.connect();
        std::vector<ibv_sge> list = {buffer.sge(IN, GRH),
                                     buffer.sge(IN + 4096, 4096)};
        list[part].lkey ^= 1u << 31;
        c.recv(1, list);
        Ah there(device, global());
        send(there, c, 64);
        cq_b.expect(1, IBV_WC_LOC_PROT_ERR);
        EXPECT_EQ(IBV_QPS_ERR, c.state());
    }
    EXPECT_EQ(IBV_QPS_RTS, a.state());
}
