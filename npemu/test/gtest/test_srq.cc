/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Shared receive queues. */

#include "npemu_test.h"

using namespace npt;

/* Two connected senders into one SRQ. */
class test_srq : public testing::Test {
protected:
    test_srq() :
        srq(device, 8), send_cq(device), recv_cq(device),
        buffer(device, 8 * 4096), a(device, send_cq, send_cq),
        b(device, send_cq, recv_cq, QpOptions().on(srq)),
        c(device, send_cq, send_cq),
        d(device, send_cq, recv_cq, QpOptions().on(srq))
    {
        connect(a, b);
        connect(c, d);
    }

    void send(Qp &from, uint64_t seed, size_t size = 100)
    {
        pattern_fill(buffer.data, size, seed);
        from.send(seed, {buffer.sge(0, size)});
        send_cq.expect(seed);
    }

    Device device;
    Srq    srq;
    Cq     send_cq, recv_cq;
    Buffer buffer;
    Qp     a, b, c, d;
};

/*
 * An SRQ may belong to another PD than a QP that uses it. Its receives are
 * checked against its own, however long the message is.
 */
TEST_F(test_srq, has_a_protection_domain_of_its_own)
{
    constexpr size_t MAX = 1 << 20;
    ibv_pd *other        = npemu_alloc_pd(device.context);
    {
        Srq of_other(device, 8, other);
        Buffer of_qp(device, MAX), of_srq(device, MAX, ACCESS_ALL, other);

        for (size_t size : {(size_t)8, (size_t)4096, MAX}) {
            Pair pair(device, QpOptions(), QpOptions().on(of_other));
            pattern_fill(of_qp.data, size, size);
            ASSERT_EQ(0, of_other.post(1, {of_srq.sge()}));
            ASSERT_EQ(0, of_other.post(2, {of_qp.sge()}));
            for (int i = 0; i < 2; ++i) {
                pair.a.send(3, {of_qp.sge(0, size)});
                pair.cq_a.expect(3, i ? IBV_WC_REM_OP_ERR : IBV_WC_SUCCESS);
                pair.cq_b.expect(1 + i, i ? IBV_WC_LOC_PROT_ERR :
                                            IBV_WC_SUCCESS);
            }
            EXPECT_TRUE(pattern_holds(of_srq.data, size, size));
        }
    }
    EXPECT_EQ(0, npemu_dealloc_pd(other));
}

TEST_F(test_srq, serves_all_its_queue_pairs_in_order)
{
    for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(0, srq.post(10 + i, {buffer.sge(4096 * (i + 1), 4096)}));
    }
    for (int i = 0; i < 4; ++i) {
        send((i & 1) ? c : a, i);
        ibv_wc wc = recv_cq.wait();
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(10u + i, wc.wr_id);
        EXPECT_EQ(((i & 1) ? d : b).qp->qp_num, wc.qp_num);
        EXPECT_EQ(100u, wc.byte_len);
        EXPECT_TRUE(pattern_holds(buffer.data + 4096 * (i + 1), 100, i));
    }
}

TEST_F(test_srq, limit_event_comes_once)
{
    for (int i = 0; i < 5; ++i) {
        ASSERT_EQ(0, srq.post(i, {buffer.sge(4096, 4096)}));
    }
    ibv_srq_attr attr = {};
    attr.srq_limit    = 4;
    ASSERT_EQ(0, npemu_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    ASSERT_EQ(0, npemu_query_srq(srq, &attr));
    EXPECT_EQ(4u, attr.srq_limit);

    send(a, 1); /* 4 left: not below */
    recv_cq.expect(0);
    EXPECT_FALSE(has_async(device));
    send(c, 2);
    recv_cq.expect(1);
    AsyncEvent event = take_async(device);
    EXPECT_EQ(IBV_EVENT_SRQ_LIMIT_REACHED, event.type);
    EXPECT_EQ((void*)srq.srq, event.element);

    send(a, 3);
    recv_cq.expect(2);
    EXPECT_FALSE(has_async(device)) << "disarmed by the first";
    ASSERT_EQ(0, npemu_query_srq(srq, &attr));
    EXPECT_EQ(0u, attr.srq_limit);
}

/* IB C10-42: an SRQ's receives are not flushed, so the QP says it is done. */
TEST_F(test_srq, last_wqe_event_comes_in_error)
{
    ASSERT_EQ(0, srq.post(0, {buffer.sge(4096, 4096)}));
    ASSERT_EQ(0, b.to_state(IBV_QPS_ERR));
    AsyncEvent event = take_async(device);
    EXPECT_EQ(IBV_EVENT_QP_LAST_WQE_REACHED, event.type);
    EXPECT_EQ((void*)b.qp, event.element);
    recv_cq.expect_empty();

    /* The other QP still has the receive. */
    send(c, 1);
    recv_cq.expect(0);
    EXPECT_FALSE(has_async(device));
}

TEST_F(test_srq, last_wqe_after_a_remote_error)
{
    a.write(1, {buffer.sge(0, 8)}, {buffer.at(0), 0x7f7f7f7f});
    send_cq.expect(1, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(IBV_QPS_ERR, a.state());

    /* The responder goes to the error state too, and raises an event. */
    bool access_error = false, last_wqe = false;
    while (!last_wqe) {
        AsyncEvent event = take_async(device);
        ASSERT_NE(-1, event.type);
        EXPECT_EQ((void*)b.qp, event.element);
        access_error |= (event.type == IBV_EVENT_QP_ACCESS_ERR);
        last_wqe     |= (event.type == IBV_EVENT_QP_LAST_WQE_REACHED);
    }
    EXPECT_TRUE(access_error);
    EXPECT_EQ(IBV_QPS_ERR, b.state());
}
