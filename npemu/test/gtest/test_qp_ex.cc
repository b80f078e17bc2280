/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The extended way to post: ibv_wr_start() and so on. */

#include "npemu_test.h"

#include <cerrno>

using namespace npt;

constexpr uint64_t RC_OPS =
        IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
        IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
        IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

class test_qp_ex : public testing::Test {
protected:
    test_qp_ex() :
        cq_a(device), cq_b(device), a(device, cq_a, cq_a),
        b(device, cq_b, cq_b), local(device, 8192), remote(device, 8192)
    {
        use(create(IBV_QPT_RC, RC_OPS));
        if (ex == nullptr) {
            return;
        }
        connect(a, b);
    }

    ibv_qp *create(ibv_qp_type type, uint64_t ops)
    {
        ibv_qp_init_attr_ex attr = {};

        attr.qp_type             = type;
        attr.send_cq             = cq_a;
        attr.recv_cq             = cq_a;
        attr.cap.max_send_wr     = 16;
        attr.cap.max_recv_wr     = 16;
        attr.cap.max_send_sge    = 3;
        attr.cap.max_recv_sge    = 1;
        attr.cap.max_inline_data = 64;
        attr.pd                  = device.pd;
        attr.send_ops_flags      = ops;
        attr.comp_mask           = IBV_QP_INIT_ATTR_PD |
                         IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        return npemu_create_qp_ex(device.context, &attr);
    }

    /* Lets the plain QP of `a` stand for @a qp. */
    void use(ibv_qp *qp)
    {
        ASSERT_NE(nullptr, qp) << strerror(errno);
        EXPECT_EQ(0, npemu_destroy_qp(a.qp));
        a.qp = qp;
        ex   = npemu_qp_to_qp_ex(qp);
        ASSERT_NE(nullptr, ex);
    }

    /* wr_id and flags of the request that follows. */
    void next(uint64_t wr_id, unsigned flags = IBV_SEND_SIGNALED)
    {
        ex->wr_id    = wr_id;
        ex->wr_flags = flags;
    }

    void one_segment(size_t offset, size_t size)
    {
        ibv_sge sge = local.sge(offset, size);
        ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
    }

    Device     device;
    Cq         cq_a, cq_b;
    Qp         a, b;
    Buffer     local, remote;
    ibv_qp_ex *ex = nullptr;
};

TEST_F(test_qp_ex, plain_queue_pair_has_no_extension)
{
    Qp plain(device, cq_a, cq_a);
    EXPECT_EQ(nullptr, npemu_qp_to_qp_ex(plain));
}

TEST_F(test_qp_ex, refuses_unsupported_operations)
{
    for (uint64_t op : {(uint64_t)IBV_QP_EX_WITH_LOCAL_INV,
                        (uint64_t)IBV_QP_EX_WITH_BIND_MW,
                        (uint64_t)IBV_QP_EX_WITH_SEND_WITH_INV,
                        (uint64_t)IBV_QP_EX_WITH_TSO, (uint64_t)1 << 40}) {
        errno = 0;
        EXPECT_EQ(nullptr, create(IBV_QPT_RC, op)) << op;
        EXPECT_TRUE((errno == EOPNOTSUPP) || (errno == EINVAL)) << errno;
    }
    EXPECT_EQ(nullptr, create(IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE));
}

TEST_F(test_qp_ex, refuses_unsupported_create_attributes)
{
    ibv_qp_init_attr_ex attr = {};
    attr.qp_type             = IBV_QPT_RC;
    attr.send_cq             = cq_a;
    attr.recv_cq             = cq_a;
    attr.cap.max_send_wr     = 1;
    attr.cap.max_send_sge    = 1;
    attr.pd                  = device.pd;
    attr.comp_mask           = IBV_QP_INIT_ATTR_PD |
                     IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    errno = 0;
    EXPECT_EQ(nullptr, npemu_create_qp_ex(device.context, &attr));
    EXPECT_TRUE((errno == EOPNOTSUPP) || (errno == EINVAL)) << errno;

    attr.comp_mask = 0;
    EXPECT_EQ(nullptr, npemu_create_qp_ex(device.context, &attr)) << "no PD";

    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    ibv_qp *qp     = npemu_create_qp_ex(device.context, &attr);
    ASSERT_NE(nullptr, qp) << strerror(errno);
    EXPECT_EQ(0, npemu_destroy_qp(qp));
}

TEST_F(test_qp_ex, all_operations)
{
    ASSERT_NE(nullptr, ex);
    uint64_t *word = (uint64_t*)(remote.data + 4096);

    local.fill(1);
    *word = 5;
    ASSERT_EQ(0, b.post_recv(70, {remote.sge(1000, 100)}));
    ASSERT_EQ(0, b.post_recv(71, {remote.sge(1100, 100)}));
    ASSERT_EQ(0, b.post_recv(72, {}));

    ibv_wr_start(ex);
    next(1);
    ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
    one_segment(0, 100);
    next(2);
    ibv_wr_send(ex);
    one_segment(100, 100);
    next(3);
    ibv_wr_send_imm(ex, htobe32(33));
    one_segment(200, 100);
    next(4);
    ibv_wr_rdma_write_imm(ex, remote.mr->rkey, remote.at(300), htobe32(44));
    one_segment(300, 100);
    next(5);
    ibv_wr_rdma_read(ex, remote.mr->rkey, remote.at(0));
    one_segment(2000, 100);
    next(6);
    ibv_wr_atomic_cmp_swp(ex, remote.mr->rkey, remote.at(4096), 5, 50);
    one_segment(3000, 8);
    next(7);
    ibv_wr_atomic_fetch_add(ex, remote.mr->rkey, remote.at(4096), 7);
    one_segment(3008, 8);
    ASSERT_EQ(0, ibv_wr_complete(ex));

    cq_a.expect(1, IBV_WC_SUCCESS, 7);
    EXPECT_EQ(0, memcmp(local.data, remote.data, 100));
    EXPECT_EQ(0, memcmp(local.data + 300, remote.data + 300, 100));
    EXPECT_EQ(0, memcmp(local.data, local.data + 2000, 100));
    EXPECT_EQ(57u, *word);
    EXPECT_EQ(5u, *(uint64_t*)(local.data + 3000));
    EXPECT_EQ(50u, *(uint64_t*)(local.data + 3008));

    ibv_wc wc = cq_b.wait();
    EXPECT_EQ(70u, wc.wr_id);
    EXPECT_FALSE(wc.wc_flags & IBV_WC_WITH_IMM);
    EXPECT_EQ(0, memcmp(local.data + 100, remote.data + 1000, 100));
    wc = cq_b.wait();
    EXPECT_EQ(33u, be32toh(wc.imm_data));
    EXPECT_EQ(0, memcmp(local.data + 200, remote.data + 1100, 100));
    wc = cq_b.wait();
    EXPECT_EQ(IBV_WC_RECV_RDMA_WITH_IMM, wc.opcode);
    EXPECT_EQ(44u, be32toh(wc.imm_data));
}

TEST_F(test_qp_ex, data_setters)
{
    ASSERT_NE(nullptr, ex);
    uint8_t bytes[60];
    ibv_sge list[3] = {local.sge(0, 10), local.sge(100, 20),
                       local.sge(200, 30)};
    ibv_data_buf bufs[2] = {{bytes, 10}, {bytes + 30, 20}};

    local.fill(1);
    pattern_fill(bytes, sizeof(bytes), 2);
    ibv_wr_start(ex);
    next(1);
    ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
    ibv_wr_set_sge_list(ex, 3, list);
    next(2);
    ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(100));
    ibv_wr_set_inline_data(ex, bytes, sizeof(bytes));
    next(3);
    ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(200));
    ibv_wr_set_inline_data_list(ex, 2, bufs);
    uint8_t kept[60];
    memcpy(kept, bytes, sizeof(bytes));
    memset(bytes, 0, sizeof(bytes));
    ASSERT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(1, IBV_WC_SUCCESS, 3);
    EXPECT_EQ(0, memcmp(remote.data, local.data, 10));
    EXPECT_EQ(0, memcmp(remote.data + 10, local.data + 100, 20));
    EXPECT_EQ(0, memcmp(remote.data + 30, local.data + 200, 30));
    EXPECT_EQ(0, memcmp(remote.data + 100, kept, 60));
    EXPECT_EQ(0, memcmp(remote.data + 200, kept, 10));
    EXPECT_EQ(0, memcmp(remote.data + 210, kept + 30, 20));
}

TEST_F(test_qp_ex, abort_posts_nothing)
{
    ASSERT_NE(nullptr, ex);
    local.fill(1);
    ibv_wr_start(ex);
    next(1);
    ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
    one_segment(0, 100);
    ibv_wr_abort(ex);
    EXPECT_EQ(0, remote.data[0]);

    ibv_wr_start(ex);
    next(2);
    ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
    one_segment(0, 50);
    ASSERT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(2);
    cq_a.expect_empty();
    EXPECT_TRUE(pattern_holds(remote.data, 50, 1));
    EXPECT_EQ(0, remote.data[50]);
}

/* ibv_wr_complete() returns errors, and then nothing of the batch is posted. */
TEST_F(test_qp_ex, complete_reports_overflow)
{
    ASSERT_NE(nullptr, ex);
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    ASSERT_EQ(0, npemu_query_qp(a, &attr, IBV_QP_CAP, &init));

    ibv_wr_start(ex);
    for (uint32_t i = 0; i <= init.cap.max_send_wr; ++i) {
        next(i);
        ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
        one_segment(0, 8);
    }
    EXPECT_EQ(ENOMEM, ibv_wr_complete(ex));
    cq_a.expect_empty();

    ibv_wr_start(ex);
    next(1);
    ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
    ibv_wr_set_inline_data(ex, local.data, init.cap.max_inline_data + 1);
    EXPECT_NE(0, ibv_wr_complete(ex));
    cq_a.expect_empty();

    ibv_wr_start(ex);
    next(7);
    ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
    one_segment(0, 8);
    EXPECT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(7);
}

TEST_F(test_qp_ex, datagrams)
{
    ASSERT_NO_FATAL_FAILURE(use(create(IBV_QPT_UD,
                                       IBV_QP_EX_WITH_SEND |
                                               IBV_QP_EX_WITH_SEND_WITH_IMM)));
    a.options.type = IBV_QPT_UD;
    a.connect();
    QpOptions options;
    options.type = IBV_QPT_UD;
    Qp c(device, cq_b, cq_b, options);
    c.connect();
    ibv_ah_attr attr = {};
    attr.dlid        = 1;
    attr.port_num    = 1;
    ibv_ah *ah       = npemu_create_ah(device.pd, &attr);
    ASSERT_NE(nullptr, ah);

    local.fill(3);
    ASSERT_EQ(0, c.post_recv(1, {remote.sge(0, 4000)}));
    ibv_wr_start(ex);
    next(2);
    ibv_wr_send_imm(ex, htobe32(8));
    ibv_wr_set_ud_addr(ex, ah, c.qp->qp_num, 0x11111111);
    one_segment(0, 500);
    ASSERT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(2);
    ibv_wc wc = cq_b.wait();
    EXPECT_EQ(540u, wc.byte_len);
    EXPECT_EQ(8u, be32toh(wc.imm_data));
    EXPECT_TRUE(pattern_holds(remote.data + 40, 500, 3));
    EXPECT_EQ(0, npemu_destroy_ah(ah));
}
