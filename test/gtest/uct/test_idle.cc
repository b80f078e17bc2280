/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "internals.h"
#include "uct_test.h"

extern "C" {
#include "uct/ib/nprdma/base/nprdma_idle.h"
}

/* An interface that is not used costs the others of its worker nothing */
TEST(test_idle, does_not_pause_for_ever)
{
    uct_nprdma_idle_t idle = {};
    unsigned num_pauses    = 0;

    for (unsigned i = 0; i < UCT_NPRDMA_IDLE_LIMIT; ++i) {
        num_pauses += uct_nprdma_idle_poll(&idle);
    }
    EXPECT_EQ(UCT_NPRDMA_IDLE_LIMIT - UCT_NPRDMA_IDLE_FREE, num_pauses);
    for (unsigned i = 0; i < 10000; ++i) {
        ASSERT_FALSE(uct_nprdma_idle_poll(&idle)) << i;
    }

    uct_nprdma_idle_reset(&idle);
    for (unsigned i = 0; i < UCT_NPRDMA_IDLE_FREE; ++i) {
        ASSERT_FALSE(uct_nprdma_idle_poll(&idle)) << i;
    }
    EXPECT_TRUE(uct_nprdma_idle_poll(&idle));
}

class test_idle_iface : public uct_pair_test {
protected:
    void SetUp() override
    {
        uct_pair_test::SetUp();
        ASSERT_EQ(UCS_OK, uct_iface_set_am_handler(m_b->iface(), 1, on_am, this,
                                                   0));
        send();
        m_b->wait([this]() { return m_num_ams == 1; });
    }

    static ucs_status_t
    on_am(void *arg, void *data, size_t length, unsigned flags)
    {
        (void)data, (void)length, (void)flags;
        ++static_cast<test_idle_iface*>(arg)->m_num_ams;
        return UCS_OK;
    }

    void send()
    {
        ASSERT_EQ(UCS_OK, m_a->retry([this]() {
            return uct_ep_am_short(m_ab, 1, 0, nullptr, 0);
        }));
    }

    unsigned m_num_ams = 0;
};

TEST_F(test_idle_iface, counts_calls_that_find_nothing)
{
    /* Wire-up may still have something to do */
    m_b->wait([this]() { return iface_idle(m_b->iface()) > 100; });

    unsigned before = iface_idle(m_b->iface());
    for (unsigned i = 0; i < 1000; ++i) {
        EXPECT_EQ(0u, m_b->progress());
    }
    EXPECT_EQ(before + 1000, iface_idle(m_b->iface()));

    send();
    while (m_num_ams < 2) {
        m_b->progress();
    }
    EXPECT_EQ(0u, iface_idle(m_b->iface()));
}
