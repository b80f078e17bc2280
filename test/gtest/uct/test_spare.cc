/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "spares.h"
#include "serve.h"
#include "uct_test.h"

#include <cstring>

#include <poll.h>

/*
 * An endpoint whose stores repeatedly stand alone posts the receive for the
 * next reply in advance: a spare. The next request uses the spare. If its reply
 * would not fit, another request consumes the spare first. A spare takes no
 * resource from other endpoints, and keeps no process awake.
 */

namespace {

constexpr size_t size = 65536;

/* After this many stores an endpoint has a spare */
constexpr int enough = 20;

void unpack(void *arg, const void *data, size_t length)
{
    memcpy(arg, data, length);
}

PEER_FUNCTION(spare_target)
{
    entity e;
    buffer memory(e.md(), size);

    memory.fill(1);
    return serve(parent, e, memory);
}

} // namespace

class test_spare : public uct_buffer_test {
protected:
    test_spare() : uct_buffer_test(size) {}

    /* Copy mode, so that data comes in replies. The timeout is long, so that no
     * peer is probed during a test. */
    config_t config() override
    {
        return {{"MONITOR", "copy"}, {"TIMEOUT", "100s"}};
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
            return uct_ep_get_bcopy(ep, unpack, result.data(), length,
                                    m_remote->address(offset), m_rkey, &comp);
        }));
        m_a->wait([&]() { return comp.done; });
        ASSERT_EQ(UCS_OK, comp.status);
        ASSERT_EQ(0, memcmp(result.data(), m_remote->ptr(offset), length));
    }

    uint64_t add(uct_ep_h ep, uint64_t value)
    {
        uint64_t result = 0;
        completion comp;

        EXPECT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
            return uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_ADD, value, &result,
                                         m_remote->address(), m_rkey, &comp);
        }));
        m_a->wait([&]() { return comp.done; });
        EXPECT_EQ(UCS_OK, comp.status);
        return result;
    }

    ucs_status_t put_zcopy(uct_ep_h ep, size_t length, completion *comp)
    {
        uct_iov_t iov = {m_local->ptr(), length, m_local->memh(), 0, 1};
        return uct_ep_put_zcopy(ep, &iov, 1, m_remote->address(), m_rkey, comp);
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

TEST_F(test_spare, comes_with_a_single_store)
{
    EXPECT_EQ(1u, requests([&]() { put_alone(m_ab, 1); }));
    EXPECT_EQ(0u, count());
    EXPECT_EQ((uint64_t)enough, requests([&]() { put_alone(m_ab); }));
    EXPECT_EQ(1u, count());
    EXPECT_TRUE(rests());
}

TEST_F(test_spare, does_not_come_with_several_stores)
{
    for (int i = 0; i < 10 * enough; ++i) {
        put(m_ab, i, 8);
    }
    m_a->flush(m_ab);
    for (int i = 0; i < enough; ++i) {
        add(m_ab, 1);
        get(m_ab, 1000);
        put_alone(m_ab, 3);
    }
    EXPECT_EQ(0u, count());
    EXPECT_TRUE(rests());
}

TEST_F(test_spare, serves_requests_that_fit)
{
    put_alone(m_ab);
    EXPECT_EQ(1u, requests([&]() { EXPECT_EQ(m_value, add(m_ab, 1)); }));
    EXPECT_EQ(0u, count());

    put_alone(m_ab);
    EXPECT_EQ(1u, requests([&]() { get(m_ab, 48, 128); }));
    EXPECT_EQ(0u, count());

    put_alone(m_ab);
    EXPECT_EQ(1u, requests([&]() {
        completion comp;
        ASSERT_EQ(UCS_INPROGRESS, put_zcopy(m_ab, 4096, &comp));
        m_a->wait([&]() { return comp.done; });
        EXPECT_EQ(0, memcmp(m_local->ptr(), m_remote->ptr(), 4096));
    }));
    EXPECT_EQ(0u, count());
    EXPECT_TRUE(rests());
}

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

/* Endpoints whose stores came when the interface had no spare left */
TEST_F(test_spare, is_limited_to_the_first_endpoints)
{
    std::vector<uct_ep_h> eps;

    for (unsigned i = 0; i < spares_max() + 8; ++i) {
        eps.push_back(m_a->connect(m_b->address()));
        put_alone(eps.back());
    }
    EXPECT_EQ(spares_max(), count());
    EXPECT_TRUE(rests());

    uint64_t nops = 0;
    for (uct_ep_h ep : eps) {
        nops += requests([&]() { get(ep, 200); }) - 1;
    }
    EXPECT_EQ(spares_max(), nops);
    EXPECT_EQ(0u, count());

    /* Now endpoints that had no spare can get one */
    put_alone(eps.back());
    EXPECT_EQ(1u, count());
    for (uct_ep_h ep : eps) {
        m_a->disconnect(ep);
    }
    m_a->wait([&]() { return count() == 0; });
    EXPECT_TRUE(rests());
}

TEST_F(test_spare, goes_with_its_endpoint)
{
    for (unsigned i = 0; i < 3 * spares_max(); ++i) {
        std::vector<completion> comps(3);
        uct_ep_h ep = m_a->connect(m_b->address());
        put_alone(ep, 10);
        EXPECT_GT(count(), 0u);
        if ((i % 3) > 0) {
            /* With outstanding replies, a large one among them */
            std::vector<char> result(1000);
            ASSERT_EQ(UCS_INPROGRESS, put_zcopy(ep, 100, &comps[0]));
            ASSERT_EQ(UCS_INPROGRESS,
                      uct_ep_get_bcopy(ep, unpack, result.data(), result.size(),
                                       m_remote->address(), m_rkey, &comps[1]));
        }
        if ((i % 3) == 2) {
            uct_ep_flush(ep, UCT_FLUSH_FLAG_CANCEL, nullptr);
        }
        m_a->disconnect(ep);
        if ((i % 3) > 0) {
            EXPECT_TRUE(comps[0].done);
            EXPECT_TRUE(comps[1].done);
        }
    }
    m_a->wait([&]() { return count() == 0; });
    EXPECT_TRUE(rests());
}

TEST_F(test_spare, is_canceled)
{
    put_alone(m_ab);
    EXPECT_EQ(1u, count());
    completion comp;
    ucs_status_t status = uct_ep_flush(m_ab, UCT_FLUSH_FLAG_CANCEL, &comp);
    if (status == UCS_INPROGRESS) {
        m_a->wait([&]() { return comp.done; });
    }
    EXPECT_EQ(0u, count());
    EXPECT_TRUE(rests());
}

/* The target makes no progress and does something else */
TEST_F(test_spare, is_no_outstanding_request)
{
    struct pollfd pfd = {-1, POLLIN, 0};

    put_alone(m_ab);
    EXPECT_EQ(1u, count());
    ASSERT_EQ(UCS_OK, uct_iface_event_fd_get(m_a->iface(), &pfd.fd));
    await([&]() {
        while (m_a->progress() > 0) {
        }
        return (uct_iface_event_arm(m_a->iface(), UCT_EVENT_SEND_COMP |
                                                  UCT_EVENT_RECV) == UCS_OK) &&
               (poll(&pfd, 1, 100) == 0);
    });
    EXPECT_EQ(UCS_OK, uct_ep_flush(m_ab, 0, nullptr));
    EXPECT_EQ(UCS_OK, uct_ep_fence(m_ab, 0));
    put_alone(m_ab);
}

/* A target that sends replies without requests */
class test_spare_unasked : public test_spare {
protected:
    void SetUp() override
    {
        uct_pair_test::SetUp();
        spares_start(m_b->md());
        m_b->disconnect(m_ba);
        m_local.reset(new buffer(m_a->md(), size));
        m_remote.reset(new buffer(m_b->md(), size));
        m_rkey = m_a->unpack(m_remote->packed_key());
        m_ab   = m_a->connect(m_b->address());
    }

    /* A new connection to the same target works */
    void reconnect()
    {
        m_a->disconnect(m_ab);
        m_ab = m_a->connect(m_b->address());
        put_alone(m_ab);
        EXPECT_EQ(1u, count());
    }
};

/* The reply to the last put comes again when that put is done and the next
 * spare is posted. While the put is in flight a reply may come before the
 * spare, and then it has no receive. */
TEST_F(test_spare_unasked, unrequested_spare_is_malformed)
{
    put_alone(m_ab);
    EXPECT_EQ(1u, count());

    complaints heard;
    ASSERT_EQ(0, spares_repeat());
    m_a->wait([&]() { return m_a->failed.count(m_ab) > 0; });
    EXPECT_EQ(UCS_ERR_IO_ERROR, m_a->failed[m_ab]);
    EXPECT_EQ(m_value, *m_remote->ptr<uint64_t>());
    ASSERT_FALSE(heard.lines().empty());
    EXPECT_NE(std::string::npos, heard.lines()[0].find("malformed reply"));
    EXPECT_EQ(0u, count());
    EXPECT_TRUE(rests());
    reconnect();
}

/* The same where no spare is posted, so that nothing receives the second reply:
 * it does not wait for the receive of a later request */
class test_spare_unreceived : public test_spare_unasked {
protected:
    config_t config() override
    {
        return {{"MONITOR", "copy"}, {"TIMEOUT", "10ms"}, {"RETRY_COUNT", "3"}};
    }
};

TEST_F(test_spare_unreceived, reply_without_receive_ends_the_connection)
{
    put_alone(m_ab, 1);
    EXPECT_EQ(0u, count());

    spares_double(1);
    put_alone(m_ab, 1);
    spares_double(0);
    EXPECT_TRUE(m_a->failed.empty());
    EXPECT_TRUE(rests());

    /* The next request finds the connection ended, and is not lost silently */
    put(m_ab, m_value + 1);
    m_a->wait([&]() { return m_a->failed.count(m_ab) > 0; });
    EXPECT_EQ(m_value, *m_remote->ptr<uint64_t>());
    EXPECT_TRUE(rests());
    reconnect();
}

/* ---- targets that die ---- */
class test_spare_death : public ::testing::Test {
protected:
    struct target {
        explicit target(entity &e) : process("spare_target")
        {
            ep   = e.connect(process.get_bytes());
            rkey = e.unpack(process.get_bytes());
            base = process.get<uint64_t>();
        }

        peer       process;
        uct_ep_h   ep;
        uct_rkey_t rkey;
        uint64_t   base;
    };

    ucs_status_t put(const target &t)
    {
        return m_entity.retry([&]() {
            return uct_ep_put_short(t.ep, "payload", 8, t.base, t.rkey);
        });
    }

    void put_alone(const target &t)
    {
        for (int i = 0; i < enough; ++i) {
            ASSERT_EQ(UCS_OK, put(t));
            m_entity.flush(t.ep);
        }
    }

    unsigned count() const { return spares_count(m_entity.iface()); }

    entity m_entity{{{"TIMEOUT", "10ms"}, {"RETRY_COUNT", "3"}}};
};

TEST_F(test_spare_death, releases_the_spare)
{
    target victim(m_entity), other(m_entity);

    put_alone(victim);
    put_alone(other);
    EXPECT_EQ(2u, count());
    victim.process.kill();
    ASSERT_EQ(UCS_OK, put(victim));
    m_entity.wait([&]() { return m_entity.failed.count(victim.ep) > 0; });
    EXPECT_EQ(1u, count());
    m_entity.disconnect(victim.ep);
    put_alone(other);
    EXPECT_EQ(1u, count());
    EXPECT_TRUE(spares_rest(m_entity.iface()));
    other.process.put(0);
    EXPECT_EQ(0, other.process.join());
}

/* A spare alone does not make its endpoint probe the target, because no request
 * is outstanding. Endpoints with outstanding requests are probed. */
TEST_F(test_spare_death, is_not_probed_while_idle)
{
    target victim(m_entity), other(m_entity);

    put_alone(victim);
    put_alone(other);
    EXPECT_EQ(2u, count());
    victim.process.kill();
    other.process.stop();
    ASSERT_EQ(UCS_OK, put(other));
    uint64_t probes = m_entity.counter("svc_probes");
    m_entity.wait([&]() { return m_entity.counter("svc_probes") > probes; });
    double asked = now();
    m_entity.wait([&]() { return now() > asked + 0.2; });
    EXPECT_TRUE(m_entity.failed.empty());
    other.process.go_on();
    m_entity.flush(other.ep);
    EXPECT_EQ(2u, count());
    other.process.put(0);
    EXPECT_EQ(0, other.process.join());
}
