/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Unreliable datagrams and address handles. */

#include "npemu_test.h"

#include <cerrno>

using namespace npt;

constexpr size_t GRH = 40;

class test_ud : public testing::Test {
protected:
    test_ud() :
        cq_a(device), cq_b(device), a(device, cq_a, cq_a, ud()),
        b(device, cq_b, cq_b, ud()), buffer(device, 64 << 10)
    {
        a.connect();
        b.connect();
        ibv_ah_attr attr = {};
        attr.dlid        = b.address().lid;
        attr.port_num    = 1;
        ah               = npemu_create_ah(device.pd, &attr);
        EXPECT_NE(nullptr, ah) << strerror(errno);
    }

    ~test_ud()
    {
        if (ah != nullptr) {
            EXPECT_EQ(0, npemu_destroy_ah(ah));
        }
    }

    static QpOptions ud()
    {
        QpOptions options;
        options.type = IBV_QPT_UD;
        return options;
    }

    /* With a global route, whose fields all differ from zero. */
    ibv_ah *create_global_ah()
    {
        ibv_ah_attr attr = {};

        EXPECT_EQ(0, npemu_query_gid(device.context, 1, 0, &attr.grh.dgid));
        attr.dlid              = b.address().lid;
        attr.port_num          = 1;
        attr.sl                = 5;
        attr.is_global         = 1;
        attr.grh.hop_limit     = 3;
        attr.grh.traffic_class = 0x5a;
        attr.grh.flow_label    = 0x12345;
        ibv_ah *global         = npemu_create_ah(device.pd, &attr);
        EXPECT_NE(nullptr, global) << strerror(errno);
        return global;
    }

    /* A datagram with a global route, which the sender is rid of. */
    void send_global(uint64_t wr_id, size_t size)
    {
        ibv_ah *global = create_global_ah();
        Wr send(wr_id, IBV_WR_SEND, {buffer.sge(0, size)});

        ASSERT_EQ(0, a.post(send.ud(global, b.qp->qp_num)));
        cq_a.expect(wr_id);
        EXPECT_EQ(0, npemu_destroy_ah(global));
    }

    /* Where the receives are. */
    static constexpr size_t IN = 32 << 10;

    /* Waits for what shows that earlier datagrams have been dealt with. */
    void expect_next_received(uint64_t wr_id)
    {
        Wr send(99, IBV_WR_SEND, {buffer.sge(0, 8)});
        ASSERT_EQ(0, a.post(send.ud(ah, b.qp->qp_num)));
        cq_a.expect(99);
        cq_b.expect(wr_id);
    }

    Device  device;
    Cq      cq_a, cq_b;
    Qp      a, b;
    Buffer  buffer;
    ibv_ah *ah = nullptr;
};

TEST_F(test_ud, all_sizes)
{
    for (size_t size : {0, 1, 40, 64, 65, 256, 257, 1000, 4095, 4096}) {
        SCOPED_TRACE(size);
        pattern_fill(buffer.data, size, size);
        memset(buffer.data + IN, 0xa5, GRH + 4096 + 100);
        ASSERT_EQ(0, b.post_recv(5, {buffer.sge(IN, GRH + 4096)}));
        Wr send(6, IBV_WR_SEND_WITH_IMM, {buffer.sge(0, size)});
        ASSERT_EQ(0, a.post(send.imm(size + 3).ud(ah, b.qp->qp_num)));

        ibv_wc wc = cq_a.wait();
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(IBV_WC_SEND, wc.opcode);
        EXPECT_EQ(6u, wc.wr_id);
        wc = cq_b.wait();
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

    ASSERT_EQ(0, b.post_recv(1, {buffer.sge(IN, 4096)}));
    send_global(2, 10);
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

    /* The way back. */
    ibv_ah_attr back = {};
    EXPECT_EQ(0, npemu_init_ah_from_wc(device.context, 1, &wc,
                                       const_cast<ibv_grh*>(grh), &back));
    EXPECT_EQ(1, back.is_global);
    EXPECT_EQ(0, memcmp(&gid, &back.grh.dgid, sizeof(gid)));
    EXPECT_EQ(5, back.sl);
    EXPECT_EQ(0x5a, back.grh.traffic_class);
    EXPECT_EQ(0x12345u, back.grh.flow_label);
    EXPECT_EQ(3, back.grh.hop_limit);
}

TEST_F(test_ud, answers_with_an_ah_from_the_completion)
{
    ASSERT_EQ(0, b.post_recv(1, {buffer.sge(IN, 4096)}));
    ASSERT_EQ(0, a.post_recv(2, {buffer.sge(IN + 8192, 4096)}));
    pattern_fill(buffer.data, 8, 5);
    Wr send(3, IBV_WR_SEND, {buffer.sge(0, 8)});
    ASSERT_EQ(0, a.post(send.ud(ah, b.qp->qp_num)));
    cq_a.expect(3);
    ibv_wc wc   = cq_b.wait();
    ibv_ah *way = npemu_create_ah_from_wc(device.pd, &wc,
                                          (ibv_grh*)(buffer.data + IN), 1);
    ASSERT_NE(nullptr, way) << strerror(errno);
    Wr reply(4, IBV_WR_SEND, {buffer.sge(IN + GRH, 8)});
    ASSERT_EQ(0, b.post(reply.ud(way, wc.src_qp)));
    cq_b.expect(4);
    cq_a.expect(2);
    EXPECT_TRUE(pattern_holds(buffer.data + IN + 8192 + GRH, 8, 5));
    EXPECT_EQ(0, npemu_destroy_ah(way));
}

/* --- what is dropped without a word --------------------------------------- */

TEST_F(test_ud, dropped_for_another_queue_key)
{
    ASSERT_EQ(0, b.post_recv(1, {buffer.sge(IN, 4096)}));
    Wr send(2, IBV_WR_SEND, {buffer.sge(0, 8)});
    ASSERT_EQ(0, a.post(send.ud(ah, b.qp->qp_num, 0x22222222)));
    cq_a.expect(2);
    cq_b.expect_empty();
    expect_next_received(1);
}

/* IB 10.2.5: a key with the high bit means the sender's own key. */
TEST_F(test_ud, queue_key_with_the_high_bit)
{
    ASSERT_EQ(0, b.post_recv(1, {buffer.sge(IN, 4096)}));
    Wr send(2, IBV_WR_SEND, {buffer.sge(0, 8)});
    ASSERT_EQ(0, a.post(send.ud(ah, b.qp->qp_num, 0x80000000)));
    cq_a.expect(2);
    cq_b.expect(1);
}

TEST_F(test_ud, dropped_without_a_receive)
{
    Wr send(1, IBV_WR_SEND, {buffer.sge(0, 8)});
    ASSERT_EQ(0, a.post(send.ud(ah, b.qp->qp_num)));
    cq_a.expect(1);
    cq_b.expect_empty();
    ASSERT_EQ(0, b.post_recv(2, {buffer.sge(IN, 4096)}));
    cq_b.expect_empty();
    expect_next_received(2);
}

/* --- errors --------------------------------------------------------------- */

TEST_F(test_ud, message_longer_than_the_mtu_fails)
{
    Wr send(1, IBV_WR_SEND, {buffer.sge(0, 4097)});
    int ret = a.post(send.ud(ah, b.qp->qp_num));
    if (ret == 0) {
        cq_a.expect(1, IBV_WC_LOC_LEN_ERR);
    } else {
        EXPECT_EQ(EINVAL, ret);
    }
}

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

    ASSERT_EQ(0, a.post_recv(8, {buffer.sge(IN, 4096)}));
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
    ASSERT_EQ(0, b.post_recv(9, {buffer.sge(IN, 4096)}));
    Wr good(5, IBV_WR_SEND, {buffer.sge(0, 8)});
    ASSERT_EQ(0, a.post(good.ud(ah, b.qp->qp_num)));
    cq_a.expect(5);
    cq_b.expect(9);
}

/* The same receiver's bad buffer is its own error; the sender hears nothing. */
TEST_F(test_ud, receive_buffer_of_a_bad_key)
{
    ibv_sge bad = buffer.sge(IN, 4096);
    bad.lkey   ^= 1u << 31;
    ASSERT_EQ(0, b.post_recv(1, {bad}));
    Wr send(2, IBV_WR_SEND, {buffer.sge(0, 8)});
    ASSERT_EQ(0, a.post(send.ud(ah, b.qp->qp_num)));
    cq_a.expect(2);
    cq_b.expect(1, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(IBV_QPS_RTS, a.state());
}

/* --- two parts of a receive, of which one is bad -------------------------- */

/* The memory for the GRH went away after the receive was posted. */
TEST_F(test_ud, error_of_the_global_route_counts)
{
    Buffer gone(device, 4096);
    buffer.fill(1);
    ASSERT_EQ(0, b.post_recv(1, {gone.sge(0, GRH), buffer.sge(IN, 4096)}));
    send_global(2, 64);
    gone.dereg();
    memset(buffer.data + IN, 0xa5, 64);
    cq_b.expect(1, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(0xa5, buffer.data[IN]) << "payload of a failed receive";
    EXPECT_EQ(IBV_QPS_ERR, b.state());
    EXPECT_EQ(IBV_QPS_RTS, a.state());
}

/* The same, known when the receive was posted. */
TEST_F(test_ud, error_of_a_bad_key_counts)
{
    for (int part : {0, 1}) {
        SCOPED_TRACE(part);
        Qp c(device, cq_b, cq_b, ud());
        c.connect();
        std::vector<ibv_sge> list = {buffer.sge(IN, GRH),
                                     buffer.sge(IN + 4096, 4096)};
        list[part].lkey ^= 1u << 31;
        ASSERT_EQ(0, c.post_recv(1, list));
        ibv_ah *global = create_global_ah();
        Wr send(2, IBV_WR_SEND, {buffer.sge(0, 64)});
        ASSERT_EQ(0, a.post(send.ud(global, c.qp->qp_num)));
        cq_a.expect(2);
        EXPECT_EQ(0, npemu_destroy_ah(global));
        cq_b.expect(1, IBV_WC_LOC_PROT_ERR);
        EXPECT_EQ(IBV_QPS_ERR, c.state());
    }
    EXPECT_EQ(IBV_QPS_RTS, a.state());
}

/* Without a global route nothing is written there. */
TEST_F(test_ud, grh_room_is_not_written_without_a_global_route)
{
    ibv_sge bad = buffer.sge(IN, GRH);
    bad.lkey   ^= 1u << 31;
    pattern_fill(buffer.data, 64, 3);
    ASSERT_EQ(0, b.post_recv(1, {bad, buffer.sge(IN + 4096, 4096)}));
    Wr send(2, IBV_WR_SEND, {buffer.sge(0, 64)});
    ASSERT_EQ(0, a.post(send.ud(ah, b.qp->qp_num)));
    cq_a.expect(2);
    cq_b.expect(1);
    EXPECT_TRUE(pattern_holds(buffer.data + IN + 4096, 64, 3));
    EXPECT_EQ(IBV_QPS_RTS, b.state());
}

TEST(test_ud_srq, receives_from_a_shared_queue)
{
    Device device;
    ASSERT_TRUE(device.ok());
    Cq send_cq(device), recv_cq(device);
    Srq srq(device, 8);
    QpOptions options;
    options.type = IBV_QPT_UD;
    Qp a(device, send_cq, send_cq, options);
    options.srq     = srq;
    options.recv_wr = 0;
    Qp b(device, send_cq, recv_cq, options);
    Buffer buffer(device, 8192);
    ibv_ah_attr attr = {};
    attr.dlid        = 1;
    attr.port_num    = 1;
    ibv_ah *ah       = npemu_create_ah(device.pd, &attr);
    ASSERT_NE(nullptr, ah);
    a.connect();
    b.connect();
    for (size_t size : {8, 2000}) {
        pattern_fill(buffer.data, size, size);
        ASSERT_EQ(0, srq.post(1, {buffer.sge(4096, 4096)}));
        Wr send(2, IBV_WR_SEND, {buffer.sge(0, size)});
        ASSERT_EQ(0, a.post(send.ud(ah, b.qp->qp_num)));
        send_cq.expect(2);
        recv_cq.expect(1);
        EXPECT_TRUE(pattern_holds(buffer.data + 4096 + GRH, size, size));
    }
    EXPECT_EQ(0, npemu_destroy_ah(ah));
}

/* Between two processes, one of them asleep on its channel. */
TEST(test_ud_process, wakes_the_receiver)
{
    Child receiver([](Pipe &pipe) {
        Device device;
        ASSERT_TRUE(device.ok());
        Channel channel(device);
        Cq cq(device, 64, &channel);
        QpOptions options;
        options.type = IBV_QPT_UD;
        Qp qp(device, cq, cq, options);
        Buffer buffer(device, 4096);
        qp.connect();
        ASSERT_EQ(0, qp.post_recv(1, {buffer.sge()}));
        ASSERT_EQ(0, ibv_req_notify_cq(cq, 0));
        pipe.send(qp.address());
        EXPECT_EQ(cq.cq, channel.take());
        EXPECT_EQ(GRH + 1000, cq.wait().byte_len);
        EXPECT_TRUE(pattern_holds(buffer.data + GRH, 1000, 9));
    });
    Device device;
    ASSERT_TRUE(device.ok());
    Cq cq(device);
    QpOptions options;
    options.type = IBV_QPT_UD;
    Qp qp(device, cq, cq, options);
    Buffer buffer(device, 4096);
    Address peer     = receiver.pipe().recv<Address>();
    ibv_ah_attr attr = {};
    attr.dlid        = peer.lid;
    attr.port_num    = 1;
    ibv_ah *ah       = npemu_create_ah(device.pd, &attr);
    ASSERT_NE(nullptr, ah);
    qp.connect();
    buffer.fill(9);
    Wr send(1, IBV_WR_SEND, {buffer.sge(0, 1000)});
    ASSERT_EQ(0, qp.post(send.ud(ah, peer.qpn)));
    cq.expect(1);
    receiver.join();
    EXPECT_EQ(0, npemu_destroy_ah(ah));
}
