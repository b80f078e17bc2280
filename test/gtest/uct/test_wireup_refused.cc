/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "internals.h"
#include "svc_requester.h"

#include <climits>
#include <random>

#include <unistd.h>

/*
 * Messages that are posted before the connection exists are sent when the peer
 * answers. The device may refuse them then, in a thread that the user does not
 * control. The user gets an error as for any other failure, and until then
 * nothing that is sent later may reach the peer.
 */
class test_wireup_refused : public ::testing::Test {
protected:
    void SetUp() override
    {
        m_a.reset(new entity);
        m_b.reset(new entity);
        m_a->add_progress(m_b.get());
        uct_iface_set_am_handler(m_b->iface(), 1, on_am, this, 0);
        hook_start(m_a->md(), m_a->iface());
    }

    static ucs_status_t on_am(void *arg, void *data, size_t, unsigned)
    {
        auto self = static_cast<test_wireup_refused*>(arg);
        self->m_received.push_back(*static_cast<uint64_t*>(data));
        return UCS_OK;
    }

    /* Messages are numbered, whether or not they are accepted */
    ucs_status_t send()
    {
        return uct_ep_am_short(m_ep, 1, m_num_sent++, nullptr, 0);
    }

    void progress_for_long()
    {
        for (int i = 0; i < 1000; ++i) {
            m_a->progress();
            m_b->progress();
        }
    }

    /* The messages before the refused one arrived in order, without a gap */
    void expect_received(unsigned at_most)
    {
        EXPECT_GE(at_most, m_received.size());
        for (size_t i = 0; i < m_received.size(); ++i) {
            EXPECT_EQ(i, m_received[i]);
        }
        EXPECT_EQ(0u, hook_numbers().overtakers);
    }

    void expect_settled(unsigned num_errors)
    {
        m_a->wait([&]() { return iface_is_settled(m_a->iface()); });
        m_a->wait([&]() { return m_b->counter("cm_responders") == 0; });
        progress_for_long();
        EXPECT_EQ(num_errors, m_a->num_errors);
    }

    /* The user gets one error, and all resources come back */
    void expect_failed(unsigned num_passed)
    {
        m_a->wait([&]() { return m_a->failed.count(m_ep) > 0; });
        EXPECT_EQ(UCS_ERR_CONNECTION_RESET, m_a->failed[m_ep]);
        EXPECT_EQ(UCS_ERR_CONNECTION_RESET, send());
        progress_for_long();
        m_a->disconnect(m_ep);
        expect_settled(1);
        expect_received(num_passed);
    }

    uct_ep_h                m_ep       = nullptr; /* Of a to b */
    uint64_t                m_num_sent = 0;
    std::vector<uint64_t>   m_received;           /* By b */
    std::unique_ptr<entity> m_b, m_a;
};

/* The thread of wire-up waits while the kernel asks for an address */
TEST_F(test_wireup_refused, unknown_address_is_not_asked_for_each_packet)
{
    hook_refuse_ahs(50000);
    m_ep = m_a->connect(m_b->address());
    m_a->wait([&]() { return m_a->counter("cm_retransmits") > 3; });
    hook_refuse_ahs(0);
    EXPECT_GT(3u, hook_numbers().bad_ahs); /* In 0.3 s */
    EXPECT_EQ(UCS_OK, m_a->retry([&]() { return send(); }));
    m_a->flush(m_ep);
    m_a->disconnect(m_ep);
}

/* At any moment of wire-up, in which two threads take part */
TEST_F(test_wireup_refused, at_random)
{
    const unsigned num_rounds = is_fast() ? 100 : 10;
    unsigned seed             = std::random_device()();
    std::mt19937 random(seed);

    SCOPED_TRACE("seed " + std::to_string(seed));
    for (unsigned round = 0; round < num_rounds; ++round) {
        completion flush;
        unsigned after      = random() % 5;
        unsigned pause      = random() % 300;
        ucs_status_t status = UCS_ERR_NO_RESOURCE;

        m_num_sent = 0;
        m_received.clear();
        m_a->failed.clear();
        m_a->num_errors = 0;
        hook_refuse(m_a->md(), after, 1);
        m_ep       = m_a->connect(m_b->address());
        double end = now() + pause * 1e-6;
        while (m_a->failed.empty()) {
            uint64_t number = m_num_sent;
            if (send() == UCS_ERR_NO_RESOURCE) {
                m_num_sent = number;  /* Not posted */
            } else if (status == UCS_ERR_NO_RESOURCE) {
                status = uct_ep_flush(m_ep, 0, &flush);
            }
            if (now() > end) {
                m_a->progress();
                m_b->progress();
            }
        }
        if (status == UCS_INPROGRESS) {
            m_a->wait([&]() { return flush.done; });
        }
        expect_failed(after);
        EXPECT_EQ(status == UCS_INPROGRESS, flush.done);
        ASSERT_FALSE(HasFailure()) << "round " << round;
    }
}

/* The FIN is sent later, and the device refuses it then. Nothing else would
 * report that the message before it is complete. */
TEST_F(test_wireup_refused, the_final_message)
{
    static const unsigned count = 700;
    std::vector<uct_ep_h> others;

    m_a.reset(new entity(config_t{{"TX_CQ_LEN", "16"}}));
    m_a->add_progress(m_b.get());
    hook_start(m_a->md(), m_a->iface());
    m_ep = m_a->connect(m_b->address());
    for (unsigned i = 0; i < count; ++i) {
        others.push_back(m_a->connect(m_b->address()));
    }
    m_a->wait([&]() { return m_a->counter("cm_connected") == count + 1; });
    ASSERT_EQ(UCS_OK, send());
    m_b->wait([&]() { return !m_received.empty(); });
    for (auto ep : others) {
        m_a->disconnect(ep);
    }
    hook_refuse(m_a->md(), 0, UINT_MAX);
    m_a->disconnect(m_ep);
    EXPECT_EQ(0u, hook_numbers().refused) << "there was room for it";
    m_a->wait([&]() { return iface_is_settled(m_a->iface()); });
    EXPECT_GE(hook_numbers().refused, 1u);
    EXPECT_EQ(0u, m_a->num_errors);
}

/* The error handler destroys all endpoints, among them some that would have
 * been notified next */
TEST_F(test_wireup_refused, handler_destroys_others)
{
    std::vector<uct_ep_h> eps;

    for (int i = 0; i < 3; ++i) {
        eps.push_back(m_a->connect(m_b->address()));
    }
    m_a->wait([&]() { return m_a->counter("cm_connected") == eps.size(); });
    hook_refuse(m_a->md(), 0, eps.size());
    for (auto ep : eps) {
        m_ep = ep;
        ASSERT_EQ(UCS_ERR_IO_ERROR, send());
    }
    m_a->on_failure = [&]() {
        ASSERT_FALSE(eps.empty());
        for (auto ep : eps) {
            m_a->disconnect(ep);
        }
        eps.clear();
    };
    m_a->wait([&]() { return m_a->num_errors > 0; });
    expect_settled(1);
    EXPECT_TRUE(m_received.empty());
}

/* By a peer that has not received the request: only the one that has knows the
 * queue pair which it is from */
TEST(test_wireup_refused_by, another_peer)
{
    entity asks, target;
    svc_requester other(asks);
    uct_nprdma_cm_packet_t packet = {};
    uct_nprdma_iface_addr_t address;
    uint64_t stale    = asks.counter("cm_stale");
    uint64_t rejected = asks.counter("cm_rejected");

    async_hold(target.iface()); /* Before it can answer */
    uct_ep_h ep = asks.connect(target.address());
    auto send   = [&]() {
        return uct_ep_am_short(ep, 1, 0, nullptr, 0);
    };
    EXPECT_EQ(UCS_OK, send()); /* When it is connected */
    uct_iface_get_address(asks.iface(), (uct_iface_addr_t*)&address);
    packet.magic     = UCT_NPRDMA_CM_MAGIC;
    packet.version   = UCT_NPRDMA_WIRE_VERSION;
    packet.type      = UCT_NPRDMA_CM_REJ;
    packet.dst_nonce = address.nonce;
    packet.ud_qpn    = 0xffff;
    packet.qp.qpn    = 0xffff;
    /* Numbers of connections are easy to guess */
    for (packet.conn_id = 1u << 20; packet.conn_id < (1u << 20) + 16;
         ++packet.conn_id) {
        other.datagram({(const char*)&packet, (const char*)(&packet + 1)});
    }
    asks.wait([&]() {
        return (asks.counter("cm_stale") > stale) ||
               (asks.counter("cm_rejected") > rejected);
    });
    async_release(target.iface());
    asks.add_progress(&target);
    EXPECT_EQ(UCS_OK, asks.retry(send));
    EXPECT_EQ(rejected, asks.counter("cm_rejected"));
    asks.flush(ep);
    asks.disconnect(ep);
}
