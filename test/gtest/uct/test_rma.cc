/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <cstring>

/* Put and get beside test_op_plan's and test_op_order_random's, which have
 * every length */
class test_rma : public uct_buffer_test {
protected:
    static constexpr size_t large = 300000;

    test_rma() : uct_buffer_test(large + 64) {}

    void SetUp() override
    {
        uct_buffer_test::SetUp();
        m_local->fill(1);
        m_remote->fill(2);
    }
};

TEST_F(test_rma, iov)
{
    size_t lengths[]   = {10000, 0, 5, 20000};
    size_t total       = 30005;
    size_t max_iov     = m_a->attr().cap.put.max_iov;
    uct_iov_t iov[4]   = {};
    char *gathered     = m_local->ptr(100000);
    size_t offset      = 0;

    ASSERT_GE(max_iov, 4u);
    for (int i = 0; i < 4; ++i) {
        iov[i].buffer = m_local->ptr(i * 25000);
        iov[i].length = lengths[i];
        iov[i].memh   = m_local->memh();
        iov[i].count  = 1;
        memcpy(gathered + offset, iov[i].buffer, lengths[i]);
        offset += lengths[i];
    }

    EXPECT_EQ(UCS_OK, m_a->complete([&](uct_completion_t *comp) {
        return uct_ep_put_zcopy(m_ab, iov, 4, m_remote->address(), m_rkey,
                                comp);
    }));
    EXPECT_EQ(0, memcmp(m_remote->ptr(), gathered, total));

    m_remote->fill(77);
    EXPECT_EQ(UCS_OK, m_a->complete([&](uct_completion_t *comp) {
        return uct_ep_get_zcopy(m_ab, iov, 4, m_remote->address(), m_rkey,
                                comp);
    }));
    offset = 0;
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(0, memcmp(iov[i].buffer, m_remote->ptr(offset), lengths[i]));
        offset += lengths[i];
    }

    EXPECT_NE(UCS_INPROGRESS,
              uct_ep_put_zcopy(m_ab, iov, max_iov + 1, m_remote->address(),
                               m_rkey, nullptr));
}

/* The first put after a pause requests the reply that a flush needs. The puts
 * that follow it do not. */
TEST_F(test_rma, flush_of_one_put_sends_nothing)
{
    for (uint64_t puts : {1, 20}) {
        m_a->flush(m_ab);
        uint64_t requests = m_a->counter("svc_requests");
        uint64_t replies  = m_a->counter("svc_replies");
        for (uint64_t i = 0; i < puts; ++i) {
            ASSERT_EQ(UCS_OK, m_a->retry([&]() {
                return uct_ep_put_short(m_ab, &i, sizeof(i),
                                        m_remote->address(), m_rkey);
            }));
        }
        m_a->flush(m_ab);
        uint64_t extra = (puts > 1);
        EXPECT_EQ(requests + puts + extra, m_a->counter("svc_requests"));
        EXPECT_EQ(replies + 1 + extra, m_a->counter("svc_replies"));
    }
}
