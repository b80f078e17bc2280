/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Queue pairs: creation, the state machine and its attribute checks. */

#include "npemu_test.h"

#include <cerrno>

using namespace npt;

class test_qp : public testing::Test {
protected:
    test_qp() : cq(device) {}

    Device device;
    Cq     cq;
};

TEST_F(test_qp, is_known_by_its_number)
{
    uint32_t qpn;

    {
        Qp qp(device, cq, cq);
        qpn = qp.qp->qp_num;
        EXPECT_EQ(1, npemu_has_qp(device.context, qpn));
        EXPECT_EQ(0, npemu_has_qp(device.context, qpn + (1 << 24)));
    }
    EXPECT_EQ(0, npemu_has_qp(device.context, qpn));
    EXPECT_EQ(0, npemu_has_qp(device.context, 0xfffffe)) << "no such process";
}

/* --- state machine -------------------------------------------------------- */

/* IB table 96 / ibv_modify_qp(3): what the way to RTS demands. */
class test_qp_states : public test_qp,
                       public testing::WithParamInterface<ibv_qp_type> {
protected:
    static int required(ibv_qp_state to)
    {
        const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT;

        if (GetParam() == IBV_QPT_UD) {
            return (to == IBV_QPS_INIT) ? init | IBV_QP_QKEY :
                   (to == IBV_QPS_RTS)  ? (int)IBV_QP_SQ_PSN : 0;
        }

        return (to == IBV_QPS_INIT) ? init | IBV_QP_ACCESS_FLAGS :
               (to == IBV_QPS_RTR)  ? IBV_QP_AV | IBV_QP_PATH_MTU |
                                              IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                              IBV_QP_MAX_DEST_RD_ATOMIC |
                                              IBV_QP_MIN_RNR_TIMER :
               (to == IBV_QPS_RTS)  ? IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                                              IBV_QP_RETRY_CNT |
                                              IBV_QP_RNR_RETRY |
                                              IBV_QP_MAX_QP_RD_ATOMIC :
                                      0;
    }

    /* Modifies the QP, with good values of all attributes. */
    static int modify(Qp &qp, ibv_qp_state to, int mask)
    {
        ibv_qp_attr attr = {};

        attr.qp_state           = to;
        attr.port_num           = 1;
        attr.path_mtu           = IBV_MTU_1024;
        attr.max_rd_atomic      = 1;
        attr.max_dest_rd_atomic = 1;
        attr.ah_attr.dlid       = 1;
        attr.ah_attr.port_num   = 1;
        return npemu_modify_qp(qp, &attr, IBV_QP_STATE | mask);
    }
};

/* As in qp_state_table of the kernel's drivers/infiniband/core/verbs.c, but
 * for SQD, which npemu0 does not have. There is no way from RESET to ERR. */
TEST_P(test_qp_states, lead_to_each_other_with_all_that_is_required)
{
    const ibv_qp_state way[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
                                IBV_QPS_RTS};
    QpOptions options;
    options.type = GetParam();
    Qp qp(device, cq, cq, options);

    EXPECT_EQ(EINVAL, modify(qp, IBV_QPS_ERR, 0));
    for (size_t i = 1; i < 4; ++i) {
        SCOPED_TRACE(way[i]);
        for (size_t k = i + 1; k < 4; ++k) {
            EXPECT_EQ(EINVAL, modify(qp, way[k], required(way[k]))) << way[k];
        }
        int need = required(way[i]);
        for (int bit = IBV_QP_CUR_STATE; bit <= IBV_QP_RATE_LIMIT; bit <<= 1) {
            if (need & bit) {
                EXPECT_EQ(EINVAL, modify(qp, way[i], need & ~bit)) << bit;
            }
        }
        EXPECT_EQ(EINVAL, modify(qp, way[i], need | IBV_QP_RATE_LIMIT));
        EXPECT_EQ(way[i - 1], qp.state());
        ASSERT_EQ(0, modify(qp, way[i], need));
        EXPECT_EQ(way[i], qp.state());
    }
    EXPECT_EQ(EINVAL, modify(qp, IBV_QPS_RTR, required(IBV_QPS_RTR)));
    EXPECT_EQ(0, modify(qp, IBV_QPS_ERR, 0));
    EXPECT_EQ(EINVAL, modify(qp, IBV_QPS_RTS, required(IBV_QPS_RTS)));
    EXPECT_EQ(0, modify(qp, IBV_QPS_RESET, 0));
}

INSTANTIATE_TEST_SUITE_P(type, test_qp_states,
                         testing::Values(IBV_QPT_RC, IBV_QPT_UD));

TEST_F(test_qp, posting_needs_the_right_state)
{
    Qp qp(device, cq, cq);
    Wr send(1, IBV_WR_SEND);

    EXPECT_EQ(EINVAL, qp.post_recv(1, {}));
    EXPECT_EQ(EINVAL, qp.post(send));
    ASSERT_EQ(0, qp.to_init());
    qp.recv(2, {});
    EXPECT_EQ(EINVAL, qp.post(send));
    ASSERT_EQ(0, qp.to_rtr(qp.address()));
    qp.recv(3, {});
    EXPECT_EQ(EINVAL, qp.post(send));
    cq.expect_empty();

    ASSERT_EQ(0, qp.to_state(IBV_QPS_ERR));
    cq.expect(2, IBV_WC_WR_FLUSH_ERR, 2);
    EXPECT_EQ(0, qp.post(send));
    cq.expect(1, IBV_WC_WR_FLUSH_ERR);
    qp.recv(4, {});
    cq.expect(4, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(test_qp, reset_forgets_what_was_posted)
{
    Pair pair(device);

    pair.b.recv(1, {});
    ASSERT_EQ(0, pair.b.to_state(IBV_QPS_RESET));
    pair.cq_b.expect_empty();
    ASSERT_EQ(0, pair.a.to_state(IBV_QPS_RESET));

    /* And both can be connected anew. */
    connect(pair.a, pair.b);
    pair.b.recv(2, {});
    pair.a.send(3, {});
    pair.cq_a.expect(3);
    pair.cq_b.expect(2);
}

/* --- events --------------------------------------------------------------- */

/* An event that was not delivered is discarded with its object. */
TEST_F(test_qp, destroy_discards_its_events)
{
    Srq srq(device, 4);
    {
        Qp qp(device, cq, cq, QpOptions().on(srq));
        ASSERT_EQ(0, qp.to_init());
        ASSERT_EQ(0, qp.to_state(IBV_QPS_ERR));
        EXPECT_TRUE(has_async(device, WAIT_MS));
    }
    EXPECT_FALSE(has_async(device));
}
