/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "internals.h"
#include "uct_test.h"

#include <cstring>

/*
 * An endpoint whose stores repeatedly stand alone posts the receive for the
 * next reply in advance: a spare. The next request uses the spare. If its reply
 * would not fit, another request consumes the spare first.
 */

namespace {

constexpr size_t size = 65536;

/* After this many stores an endpoint has a spare */
constexpr int enough = 20;

} // namespace

class test_spare : public uct_buffer_test {
protected:
    /* Copy mode, so that data comes in replies. The timeout is long, so that no
     * peer is probed during a test. */
    test_spare() : uct_buffer_test(size)
    {
        m_config = {{"MONITOR", "copy"}, {"TIMEOUT", "100s"}};
    }

    void SetUp() override
    {
        uct_buffer_test::SetUp();
        put_alone(m_ab, 1);
        m_remote->fill(1);
        m_local->fill(2);
    }

    void put(uct_ep_h ep, uint64_t value, size_t offset = 0)
    {
        ASSERT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_put_short(ep, &value, sizeof(value),
                                    m_remote->address(offset), m_rkey);
        }));
    }

    void put_alone(uct_ep_h ep, int count = enough)
    {
        for (int i = 0; i < count; ++i) {
            ASSERT_NO_FATAL_FAILURE(put(ep, ++m_value));
            m_a->flush(ep);
            ASSERT_EQ(m_value, *m_remote->ptr<uint64_t>());
        }
    }

    void get(uct_ep_h ep, size_t length, size_t offset = 0)
    {
        std::vector<char> result(length);
        completion comp;

        ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
            return uct_ep_get_bcopy(ep, unpack_to, result.data(), length,
                                    m_remote->address(offset), m_rkey, &comp);
        }));
        m_a->wait([&]() { return comp.done; });
        ASSERT_EQ(UCS_OK, comp.status);
        ASSERT_EQ(0, memcmp(result.data(), m_remote->ptr(offset), length));
    }

    unsigned count() const { return spares_count(m_a->iface()); }

    bool rests()
    {
        m_a->wait([&]() { return spares_rest(m_a->iface()); });
        return spares_rest(m_a->iface());
    }

    /* Number of requests that an operation sends */
    template<typename F> uint64_t requests(F operation)
    {
        uint64_t before = m_a->counter("svc_requests");
        operation();
        return m_a->counter("svc_requests") - before;
    }

    uint64_t m_value = 0;
};

TEST_F(test_spare, is_consumed_before_a_larger_request)
{
    for (size_t length : {49, 4096}) {
        put_alone(m_ab);
        EXPECT_EQ(2u, requests([&]() { get(m_ab, length); }));
        EXPECT_EQ(0u, count());
        EXPECT_EQ(1u, requests([&]() { get(m_ab, length); }));
    }

    /* If both kinds alternate, gets do not need an additional request */
    uint64_t turns = 10 * enough;
    EXPECT_EQ(2 * turns, requests([&]() {
        for (uint64_t i = 0; i < turns; ++i) {
            put_alone(m_ab, 1);
            get(m_ab, 100);
        }
    }));
    EXPECT_TRUE(rests());
}

TEST_F(test_spare, is_canceled)
{
    put_alone(m_ab);
    EXPECT_EQ(1u, count());
    m_a->complete([&](uct_completion_t *comp) {
        return uct_ep_flush(m_ab, UCT_FLUSH_FLAG_CANCEL, comp);
    });
    EXPECT_EQ(0u, count());
    EXPECT_TRUE(rests());
}
