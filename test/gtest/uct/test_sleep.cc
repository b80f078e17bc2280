/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "serve.h"
#include "uct_test.h"

#include <cstring>

#include <poll.h>

/*
 * A process that has nothing to do sleeps, also while its operations lack
 * resources that only a reply returns. The target is stopped.
 */

namespace {

constexpr size_t size = 2 << 20;

PEER_FUNCTION(stoppable)
{
    entity e(config_t{{"MONITOR", "copy"}});
    buffer memory(e.md(), size);

    memory.fill(1);
    return serve(parent, e, memory);
}

} // namespace

class test_sleep : public ::testing::Test {
protected:
    void SetUp() override
    {
        /* A copy takes many requests, few of which are outstanding at once.
         * Only their replies wake the process, because probes come late. */
        m_peer.reset(new peer("stoppable"));
        m_entity.reset(new entity({{"MONITOR", "copy"}, {"TIMEOUT", "100s"}}));
        m_local.reset(new buffer(m_entity->md(), size));
        m_local->fill(2);
        m_ep   = m_entity->connect(m_peer->get_bytes());
        m_rkey = m_entity->unpack(m_peer->get_bytes());
        m_base = m_peer->get<uint64_t>();
        ASSERT_EQ(UCS_OK, uct_iface_event_fd_get(m_entity->iface(), &m_fd));
        /* Wire-up has timers of its own */
        ASSERT_NO_FATAL_FAILURE(m_entity->wire_up(m_ep, m_local->ptr(), m_base,
                                                  m_rkey));
    }

    void TearDown() override
    {
        m_peer.reset();
        m_local.reset();
        m_entity.reset();
    }

public:
    ucs_status_t get(size_t offset, size_t length, uct_completion_t *comp)
    {
        uct_iov_t iov = {m_local->ptr(offset), length, m_local->memh(), 0, 1};
        return uct_ep_get_zcopy(m_ep, &iov, 1, m_base + offset, m_rkey, comp);
    }

    ucs_status_t put(size_t offset, size_t length, uct_completion_t *comp)
    {
        uct_iov_t iov = {m_local->ptr(offset), length, m_local->memh(), 0, 1};
        return uct_ep_put_zcopy(m_ep, &iov, 1, m_base + offset, m_rkey, comp);
    }

protected:
    bool arm()
    {
        ucs_status_t status = uct_iface_event_arm(m_entity->iface(),
                                                  UCT_EVENT_SEND_COMP |
                                                  UCT_EVENT_RECV);
        EXPECT_TRUE((status == UCS_OK) || (status == UCS_ERR_BUSY));
        return status == UCS_OK;
    }

    /* Whether the interface comes to rest when progress has nothing to do. Late
     * packets of wire-up may wake it once or twice. */
    bool rests()
    {
        for (int i = 0; i < 100; ++i) {
            while (m_entity->progress() > 0) {
            }
            struct pollfd pfd = {m_fd, POLLIN, 0};
            if (arm() && (poll(&pfd, 1, 100) == 0)) {
                return true;
            }
        }
        return false;
    }

    void sleep_until(const completion &comp)
    {
        while (!comp.done && !HasFatalFailure()) {
            if ((m_entity->progress() == 0) && arm()) {
                struct pollfd pfd = {m_fd, POLLIN, 0};
                ASSERT_EQ(1, poll(&pfd, 1, 60000)) << "no event woke it";
            }
        }
        EXPECT_EQ(UCS_OK, comp.status);
    }

    /* All of the target's memory, as it is now */
    void expect_data(uint64_t seed)
    {
        buffer expected(m_entity->md(), size);

        expected.fill(seed);
        memset(m_local->ptr(), 0, size);
        ASSERT_EQ(UCS_INPROGRESS, m_entity->retry([&]() {
            return get(0, size, &m_last);
        }));
        sleep_until(m_last);
        EXPECT_EQ(0, memcmp(expected.ptr(), m_local->ptr(), size));
    }

    /* Operations that may still be outstanding when a test fails */
    completion              m_first, m_second, m_last;
    std::unique_ptr<peer>   m_peer;
    std::unique_ptr<entity> m_entity;
    std::unique_ptr<buffer> m_local;
    uct_ep_h                m_ep   = nullptr;
    uct_rkey_t              m_rkey = 0;
    uint64_t                m_base = 0;
    int                     m_fd   = -1;
};

TEST_F(test_sleep, woken_for_the_reply_to_a_get)
{
    ASSERT_EQ(UCS_INPROGRESS, put(0, size, &m_first));
    sleep_until(m_first);
    m_peer->stop();
    ASSERT_EQ(UCS_INPROGRESS, get(0, size, &m_second));
    EXPECT_TRUE(rests());
    EXPECT_FALSE(m_second.done);
    m_peer->go_on();
    sleep_until(m_second);
    expect_data(2);
}

/* A pending request for which the whole interface has no resource left */
TEST_F(test_sleep, woken_for_a_pending_request)
{
    struct pending : uct_pending_req_t {
        test_sleep *self;
        completion *comp;
        bool       started;
    };
    static pending req;
    ucs_status_t status;

    m_peer->stop();
    for (m_first.count = 1; m_first.count < 2000; ++m_first.count) {
        status = put(0, 32768, &m_first);
        if (status != UCS_INPROGRESS) {
            break;
        }
    }
    ASSERT_EQ(UCS_ERR_NO_RESOURCE, status);
    --m_first.count;
    req.self    = this;
    req.comp    = &m_second;
    req.started = false;
    req.func    = [](uct_pending_req_t *self) {
        auto *mine          = static_cast<pending*>(self);
        ucs_status_t status = mine->self->put(0, size, mine->comp);
        mine->started       = (status == UCS_INPROGRESS);
        return mine->started ? UCS_OK : status;
    };
    ASSERT_EQ(UCS_OK, uct_ep_pending_add(m_ep, &req, 0));
    EXPECT_TRUE(rests());
    EXPECT_FALSE(req.started);
    m_peer->go_on();
    sleep_until(m_second);
    sleep_until(m_first);
    expect_data(2);
}
