/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <atomic>
#include <cstring>

/* Fence and flush */
class test_order : public uct_buffer_test {
protected:
    test_order() : uct_buffer_test(65536) {}

    void SetUp() override
    {
        uct_buffer_test::SetUp();
        ASSERT_EQ(UCS_OK, uct_iface_set_am_handler(m_b->iface(), 1, on_am, this,
                                                   0));
    }

    static ucs_status_t
    on_am(void *arg, void *data, size_t length, unsigned flags)
    {
        (void)data, (void)length, (void)flags;
        ++static_cast<test_order*>(arg)->m_num_ams;
        return UCS_OK;
    }

    unsigned m_num_ams = 0;
};

TEST_F(test_order, fence_is_free_when_idle)
{
    EXPECT_EQ(UCS_OK, uct_ep_fence(m_ab, 0));
    EXPECT_EQ(UCS_OK, m_a->retry([&]() {
        return uct_ep_am_short(m_ab, 1, 0, nullptr, 0);
    }));
    m_a->wait([&]() { return m_num_ams == 1; });
}

TEST_F(test_order, put_passes_a_fence)
{
    /* The target executes requests in order, so they need not wait for a
     * fence */
    uint64_t value = 1;

    ASSERT_EQ(UCS_OK, m_a->retry([&]() {
        return uct_ep_put_short(m_ab, &value, sizeof(value),
                                m_remote->address(), m_rkey);
    }));
    m_a->flush(m_ab); /* Connected, with room for the following puts */
    for (value = 2; value < 20; ++value) {
        EXPECT_EQ(UCS_OK, uct_ep_fence(m_ab, 0));
        EXPECT_EQ(UCS_OK, uct_ep_put_short(m_ab, &value, sizeof(value),
                                           m_remote->address(), m_rkey));
    }
    m_a->flush(m_ab);
    EXPECT_EQ(19u, *m_remote->ptr<uint64_t>());
}

TEST_F(test_order, flush_completes_puts)
{
    for (uint64_t i = 1; i < 1000; ++i) {
        ASSERT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_put_short(m_ab, &i, sizeof(i), m_remote->address(),
                                    m_rkey);
        }));
        m_a->flush(m_ab);
        ASSERT_EQ(i, *m_remote->ptr<std::atomic<uint64_t>>());
    }
}

TEST_F(test_order, iface_flush)
{
    uint64_t value = 77;

    EXPECT_EQ(UCS_OK, m_a->retry([&]() {
        return uct_ep_put_short(m_ab, &value, sizeof(value),
                                m_remote->address(), m_rkey);
    }));
    ucs_status_t status;
    m_a->wait([&]() {
        status = uct_iface_flush(m_a->iface(), 0, nullptr);
        return (status != UCS_INPROGRESS) && (status != UCS_ERR_NO_RESOURCE);
    });
    EXPECT_EQ(UCS_OK, status);
    EXPECT_EQ(value, *m_remote->ptr<uint64_t>());
}

TEST_F(test_order, several_flushes)
{
    static const int count = 10;
    completion comps[count];
    int waiting = 0;

    for (uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_put_short(m_ab, &i, sizeof(i), m_remote->address(),
                                    m_rkey);
        }));
        ucs_status_t status = m_a->retry([&]() {
            return uct_ep_flush(m_ab, 0, &comps[i]);
        });
        if (status == UCS_OK) {
            comps[i].done = true;
        } else {
            ASSERT_EQ(UCS_INPROGRESS, status);
            ++waiting;
        }
    }
    m_a->wait([&]() { return comps[count - 1].done; });
    for (auto &comp : comps) {
        EXPECT_TRUE(comp.done);
        EXPECT_EQ(UCS_OK, comp.status);
    }
    EXPECT_GT(waiting, 0);
}
