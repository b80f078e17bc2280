/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "internals.h"
#include "uct_test.h"

/* An interface that is not used costs the others of its worker nothing */
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
