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

/* The values of all attributes that a test sets. */
static ibv_qp_attr good_values(ibv_qp_state to)
{
    ibv_qp_attr attr = {};

    attr.qp_state           = to;
    attr.port_num           = 1;
    attr.qp_access_flags    = ACCESS_ALL;
    attr.qkey               = 0x1234;
    attr.path_mtu           = IBV_MTU_1024;
    attr.dest_qp_num        = 17;
    attr.rq_psn             = 100;
    attr.sq_psn             = 200;
    attr.max_rd_atomic      = 1;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer      = 12;
    attr.timeout            = 14;
    attr.retry_cnt          = 7;
    attr.rnr_retry          = 7;
    attr.ah_attr.dlid       = 1;
    attr.ah_attr.port_num   = 1;
    return attr;
}

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

/* Takes @a qp to a state with the values above. */
static int
modify_to(ibv_qp *qp, ibv_qp_state to, int mask, ibv_qp_state current = {})
{
    ibv_qp_attr attr  = good_values(to);
    attr.cur_qp_state = current;
    return npemu_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

/* Takes @a qp to a state with exactly what the transition demands. */
static int modify_to(ibv_qp *qp, ibv_qp_state to)
{
    return modify_to(qp, to, required(qp->qp_type, to));
}

class test_qp_states :
    public testing::TestWithParam<std::tuple<ibv_qp_type, ibv_qp_state>> {
protected:
    test_qp_states() : cq(device)
    {
        options.type = std::get<0>(GetParam());
    }

    /* No modification leads there: by a send that fails. */
    static void bring_to_sqe(ibv_qp *qp)
    {
        ibv_ah_attr attr = {};
        ibv_sge sge      = {(uintptr_t)&attr, 1, 0};
        ibv_send_wr *bad;
        ibv_wc wc;

        ASSERT_NO_FATAL_FAILURE(bring(qp, IBV_QPS_RTS));
        attr.dlid     = 1;
        attr.port_num = 1;
        ibv_ah *ah    = npemu_create_ah(qp->pd, &attr);
        ASSERT_NE(nullptr, ah);
        Wr wr(1, IBV_WR_SEND, {sge});
        EXPECT_EQ(0, ibv_post_send(qp, &wr.ud(ah, qp->qp_num), &bad));
        EXPECT_EQ(1, ibv_poll_cq(qp->send_cq, 1, &wc));
        EXPECT_EQ(IBV_WC_LOC_PROT_ERR, wc.status);
        EXPECT_EQ(0, npemu_destroy_ah(ah));
        EXPECT_EQ(IBV_QPS_SQE, query(qp));
    }

    /* Brings a fresh QP to @a state. */
    static void bring(ibv_qp *qp, ibv_qp_state state)
    {
        std::vector<ibv_qp_state> path;

        if (state == IBV_QPS_ERR) {
            path = {IBV_QPS_INIT, IBV_QPS_ERR};
        } else if (state == IBV_QPS_SQE) {
            ASSERT_NO_FATAL_FAILURE(bring_to_sqe(qp));
            return;
        } else if (state != IBV_QPS_RESET) {
            for (int s = IBV_QPS_INIT; s <= state; ++s) {
                path.push_back((ibv_qp_state)s);
            }
        }
        for (ibv_qp_state to : path) {
            ASSERT_EQ(0, modify_to(qp, to)) << to;
        }
        ASSERT_EQ(state, qp->state);
    }

    static ibv_qp_state query(ibv_qp *qp)
    {
        ibv_qp_attr attr;
        ibv_qp_init_attr init;

        EXPECT_EQ(0, npemu_query_qp(qp, &attr, IBV_QP_STATE, &init));
        EXPECT_EQ(attr.qp_state, qp->state);
        return attr.qp_state;
    }

    Device    device;
    Cq        cq;
    QpOptions options;
};

/* Such as rc_rtr */
static std::string
state_name(const testing::TestParamInfo<test_qp_states::ParamType> &info)
{
    static const char *names[] = {"reset", "init", "rtr", "rts",
                                  "sqd",   "sqe",  "err"};

    return std::string((std::get<0>(info.param) == IBV_QPT_RC) ? "rc_" :
                                                                 "ud_") +
           names[std::get<1>(info.param)];
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
    const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                     (rc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY);
    const int path = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS;
    const int live = IBV_QP_CUR_STATE |
                     (rc ? path | IBV_QP_PATH_MIG_STATE |
                                     IBV_QP_MIN_RNR_TIMER :
                           IBV_QP_QKEY);
    using S        = ibv_qp_state;
    const std::map<std::pair<S, S>, Attributes> table = {
            {{IBV_QPS_RESET, IBV_QPS_INIT}, {init, 0}},
            {{IBV_QPS_INIT, IBV_QPS_INIT}, {0, init}},
            {{IBV_QPS_INIT, IBV_QPS_RTR},
             {required(type, IBV_QPS_RTR),
              IBV_QP_PKEY_INDEX | (rc ? path : IBV_QP_QKEY)}},
            {{IBV_QPS_RTR, IBV_QPS_RTS}, {required(type, IBV_QPS_RTS), live}},
            {{IBV_QPS_RTS, IBV_QPS_RTS}, {0, live}},
            {{IBV_QPS_SQE, IBV_QPS_RTS}, {0, live}}};

    if ((to == IBV_QPS_RESET) ||
        ((to == IBV_QPS_ERR) && (from != IBV_QPS_RESET))) {
        *attributes = {0, 0};
        return true;
    }
    auto found = table.find({from, to});
    if (found == table.end()) {
        return false;
    }
    *attributes = found->second;
    return true;
}

/* From each state to each, with and without each attribute. */
TEST_P(test_qp_states, transitions_follow_the_table)
{
    /* No automatic path migration: not a matter of the transition. */
    constexpr int MIGRATION = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
    auto [type, from]       = GetParam();

    auto modify = [&](ibv_qp_state to, int mask, int expected) {
        Qp qp(device, cq, cq, options);
        ASSERT_NO_FATAL_FAILURE(bring(qp, from));
        EXPECT_EQ(expected, modify_to(qp, to, mask, from))
                << from << " -> " << to << " with " << std::hex << mask;
        EXPECT_EQ((expected == 0) ? to : from, query(qp));
    };
    for (int t = IBV_QPS_RESET; t <= IBV_QPS_UNKNOWN; ++t) {
        ibv_qp_state to = (ibv_qp_state)t;
        Attributes attributes;
        if (!transition(type, from, to, &attributes)) {
            modify(to, 0, EINVAL);
            modify(to, required(type, to), EINVAL);
            continue;
        }

        int need = attributes.required;
        modify(to, need, 0);
        for (int bit = IBV_QP_CUR_STATE; bit <= IBV_QP_RATE_LIMIT; bit <<= 1) {
            if (need & bit) {
                modify(to, need & ~bit, EINVAL);
            } else if (!(attributes.optional & bit)) {
                modify(to, need | bit, EINVAL);
            } else {
                modify(to, need | bit, (bit & MIGRATION) ? EOPNOTSUPP : 0);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
        all, test_qp_states,
        testing::Combine(testing::Values(IBV_QPT_RC, IBV_QPT_UD),
                         testing::Values(IBV_QPS_RESET, IBV_QPS_INIT,
                                         IBV_QPS_RTR, IBV_QPS_RTS,
                                         IBV_QPS_ERR)),
        state_name);

/* Reliable connections do not come there. */
INSTANTIATE_TEST_SUITE_P(sqe, test_qp_states,
                         testing::Values(std::make_tuple(IBV_QPT_UD,
                                                         IBV_QPS_SQE)),
                         state_name);

TEST_F(test_qp, posting_needs_the_right_state)
{
    Buffer buffer(device, 4096);
    Qp qp(device, cq, cq);
    Wr send(1, IBV_WR_SEND, {buffer.sge(0, 8)});

    EXPECT_EQ(EINVAL, qp.post_recv(1, {buffer.sge(0, 8)}));
    EXPECT_EQ(EINVAL, qp.post(send));
    ASSERT_EQ(0, qp.to_init());
    EXPECT_EQ(0, qp.post_recv(2, {buffer.sge(0, 8)}));
    EXPECT_EQ(EINVAL, qp.post(send));
    ASSERT_EQ(0, qp.to_rtr(qp.address()));
    EXPECT_EQ(0, qp.post_recv(3, {buffer.sge(0, 8)}));
    EXPECT_EQ(EINVAL, qp.post(send));
    cq.expect_empty();

    ASSERT_EQ(0, qp.to_state(IBV_QPS_ERR));
    cq.expect(2, IBV_WC_WR_FLUSH_ERR, 2);
    EXPECT_EQ(0, qp.post(send));
    cq.expect(1, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(0, qp.post_recv(4, {buffer.sge(0, 8)}));
    cq.expect(4, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(test_qp, reset_forgets_what_was_posted)
{
    Buffer buffer(device, 4096);
    Pair pair(device);

    ASSERT_EQ(0, pair.b.post_recv(1, {buffer.sge(0, 64)}));
    ASSERT_EQ(0, pair.b.to_state(IBV_QPS_RESET));
    pair.cq_b.expect_empty();
    EXPECT_EQ(IBV_QPS_RESET, pair.b.state());
    ASSERT_EQ(0, pair.a.to_state(IBV_QPS_RESET));

    /* And both can be connected anew. */
    ASSERT_EQ(0, pair.a.to_init());
    ASSERT_EQ(0, pair.b.to_init());
    ASSERT_EQ(0, pair.a.to_rtr(pair.b.address()));
    ASSERT_EQ(0, pair.b.to_rtr(pair.a.address()));
    ASSERT_EQ(0, pair.a.to_rts());
    ASSERT_EQ(0, pair.b.post_recv(2, {buffer.sge(0, 64)}));
    Wr send(3, IBV_WR_SEND, {buffer.sge(64, 8)});
    ASSERT_EQ(0, pair.a.post(send));
    pair.cq_a.expect(3);
    pair.cq_b.expect(2);
}

/* --- events --------------------------------------------------------------- */

/* An event that was not delivered is discarded with its object. */
TEST_F(test_qp, destroy_discards_its_events)
{
    Srq srq(device, 4);
    {
        QpOptions options;
        options.srq     = srq;
        options.recv_wr = 0;
        Qp qp(device, cq, cq, options);
        ASSERT_EQ(0, qp.to_init());
        ASSERT_EQ(0, qp.to_state(IBV_QPS_ERR));
        EXPECT_TRUE(has_async(device, WAIT_MS));
    }
    EXPECT_FALSE(has_async(device));
}
