/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Queue pairs: creation, the state machine and its attribute checks. */

#include "npemu_test.h"

#include <cerrno>
#include <map>

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

/* IB table 96 / ibv_modify_qp(3): what a transition demands. */
static int required(ibv_qp_type type, ibv_qp_state to)
{
    bool rc = type == IBV_QPT_RC;

    switch (to) {
    case IBV_QPS_INIT:
        return IBV_QP_PKEY_INDEX | IBV_QP_PORT |
               (rc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY);
    case IBV_QPS_RTR:
        return rc ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                            IBV_QP_MIN_RNR_TIMER :
                    0;
    case IBV_QPS_RTS:
        return IBV_QP_SQ_PSN |
               (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_MAX_QP_RD_ATOMIC :
                     0);
    default:
        return 0;
    }
}

/* Takes @a qp to a state, with good values of all attributes. */
static int
modify_to(ibv_qp *qp, ibv_qp_state to, int mask, ibv_qp_state current = {})
{
    ibv_qp_attr attr = {};

    attr.qp_state           = to;
    attr.cur_qp_state       = current;
    attr.port_num           = 1;
    attr.path_mtu           = IBV_MTU_1024;
    attr.max_rd_atomic      = 1;
    attr.max_dest_rd_atomic = 1;
    attr.ah_attr.dlid       = 1;
    attr.ah_attr.port_num   = 1;
    return npemu_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

/* Takes @a qp to a state with exactly what the transition demands. */
static int modify_to(ibv_qp *qp, ibv_qp_state to)
{
    return modify_to(qp, to, required(qp->qp_type, to));
}

/* What a transition demands and what it allows beside that. */
struct Attributes {
    int required, optional;
};

/*
 * The transitions that there are, as qp_state_table in the kernel's
 * drivers/infiniband/core/verbs.c has them, without SQD, which npemu0 does not
 * have; false for all others. There is no way from RESET to ERR.
 */
static bool transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to,
                       Attributes *attributes)
{
    bool rc        = type == IBV_QPT_RC;
    const int init = required(type, IBV_QPS_INIT);
    const int path = rc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY;
    const int live = IBV_QP_CUR_STATE | path |
                     (rc ? IBV_QP_MIN_RNR_TIMER : 0);
    using S        = ibv_qp_state;
    const std::map<std::pair<S, S>, Attributes> table = {
            {{IBV_QPS_RESET, IBV_QPS_INIT}, {init, 0}},
            {{IBV_QPS_INIT, IBV_QPS_INIT}, {0, init}},
            {{IBV_QPS_INIT, IBV_QPS_RTR},
             {required(type, IBV_QPS_RTR), IBV_QP_PKEY_INDEX | path}},
            {{IBV_QPS_RTR, IBV_QPS_RTS}, {required(type, IBV_QPS_RTS), live}},
            {{IBV_QPS_RTS, IBV_QPS_RTS}, {0, live}},
            {{IBV_QPS_SQE, IBV_QPS_RTS}, {0, live}}};

    *attributes = {0, 0};
    if ((to == IBV_QPS_RESET) ||
        ((to == IBV_QPS_ERR) && (from != IBV_QPS_RESET))) {
        return true;
    }
    auto found = table.find({from, to});
    if (found == table.end()) {
        return false;
    }
    *attributes = found->second;
    return true;
}

class test_qp_states :
    public testing::TestWithParam<std::tuple<ibv_qp_type, ibv_qp_state>> {
protected:
    test_qp_states() : cq(device)
    {
        options.type = std::get<0>(GetParam());
    }

    /* Brings a fresh QP to a state: to SQE by a send that fails. */
    void bring(Qp &qp, ibv_qp_state state)
    {
        const ibv_qp_state way[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                    IBV_QPS_SQD};
        bool is_sqe = state == IBV_QPS_SQE;

        for (ibv_qp_state to : way) {
            if (to <= (is_sqe ? IBV_QPS_RTS : state)) {
                ASSERT_EQ(0, modify_to(qp, to)) << to;
            }
        }
        if (is_sqe) {
            Ah ah(device);
            Wr wr(1, IBV_WR_SEND, {{0, 1, 0}});
            ASSERT_EQ(0, qp.post(wr.ud(ah, qp.qp->qp_num)));
            cq.expect(1, IBV_WC_LOC_PROT_ERR);
        } else if (state == IBV_QPS_ERR) {
            ASSERT_EQ(0, modify_to(qp, state));
        }
        ASSERT_EQ(state, qp.state());
    }

    Device    device;
    Cq        cq;
    QpOptions options;
};

/* From each state to each, with and without each attribute. */
TEST_P(test_qp_states, transitions_follow_the_table)
{
    auto [type, from] = GetParam();

    auto modify = [&](ibv_qp_state to, int mask, int expected) {
        Qp qp(device, cq, cq, options);
        ASSERT_NO_FATAL_FAILURE(bring(qp, from));
        EXPECT_EQ(expected, modify_to(qp, to, mask, from))
                << from << " -> " << to << " with " << std::hex << mask;
        EXPECT_EQ((expected == 0) ? to : from, qp.state());
    };
    for (int t = IBV_QPS_RESET; t <= IBV_QPS_UNKNOWN; ++t) {
        ibv_qp_state to = (ibv_qp_state)t;
        Attributes attributes;
        if (!transition(type, from, to, &attributes)) {
            modify(to, required(type, to), EINVAL);
            continue;
        }

        int need = attributes.required;
        modify(to, need, 0);
        for (int bit = IBV_QP_CUR_STATE; bit <= IBV_QP_RATE_LIMIT; bit <<= 1) {
            if (need & bit) {
                modify(to, need & ~bit, EINVAL);
            } else if (!(bit & (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE))) {
                modify(to, need | bit,
                       (attributes.optional & bit) ? 0 : EINVAL);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
        all, test_qp_states,
        testing::Combine(testing::Values(IBV_QPT_RC, IBV_QPT_UD),
                         testing::Values(IBV_QPS_RESET, IBV_QPS_INIT,
                                         IBV_QPS_RTR, IBV_QPS_RTS,
                                         IBV_QPS_ERR)));

/* Reliable connections do not come there. */
INSTANTIATE_TEST_SUITE_P(sqe, test_qp_states,
                         testing::Values(std::make_tuple(IBV_QPT_UD,
                                                         IBV_QPS_SQE)));

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
