/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <algorithm>

#include <unistd.h>

/* The service of a target that makes no progress, unless the test says so */
class test_service : public ::testing::Test {
protected:
    test_service() :
        m_memory(m_target.md(), 4096),
        m_ep(m_entity.connect(m_target.address())),
        m_rkey(m_entity.unpack(m_memory.packed_key()))
    {
        uct_iface_progress_disable(m_target.iface(),
                                   UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    }

    void put(uint64_t value, size_t offset = 0)
    {
        ASSERT_EQ(UCS_OK, m_entity.retry([&]() {
            return uct_ep_put_short(m_ep, &value, sizeof(value),
                                    m_memory.address(offset), m_rkey);
        }));
    }

    entity     m_entity, m_target;
    buffer     m_memory;
    uct_ep_h   m_ep;
    uct_rkey_t m_rkey;
};

/* UCP enables an interface's progress only when it has receives or an endpoint.
 * A worker that is only a target must serve nevertheless. */
TEST_F(test_service, target_progress_not_enabled)
{
    unsigned served = 0;

    for (uint64_t i = 1; served < 100; ++i) {
        ASSERT_LT(i, 20000u) << "only the thread executes";
        completion comp;
        put(i);
        ucs_status_t status = uct_ep_flush(m_ep, 0, &comp);
        m_entity.wait([&]() {
            served += m_target.progress();
            if (status == UCS_ERR_NO_RESOURCE) {
                status = uct_ep_flush(m_ep, 0, &comp);
            }
            return (status == UCS_OK) || comp.done;
        });
        EXPECT_EQ(i, *m_memory.ptr<uint64_t>());
    }
}

/* UCP 1.13 asserts it of an interface that it has just opened */
TEST_F(test_service, progress_that_is_not_enabled_counts_nothing)
{
    unsigned count = 0;

    for (uint64_t i = 1; i < 2000; ++i) {
        put(i);
        m_entity.wait([&]() {
            count += uct_iface_progress(m_target.iface());
            return *m_memory.ptr<volatile uint64_t>() == i;
        });
    }
    EXPECT_EQ(0u, count);
}

/* Until no message is accepted. Puts and gets are served all the same, and no
 * message is lost. */
TEST_F(test_service, active_messages_are_stuck)
{
    unsigned refused = 0, sent = 0, arrived = 0;

    ASSERT_EQ(UCS_OK, uct_iface_set_am_handler(
            m_target.iface(), 1,
            [](void *arg, void *, size_t, unsigned) {
                ++*static_cast<unsigned*>(arg);
                return UCS_OK;
            },
            &arrived, 0));
    put(1);
    m_entity.flush(m_ep);
    while (refused < 10000) {
        ucs_status_t status = uct_ep_am_short(m_ep, 1, 0, m_memory.ptr(), 100);

        sent   += status == UCS_OK;
        refused = (status == UCS_OK) ? 0 : refused + 1;
        m_entity.progress();
    }
    EXPECT_LT(10u, sent);
    for (uint64_t i = 0; i < 100; ++i) {
        uint64_t value = 0;

        put(i, 8);
        /* The NIC reads, and might pass a put that the target's software
         * executes */
        ASSERT_EQ(UCS_OK, uct_ep_fence(m_ep, 0));
        ASSERT_EQ(UCS_OK, m_entity.get(m_ep, &value, sizeof(value),
                                       m_memory.address(8), m_rkey));
        EXPECT_EQ(i, value);
    }
    EXPECT_EQ(0u, arrived);
    uct_iface_progress_enable(m_target.iface(),
                              UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    m_entity.add_progress(&m_target);
    m_entity.flush(m_ep);
    m_entity.wait([&]() { return arrived == sent; });
}

/* Messages that lack a slot wait among the pending requests. A put that is
 * pending behind them, of another endpoint, does not. */
TEST_F(test_service, pending_put_passes_messages_without_slots)
{
    struct request : uct_pending_req_t {
        std::function<ucs_status_t()> start;
        ucs_status_t                  status = UCS_OK;
    };
    auto run          = [](uct_pending_req_t *self) {
        auto *req = static_cast<request*>(self);
        return req->status = req->start();
    };
    auto fill         = [](void *, void *) -> size_t { return 4000; };
    const uint64_t is = 7;
    uct_ep_h ep       = nullptr;
    request message, write;

    message.func  = write.func = run;
    message.start = [&]() {
        ssize_t sent = uct_ep_am_bcopy(ep, 1, fill, nullptr, 0);
        return (ucs_status_t)std::min<ssize_t>(sent, UCS_OK);
    };
    write.start   = [&]() {
        return uct_ep_put_short(m_ep, &is, sizeof(is), m_memory.address(),
                                m_rkey);
    };
    write.status  = UCS_INPROGRESS;
    put(1);
    m_entity.flush(m_ep);
    while (message.status == UCS_OK) { /* Until one gets no slot at all */
        ep = m_entity.connect(m_target.address());
        run(&message);
        for (unsigned refused = message.status != UCS_OK; refused < 1000;) {
            refused = (message.start() == UCS_OK) ? 0 : refused + 1;
            m_entity.progress();
        }
    }
    ASSERT_EQ(UCS_OK, uct_ep_pending_add(ep, &message, 0));
    ASSERT_EQ(UCS_OK, uct_ep_pending_add(m_ep, &write, 0));
    idle([this]() { m_entity.progress(); });
    EXPECT_EQ(UCS_ERR_NO_RESOURCE, message.status);
    EXPECT_EQ(UCS_OK, write.status);
    uct_iface_progress_enable(m_target.iface(),
                              UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    m_entity.add_progress(&m_target);
    m_entity.wait([&]() {
        return (message.status == UCS_OK) && (write.status == UCS_OK);
    });
    m_entity.flush(m_ep);
    EXPECT_EQ(is, *m_memory.ptr<uint64_t>());
}

/* Only an event can make it use the CPU, and a request is one */
TEST_F(test_service, idle_thread_uses_no_cpu)
{
    for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < 10; ++i) {
            put(i);
            m_entity.flush(m_ep);
        }
        await([]() { return thread_sleeps(getpid(), "nprdma-service"); });
    }
}
