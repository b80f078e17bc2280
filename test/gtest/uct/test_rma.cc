/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <cstring>
#include <vector>

/* Put and get of every length that has its own way, data compared byte by byte.
 * Those with zero copy are test_op_plan's. */
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

    static void unpack(void *arg, const void *data, size_t length)
    {
        memcpy(arg, data, length);
    }

    void expect_put(const std::vector<char> &before, size_t offset,
                    size_t length)
    {
        EXPECT_EQ(0, memcmp(m_remote->ptr(offset), m_local->ptr(), length));
        EXPECT_EQ(0, memcmp(m_remote->ptr(), before.data(), offset));
        EXPECT_EQ(0, memcmp(m_remote->ptr(offset + length),
                            before.data() + offset + length,
                            m_remote->length() - offset - length));
    }

    std::vector<char> snapshot() const
    {
        return std::vector<char>(m_remote->ptr(),
                                 m_remote->ptr(m_remote->length()));
    }
};

TEST_F(test_rma, put_short)
{
    size_t max_short = m_a->attr().cap.put.max_short;

    ASSERT_GE(max_short, 64u);
    for (size_t length : {size_t(0), size_t(1), size_t(2), size_t(3), size_t(4),
                          size_t(7), size_t(8), size_t(9), size_t(64),
                          max_short}) {
        for (size_t offset : {0, 1, 4, 4090}) {
            auto before = snapshot();
            m_local->fill(length * 10 + offset);
            EXPECT_EQ(UCS_OK, m_a->retry([&]() {
                return uct_ep_put_short(m_ab, m_local->ptr(), length,
                                        m_remote->address(offset), m_rkey);
            }));
            m_a->flush(m_ab);
            expect_put(before, offset, length);
        }
    }
}

TEST_F(test_rma, get_bcopy)
{
    size_t max_bcopy = m_a->attr().cap.get.max_bcopy;

    ASSERT_GE(max_bcopy, 8192u);
    for (size_t length : {size_t(0), size_t(1), size_t(2), size_t(4), size_t(8),
                          size_t(47), size_t(48), size_t(49), size_t(4096),
                          max_bcopy}) {
        memset(m_local->ptr(), 0, m_local->length());
        m_remote->fill(length);
        EXPECT_EQ(UCS_OK, m_a->complete([&](uct_completion_t *comp) {
            return uct_ep_get_bcopy(m_ab, unpack, m_local->ptr(1), length,
                                    m_remote->address(8), m_rkey, comp);
        }));
        EXPECT_EQ(0, *m_local->ptr());
        EXPECT_EQ(0, memcmp(m_local->ptr(1), m_remote->ptr(8), length));
        EXPECT_EQ(0, *m_local->ptr(1 + length));
    }
}

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
