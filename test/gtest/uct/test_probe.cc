/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "serve.h"

#include <array>
#include <set>

/*
 * Rounds of probes, with more requesters than may be asked at the same time.
 * Probes of service connections (true) are posted by the service, those of the
 * others (false) by wire-up.
 */
class test_probe : public ::testing::TestWithParam<bool> {
protected:
    static constexpr unsigned max_probes = 16; /* UCT_NPRDMA_CM_MAX_PROBES */
    static constexpr unsigned count      = 3 * max_probes;

    /* Several endpoints of one peer are as good as several peers */
    void SetUp() override
    {
        uct_rkey_t rkey;

        m_target.reset(new entity(config_t{{"CM_PROBE_INTERVAL", "10ms"}}));
        m_memory.reset(new buffer(m_target->md(), 4096));
        hook_start(m_target->md(), m_target->iface());
        m_live.reset(new entity);
        m_live->add_progress(m_target.get());
        rkey = m_live->unpack(m_memory->packed_key());
        for (unsigned i = 0; i < count; ++i) {
            m_live->wire_up(m_live->connect(m_target->address()), "12345678",
                            m_memory->address(), rkey);
        }
        hook_watch_probes(GetParam(), false);
    }

    void TearDown() override { hook_let_go(); }

    /* Queue pairs that have been asked, in their order */
    static std::vector<uint32_t> asked()
    {
        static std::array<uint32_t, HOOK_MAX_PROBES> qpns;

        return {qpns.begin(), qpns.begin() + hook_probes(qpns.data())};
    }

    static std::set<uint32_t> different()
    {
        std::vector<uint32_t> qpns = asked();
        return {qpns.begin(), qpns.end()};
    }

    /* Wire-up begins another round, so that the service is to probe all again.
     * That of wire-up's own probes does not go on while these wait. */
    void await_round()
    {
        uint64_t end = m_target->counter("cm_probes") + 4 * count;

        if (GetParam()) {
            m_live->wait([&]() {
                return m_target->counter("cm_probes") >= end;
            });
        }
    }

    uint64_t responders() { return m_target->counter("cm_responders"); }

    std::unique_ptr<entity> m_target;
    std::unique_ptr<buffer> m_memory;
    std::unique_ptr<entity> m_live;
};

/* However long the answers take: a bounded number is outstanding, and all
 * others are asked before one is asked again */
TEST_P(test_probe, rounds_go_on_where_they_ended)
{
    m_live->wait([&]() { return different().size() == count; });
    hook_watch_probes(GetParam(), true);
    m_live->wait([&]() { return hook_numbers().held == max_probes; });
    for (unsigned i = max_probes; i < 2 * count; ++i) {
        await_round();
        ASSERT_EQ(max_probes, hook_numbers().held);
        hook_let_one_go();
        m_live->wait([&]() { return asked().size() > i; });
    }

    std::vector<uint32_t> order = asked();
    ASSERT_EQ(2 * count, order.size());
    for (unsigned i = max_probes; i + count <= order.size(); ++i) {
        EXPECT_EQ(count, std::set<uint32_t>(&order[i],
                                            &order[i] + count).size()) << i;
    }
}

PEER_FUNCTION(probed_requester)
{
    entity e;
    std::vector<char> address = parent.get_bytes();
    std::vector<char> key     = parent.get_bytes();
    uint64_t memory           = parent.get<uint64_t>();

    e.wire_up(e.connect(address), "12345678", memory, e.unpack(key));
    parent.put(0);
    parent.get<int>();
    return 0;
}

/* Requesters that are gone are found among more live ones than may be asked at
 * the same time, and these stay */
TEST_P(test_probe, dead_requester_is_found_among_live_ones)
{
    for (int i = 0; i < 3; ++i) {
        peer dead("probed_requester");
        publish(dead, *m_target, *m_memory);
        m_live->wait([&]() { return dead.ready(); });
        dead.get<int>();
        EXPECT_EQ(2 * (count + 1), responders());
        dead.kill();
        m_live->wait([&]() { return responders() <= 2 * count; });
    }
    hook_watch_probes(GetParam(), false); /* Forgets the dead ones */
    m_live->wait([&]() { return different().size() == count; });
    EXPECT_EQ(2 * count, responders());
}

INSTANTIATE_TEST_SUITE_P(all, test_probe, ::testing::Bool(),
                         [](const auto &info) {
                             return info.param ? "service" : "wireup";
                         });
