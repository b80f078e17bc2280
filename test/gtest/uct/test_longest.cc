/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "internals.h"
#include "serve.h"
#include "uct_test.h"

#include <algorithm>

/*
 * The line about an operation that waits. With a stopped peer it has the right
 * reason.
 */

namespace {

constexpr size_t length = 300000;

/* Arguments: zero copy, and whether the memory has been touched */
PEER_FUNCTION(slow_target)
{
    entity e(config_t{{"MONITOR", parent.get<int>() ? "auto" : "copy"}});
    buffer memory(e.md(), 2 * length);

    if (parent.get<int>()) {
        memory.fill(1);
    }
    return serve(parent, e, memory);
}

} // namespace

class test_longest : public ::testing::Test {
protected:
    void start(bool zcopy, bool touched)
    {
        m_peer.reset(new peer("slow_target"));
        m_peer->put((int)zcopy);
        m_peer->put((int)touched);
        m_entity.reset(new entity(
                config_t{{"MONITOR", zcopy ? "auto" : "copy"}}));
        m_local.reset(new buffer(m_entity->md(), length));
        m_local->fill(2);
        m_address = m_peer->get_bytes();
        m_rkey    = m_entity->unpack(m_peer->get_bytes());
        m_base    = m_peer->get<uint64_t>();
    }

    void connect()
    {
        m_ep = m_entity->connect(m_address);
        ASSERT_NO_FATAL_FAILURE(m_entity->wire_up(m_ep, m_local->ptr(), m_base,
                                                  m_rkey));
    }

    /* Large operations have a connection of their own. Only the first pages are
     * touched by this. */
    void connect_bulk()
    {
        EXPECT_EQ(UCS_OK, m_entity->put(m_ep, m_local->ptr(), 16384, m_base,
                                        m_rkey));
    }

    ucs_status_t put_short()
    {
        return uct_ep_put_short(m_ep, m_local->ptr(), 8, m_base, m_rkey);
    }

    ucs_status_t get_zcopy()
    {
        uct_iov_t iov = {m_local->ptr(), length, m_local->memh(), 0, 1};
        return uct_ep_get_zcopy(m_ep, &iov, 1, m_base + length / 2, m_rkey,
                                &m_comp);
    }

    ucs_status_t flush() { return uct_ep_flush(m_ep, 0, &m_comp); }

    /* As if each wait had begun a minute ago: three lines in a row say this
     * reason. Earlier operations may have been slow, but are over. */
    void expect(ucs_log_level_t level, const std::string &reason)
    {
        unsigned in_a_row = 0;

        m_entity->wait([&]() {
            for (const auto &next : m_log->all()) {
                if (next.text.find("an operation has waited ") ==
                    std::string::npos) {
                    continue;
                }
                if (next.text.find(", now for " + reason) !=
                    std::string::npos) {
                    EXPECT_EQ(level, next.level);
                    EXPECT_NE(std::string::npos,
                              next.text.find("has waited 6"));
                    ++in_a_row;
                } else {
                    in_a_row = 0;
                }
            }
            m_log->clear();
            waits_since(m_ep, 60);
            return in_a_row >= 3;
        });
        EXPECT_GE(m_entity->counter("longest_us"), 60000000u);
    }

    void go_on()
    {
        m_peer->go_on();
        m_entity->wait([&]() { return m_comp.done; });
        EXPECT_EQ(UCS_OK, m_comp.status);
    }

    void SetUp() override
    {
        m_log.reset(new complaints(UCS_LOG_LEVEL_DIAG));
    }

    void TearDown() override
    {
        m_log.reset();
        m_local.reset();
        m_entity.reset();
        m_peer.reset();
    }

    std::unique_ptr<complaints> m_log;
    std::unique_ptr<peer>       m_peer;
    std::unique_ptr<entity>     m_entity;
    std::unique_ptr<buffer>     m_local;
    std::vector<char>           m_address;
    completion                  m_comp;
    uct_ep_h                    m_ep   = nullptr;
    uct_rkey_t                  m_rkey = 0;
    uint64_t                    m_base = 0;
};

/* What an operation waits for while its peer is stopped */
struct longest_case {
    const char *name;
    bool       zcopy, touched, is_put;
    const char *reason;
};

class test_longest_reason : public test_longest,
                            public ::testing::WithParamInterface<longest_case> {
};

TEST_P(test_longest_reason, is_said)
{
    start(GetParam().zcopy, GetParam().touched);
    connect();
    connect_bulk();
    m_peer->stop();
    if (GetParam().is_put) {
        ASSERT_EQ(UCS_OK, put_short());
        ASSERT_EQ(UCS_INPROGRESS, flush());
    } else {
        ASSERT_EQ(UCS_INPROGRESS, get_zcopy());
    }
    expect(UCS_LOG_LEVEL_WARN, GetParam().reason);
    go_on();
}

INSTANTIATE_TEST_SUITE_P(
        all, test_longest_reason,
        ::testing::Values(
                longest_case{"reply", true, true, true,
                             "a reply of the peer's service"},
                longest_case{"populate", true, false, false,
                             "the peer's service to populate pages"},
                longest_case{"copy", false, true, false,
                             "the peer's service to copy data"}),
        [](const auto &info) { return std::string(info.param.name); });

TEST_F(test_longest, connection)
{
    start(true, true);
    m_peer->stop();
    m_ep = m_entity->connect(m_address);
    expect(UCS_LOG_LEVEL_WARN, "the connection to be set up");
    m_peer->go_on();
    m_entity->wire_up(m_ep, m_local->ptr(), m_base, m_rkey);
}
