/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "internals.h"
#include "test_op_order.h"

#include "uct/ib/nprdma/wire/nprdma_wire.h"

#include <algorithm>
#include <functional>
#include <vector>

#define SVC  UCT_NPRDMA_CONN_SVC

/*
 * Active messages and small puts behind earlier puts of their endpoint. A gate
 * in the initiator's device keeps requests back, as a network may, so that a
 * message arrives before the put that was started before it.
 */
class test_message_order : public test_op_order {
protected:
    /* Bytes of the target's memory when a message was delivered */
    struct delivery {
        uint64_t header;
        uint64_t value;
        bool     is_whole;
    };

    void SetUp() override
    {
        test_op::SetUp();
        ASSERT_EQ(UCS_OK, uct_iface_set_am_handler(m_b->iface(), 1, on_am, this,
                                                   0));
        make(size);
        connect(m_ab);
    }

    void prepare() override { hook_start(m_a->md(), m_a->iface()); }

    test_message_order()
    {
        m_config["ORDER"] = "rc"; /* The default */
    }

    void connect(uct_ep_h ep)
    {
        m_a->wire_up(ep, m_local->ptr(), m_remote->address(), m_rkey);
        m_deliveries.clear();
        m_waited            = m_b->counter("am_rx_waited");
        *remote_word(other) = 0;
    }

    static ucs_status_t
    on_am(void *arg, void *data, size_t bytes, unsigned flags)
    {
        auto *self = static_cast<test_message_order*>(arg);
        delivery now;

        (void)flags;
        memcpy(&now.header, data, std::min(bytes, sizeof(now.header)));
        now.value    = *self->remote_word(other);
        now.is_whole = self->m_remote &&
                       (memcmp(self->m_remote->ptr(), self->m_local->ptr(),
                               word) == 0);
        self->m_deliveries.push_back(now);
        if (now.header == CALLS) {
            self->m_call();
        }
        return UCS_OK;
    }

    ucs_status_t message(uct_ep_h ep, uint64_t header)
    {
        return uct_ep_am_short(ep, 1, header, nullptr, 0);
    }

    ucs_status_t put_other(uct_ep_h ep, uint64_t value)
    {
        return uct_ep_put_short(ep, &value, sizeof(value),
                                m_remote->address(other), m_rkey);
    }

    /* Messages that have waited at the target since the endpoint connected */
    uint64_t num_waited() { return m_b->counter("am_rx_waited") - m_waited; }

    /* Only the target makes progress */
    void await_waiting(uint64_t count)
    {
        m_b->wait_alone([&]() { return num_waited() == count; });
    }

    /* The service's thread executes the put of a 5 */
    void await_put()
    {
        await([this]() { return *remote_word(other) == 5; });
    }

    void await_deliveries(size_t count)
    {
        m_b->wait_alone([&]() { return m_deliveries.size() == count; });
    }

    /* The delivery of this one calls m_call */
    static constexpr uint64_t CALLS = 1000;

    std::vector<delivery> m_deliveries;
    uint64_t              m_waited = 0;
    std::function<void()> m_call;
};

/* ---- behind operations that are not verified ---- */

TEST_F(test_message_order, message_waits_for_large_put)
{
    completion put;

    start_missing(PUT_ZCOPY, &put, 3);
    EXPECT_EQ(UCS_ERR_NO_RESOURCE, message(m_ab, 1));
    ASSERT_EQ(UCS_OK, m_a->retry([&]() { return message(m_ab, 1); }));
    EXPECT_TRUE(put.done);
    await_deliveries(1);
    EXPECT_TRUE(m_deliveries[0].is_whole);
    m_a->flush(m_ab);
}

/* Gets order nothing */
TEST_F(test_message_order, message_passes_get)
{
    completion get;

    start_missing(GET_ZCOPY, &get, 3);
    EXPECT_EQ(UCS_OK, message(m_ab, 1));
    EXPECT_FALSE(get.done);
    m_a->flush(m_ab);
}

TEST_F(test_message_order, small_put_waits_for_disjoint_put)
{
    completion put;

    start_missing(PUT_ZCOPY, &put, 3);
    ASSERT_EQ(UCS_OK, put_other(m_ab, 7));
    EXPECT_EQ(1u, counter("held_overlaps"));
    m_a->wait([&]() { return *remote_word(other) == 7; });
    EXPECT_TRUE(put.done);
    EXPECT_TRUE(arrived(0, 0, length));
    m_a->flush(m_ab);
}

/* The message waits for a put that waits itself, without a reply of its own */
TEST_F(test_message_order, message_waits_for_held_put)
{
    completion put;

    start_missing(PUT_ZCOPY, &put, 3);
    ASSERT_EQ(UCS_OK, put_other(m_ab, 9));
    ASSERT_EQ(UCS_OK, m_a->retry([&]() { return message(m_ab, 1); }));
    await_deliveries(1);
    EXPECT_EQ(9u, m_deliveries[0].value);
    m_a->flush(m_ab);
}

/* The put's part of a flush takes the last place in the completion queue that
 * messages may have */
TEST_F(test_message_order, flush_waits_for_messages_without_places)
{
    completion flushed;

    hook_gate_close(m_ab, UCT_NPRDMA_CONN_AM, HOOK_SEND);
    for (uint64_t value : {3, 4, 5}) { /* A flush of one sends nothing */
        ASSERT_EQ(UCS_OK, put_other(m_ab, value));
    }
    ASSERT_EQ(UCS_OK, message(m_ab, 1));
    int hidden = cq_hide(m_ab);
    EXPECT_EQ(UCS_INPROGRESS, uct_ep_flush(m_ab, 0, &flushed));
    cq_show(m_a->iface(), hidden);
    await_put();
    idle([this]() { m_a->progress(); });
    EXPECT_FALSE(flushed.done);
    hook_let_go();
    m_a->wait([&]() { return flushed.done; });
}

/* ---- behind requests ---- */

/* On another queue pair a message arrives first, and waits for the put */
TEST_F(test_message_order, message_waits_for_request)
{
    hook_gate_close(m_ab, SVC, HOOK_SEND);
    ASSERT_EQ(UCS_OK, put_other(m_ab, 5));
    ASSERT_EQ(UCS_OK, message(m_ab, 1));
    await_waiting(1);
    serve();
    EXPECT_TRUE(m_deliveries.empty());

    hook_let_go();
    await_deliveries(1);
    EXPECT_EQ(5u, m_deliveries[0].value);
    m_a->flush(m_ab);
}

/* What the target may have to keep is bounded */
TEST_F(test_message_order, waiting_messages_are_bounded)
{
    uint64_t count = 0;

    hook_gate_close(m_ab, SVC, HOOK_SEND);
    ASSERT_EQ(UCS_OK, put_other(m_ab, 5));
    while ((count < 1000) && (message(m_ab, count) == UCS_OK)) {
        ++count;
        m_a->progress();
        m_b->progress();
    }
    EXPECT_LT(32u, count); /* Less what has waited before */
    EXPECT_GE(64u, count);
    EXPECT_TRUE(m_deliveries.empty());
    hook_let_go();
    for (; count < 300; ++count) {
        ASSERT_EQ(UCS_OK, m_a->retry([&]() { return put_other(m_ab, 6); }));
        ASSERT_EQ(UCS_OK, m_a->retry([&]() { return message(m_ab, count); }));
    }
    m_a->wait([&]() { return m_deliveries.size() == count; });
    m_a->flush(m_ab);
}

/* As many come while those that wait could have been delivered since the target
 * last looked: here from within a callback of another endpoint's message */
TEST_F(test_message_order, waiting_messages_make_room)
{
    const uint64_t one = 1;
    uct_ep_h second    = m_a->connect(m_b->address());
    uint64_t count     = 0;

    connect(second);
    hook_gate_close(second, SVC, HOOK_SEND);
    ASSERT_EQ(UCS_OK, uct_ep_put_short(second, &one, sizeof(one),
                                       m_remote->address(0), m_rkey));
    hook_gate_close(m_ab, SVC, HOOK_SEND);
    ASSERT_EQ(UCS_OK, put_other(m_ab, 5));
    while (message(m_ab, count) == UCS_OK) {
        ++count;
    }
    EXPECT_LT(60u, count); /* Nearly as many as the target keeps */
    await_waiting(count);
    ASSERT_EQ(UCS_OK, message(second, CALLS));
    await_waiting(count + 1);
    m_call = [&]() {
        hook_let_go();
        await_put();
        m_a->wait_alone([&]() { /* The callback is the target's */
            count += message(m_ab, count) == UCS_OK;
            return count == 96;
        });
    };
    hook_let_one_go();
    await([&]() { return *remote_word(0) == 1; });
    await_deliveries(97);
    for (size_t i = 1; i < 97; ++i) {
        EXPECT_EQ(i - 1, m_deliveries[i].header);
    }
    m_a->flush(m_ab);
    m_a->flush(second);
    m_a->disconnect(second);
}

/* The endpoint ends in order before the target looks: nothing is lost */
TEST_F(test_message_order, message_outlives_its_connection)
{
    ASSERT_EQ(UCS_OK, put_other(m_ab, 5));
    ASSERT_EQ(UCS_OK, message(m_ab, 1));
    await_put();
    m_a->disconnect(m_ab);
    m_a->wait_alone([&]() { /* The target would see the message */
        return eps_are_freed(m_a->iface()) &&
               (num_served(m_b->iface()) == 0);
    });
    EXPECT_TRUE(m_deliveries.empty());
    await_deliveries(1);
    EXPECT_EQ(5u, m_deliveries[0].value);
    m_ab = m_a->connect(m_b->address());
}

/* A peer that sends more than the target keeps loses one, as it does if the
 * target has no memory for it. None of those that have arrived behind it is
 * delivered, and the endpoint fails. */
TEST_F(test_message_order, nothing_passes_a_lost_message)
{
    complaints log;

    hook_gate_close(m_ab, SVC, HOOK_SEND);
    ASSERT_EQ(UCS_OK, put_other(m_ab, 5));
    for (uint64_t i = 0; i < 80; ++i) {
        forget_messages(m_ab);
        ASSERT_EQ(UCS_OK, message(m_ab, i));
        m_a->progress();
        if (i < 60) {
            m_b->progress();
        }
    }
    m_b->progress(); /* Takes some of the messages behind the lost one */
    expect_line(log, "cannot be kept (64");
    hook_let_go();
    await_put();
    idle([&]() { m_b->progress(); });
    EXPECT_TRUE(m_deliveries.empty());
    message(m_ab, 80);
    m_a->wait([&]() { return m_a->failed.count(m_ab) > 0; });
    m_a->disconnect(m_ab);
    m_ab = m_a->connect(m_b->address());
}

class test_message_order_lost : public test_message_order {
protected:
    test_message_order_lost() { m_config["CM_PROBE_INTERVAL"] = "20ms"; }
};

/* The put never comes, so neither does the message */
TEST_F(test_message_order_lost, message_goes_with_its_put)
{
    uint64_t responders = m_b->counter("cm_responders");

    hook_gate_close(m_ab, SVC, HOOK_SEND);
    ASSERT_EQ(UCS_OK, put_other(m_ab, 5));
    ASSERT_EQ(UCS_OK, message(m_ab, 1));
    await_waiting(1);
    m_a->disconnect(m_ab); /* Not flushed */
    m_a->wait([&]() {
        return m_b->counter("cm_responders") < responders;
    });
    serve();
    EXPECT_TRUE(m_deliveries.empty());
    EXPECT_EQ(0u, *remote_word(other));
    hook_let_go();
    m_ab = m_a->connect(m_b->address());
}

/* ---- again ---- */

/* A WRITE takes a receive, and leaves in it what an earlier message brought */
TEST_F(test_message_order, writes_repeat_no_message)
{
    const uint64_t count     = 2000; /* More than there are receives */
    const uint64_t malformed = m_b->counter("am_rx_malformed");

    ASSERT_EQ(UCS_OK, message(m_ab, 1));
    await_deliveries(1);
    hook_forge(m_ab, UCT_NPRDMA_CONN_AM, m_remote->address(other), m_rkey);
    for (uint64_t i = 0; i < count;) {
        i += message(m_ab, 2) == UCS_OK;
        m_a->progress();
        m_b->progress();
    }
    m_b->wait_alone([&]() {
        return m_b->counter("am_rx_malformed") == malformed + count;
    });
    hook_forge(nullptr, 0, 0, 0);
    EXPECT_EQ(1u, m_deliveries.size());
    ASSERT_EQ(UCS_OK, m_a->retry([&]() { return message(m_ab, 3); }));
    await_deliveries(2);
    EXPECT_EQ(3u, m_deliveries[1].header);
    m_a->flush(m_ab);
}

/* ---- the number in a message ---- */

/* The number has 48 bits of a count that may have wrapped */
TEST(test_message_order_number, wraps)
{
    const uint64_t half = 1ull << (UCT_NPRDMA_AM_FOLLOWS_BITS - 1);

    for (uint64_t base : std::vector<uint64_t>{
                 0, 5, (1ull << 32) - 1, 1ull << 32, 2 * half - 1, 2 * half,
                 6 * half + 3}) {
        uint64_t number = base & (2 * half - 1);

        EXPECT_TRUE(uct_nprdma_am_may_follow(number, base));
        EXPECT_TRUE(uct_nprdma_am_may_follow(number, base + 1));
        EXPECT_TRUE(uct_nprdma_am_may_follow(number, base + half - 1));
        EXPECT_FALSE(uct_nprdma_am_may_follow((base + 1) & (2 * half - 1),
                                              base));
        EXPECT_FALSE(uct_nprdma_am_may_follow((base + half) & (2 * half - 1),
                                              base));
    }
}
