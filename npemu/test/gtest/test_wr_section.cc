/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ibv_wr_post(3): from ibv_wr_start() to ibv_wr_complete() or ibv_wr_abort() is
 * a critical section of the queue pair, and what is collected there is posted
 * as a whole or not at all.
 */

#include "npemu_test.h"

#include <atomic>
#include <cerrno>
#include <thread>

using namespace npt;

class test_wr_section : public testing::Test {
protected:
    static constexpr uint64_t RC_OPS = IBV_QP_EX_WITH_SEND |
                                       IBV_QP_EX_WITH_RDMA_WRITE |
                                       IBV_QP_EX_WITH_RDMA_READ;

    test_wr_section() :
        cq_a(device, 4096), cq_b(device, 4096), a(device, cq_a, cq_a),
        b(device, cq_b, cq_b), local(device, 8192), remote(device, 8192)
    {
    }

    /* Makes @a qp one of this type with room for @a send_wr requests. */
    void extend(Qp &qp, ibv_qp_type type, uint64_t ops, uint32_t send_wr)
    {
        ibv_qp_init_attr_ex attr = {};

        attr.qp_type             = type;
        attr.send_cq             = qp.qp->send_cq;
        attr.recv_cq             = qp.qp->recv_cq;
        attr.cap.max_send_wr     = send_wr;
        attr.cap.max_recv_wr     = 16;
        attr.cap.max_send_sge    = 2;
        attr.cap.max_recv_sge    = 1;
        attr.cap.max_inline_data = 64;
        attr.pd                  = device.pd;
        attr.send_ops_flags      = ops;
        attr.comp_mask           = IBV_QP_INIT_ATTR_PD |
                         IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        EXPECT_EQ(0, npemu_destroy_qp(qp.qp));
        qp.options.type = type;
        qp.qp           = npemu_create_qp_ex(device.context, &attr);
        ASSERT_NE(nullptr, qp.qp) << strerror(errno);
    }

    /* Connects `a`, on which the requests are collected, with `b`. */
    void start_rc(uint32_t send_wr)
    {
        ASSERT_NO_FATAL_FAILURE(extend(a, IBV_QPT_RC, RC_OPS, send_wr));
        ex = npemu_qp_to_qp_ex(a);
        ASSERT_NE(nullptr, ex);
        connect(a, b);
    }

    /* A write of 8 bytes, each to the place of its own in the target. */
    void write(uint64_t wr_id, size_t place = 0)
    {
        ex->wr_id    = wr_id;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(8 * place));
        ibv_wr_set_sge(ex, local.mr->lkey, local.at(8 * place), 8);
    }

    /* A thread that wants to enter, and is seen waiting: not in within the
     * time that it would take. Leaves the section; then it comes in. */
    template<typename Leave> void expect_held(const Leave &leave)
    {
        std::atomic<bool> is_near{false}, is_inside{false};
        std::thread other([&] {
            is_near = true;
            ibv_wr_start(ex);
            is_inside = true;
            write(99);
            EXPECT_EQ(0, ibv_wr_complete(ex));
        });

        EXPECT_TRUE(wait_until([&] { return is_near.load(); }));
        EXPECT_FALSE(wait_until([&] { return is_inside.load(); }, 20));
        leave();
        EXPECT_TRUE(wait_until([&] { return is_inside.load(); }));
        other.join();
    }

    Device     device;
    Cq         cq_a, cq_b;
    Qp         a, b;
    Buffer     local, remote;
    ibv_qp_ex *ex = nullptr;
};

/* --- one at a time -------------------------------------------------------- */

TEST_F(test_wr_section, complete_admits_the_next_thread)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(16));
    ibv_wr_start(ex);
    write(1);
    expect_held([&] {
        write(2);
        EXPECT_EQ(0, ibv_wr_complete(ex));
    });
    cq_a.expect(1, IBV_WC_SUCCESS, 2);
    cq_a.expect(99);
    cq_a.expect_empty();
}

/* --- all or nothing ------------------------------------------------------- */

TEST_F(test_wr_section, batch_is_posted_completely_or_not)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(4));
    memset(local.data, 0x5a, local.length);

    /* Two places are taken until their completions have been polled. */
    ibv_wr_start(ex);
    write(1, 100);
    write(2, 101);
    ASSERT_EQ(0, ibv_wr_complete(ex));
    ibv_wr_start(ex);
    for (int i = 0; i < 3; ++i) {
        write(10 + i, i);
    }
    EXPECT_EQ(ENOMEM, ibv_wr_complete(ex));
    cq_a.expect(1, IBV_WC_SUCCESS, 2);
    cq_a.expect_empty();
    for (int i = 0; i < 24; ++i) {
        EXPECT_EQ(0, remote.data[i]) << i;
    }

    /* As many as there is room for. */
    for (uint64_t count : {2, 4}) {
        ibv_wr_start(ex);
        for (uint64_t i = 0; i < count; ++i) {
            write(20 + i, i);
        }
        EXPECT_EQ(0, ibv_wr_complete(ex));
        cq_a.expect(20, IBV_WC_SUCCESS, count);
    }
}

/* One bad request among good ones. */
TEST_F(test_wr_section, one_bad_request_refuses_the_batch)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(16));
    std::vector<ibv_sge> three(3, local.sge(0, 8));
    const std::function<void()> bad[] = {
            [&] {
                ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
                ibv_wr_set_sge_list(ex, three.size(), three.data());
            },
            [&] {
                ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
                ibv_wr_set_inline_data(ex, local.data, 65);
            },
            [&] { /* valid for SEND and RDMA WRITE only */
                ibv_wr_rdma_read(ex, remote.mr->rkey, remote.at(0));
                ibv_wr_set_inline_data(ex, local.data, 8);
            }};

    memset(local.data, 0x5a, local.length);
    for (size_t i = 0; i < 3; ++i) {
        for (int place = 0; place < 3; ++place) {
            ibv_wr_start(ex);
            for (int k = 0; k < 3; ++k) {
                (k == place) ? bad[i]() : write(k, k);
            }
            EXPECT_EQ(EINVAL, ibv_wr_complete(ex)) << i << " at " << place;
            cq_a.expect_empty();
        }
    }
    EXPECT_EQ(0, remote.data[0]);
    EXPECT_EQ(IBV_QPS_RTS, a.state());
    ibv_wr_start(ex);
    write(7);
    EXPECT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(7);
}
