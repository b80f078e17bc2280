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
        b(device, send_cq, recv_cq, on_srq()),
        c(device, send_cq, send_cq), d(device, send_cq, recv_cq, on_srq())
    {
        connect(a, b);
        connect(c, d);
    }

    QpOptions on_srq() const
    {
        QpOptions options;
        options.srq     = srq;
        options.recv_wr = 0;
        return options;
    }

    void send(Qp &from, uint64_t seed, size_t size = 100)
    {
        pattern_fill(buffer.data, size, seed);
        Wr wr(seed, IBV_WR_SEND, {buffer.sge(0, size)});
        ASSERT_EQ(0, from.post(wr));
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
class test_srq_pd : public testing::TestWithParam<size_t> {
protected:
    struct Pd {
        explicit Pd(Device &device) : pd(npemu_alloc_pd(device.context)) {}
        ~Pd() { EXPECT_EQ(0, npemu_dealloc_pd(pd)); }
        ibv_pd *pd;
    };

    test_srq_pd() :
        other(device), srq(device, 8, 2, other.pd), cq_a(device), cq_b(device),
        a(device, cq_a, cq_a), b(device, cq_b, cq_b, on_srq()),
        of_qp(device, 2 << 20), of_srq(device, 1 << 20, ACCESS_ALL, other.pd)
    {
        connect(a, b);
    }

    QpOptions on_srq() const
    {
        QpOptions options;
        options.srq     = srq;
        options.recv_wr = 0;
        return options;
    }

    Device device;
    Pd     other;
    Srq    srq;
    Cq     cq_a, cq_b;
    Qp     a, b;
    Buffer of_qp, of_srq;
};

TEST_P(test_srq_pd, receives_into_memory_of_the_queue)
{
    pattern_fill(of_qp.data, GetParam(), 1);
    ASSERT_EQ(0, srq.post(1, {of_srq.sge()}));
    Wr send(2, IBV_WR_SEND, {of_qp.sge(0, GetParam())});
    ASSERT_EQ(0, a.post(send));
    cq_a.expect(2);
    cq_b.expect(1);
    EXPECT_TRUE(pattern_holds(of_srq.data, GetParam(), 1));
}

TEST_P(test_srq_pd, refuses_memory_of_the_queue_pair)
{
    ASSERT_EQ(0, srq.post(1, {of_qp.sge(1 << 20, 1 << 20)}));
    Wr send(2, IBV_WR_SEND, {of_qp.sge(0, GetParam())});
    ASSERT_EQ(0, a.post(send));
    cq_a.expect(2, IBV_WC_REM_OP_ERR);
    cq_b.expect(1, IBV_WC_LOC_PROT_ERR);
}

INSTANTIATE_TEST_SUITE_P(sizes, test_srq_pd,
                         testing::Values(8, 4096, 1 << 20),
                         testing::PrintToStringParamName());

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
    Wr wr(1, IBV_WR_RDMA_WRITE, {buffer.sge(0, 8)});
    wr.rdma(Remote{buffer.at(0), 0x7f7f7f7f});
    ASSERT_EQ(0, a.post(wr));
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
