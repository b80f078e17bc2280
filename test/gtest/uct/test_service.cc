/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "serve.h"
#include "uct_test.h"

#include <algorithm>
#include <cstring>

#include <unistd.h>

/*
 * The service of a process that is busy, idle or stopped. The requests come
 * from another process.
 */

namespace {

constexpr size_t target_size = 1 << 20;

enum command : int {
    COMPUTE,    /* Make no UCX calls until the next command */
    PROGRESS,   /* Call progress until the next command */
    QUIT
};

void unpack(void *arg, const void *data, size_t length)
{
    memcpy(arg, data, length);
}

ucs_status_t count_am(void *arg, void *, size_t, unsigned)
{
    ++*static_cast<long*>(arg);
    return UCS_OK;
}

PEER_FUNCTION(target)
{
    entity e;
    buffer memory(e.md(), target_size);
    long num_am = 0;

    uct_iface_set_am_handler(e.iface(), 1, count_am, &num_am, 0);
    publish(parent, e, memory);
    for (;;) {
        switch (parent.get<command>()) {
        case COMPUTE:
            parent.put(0);
            while (!parent.ready()) {
                for (volatile int i = 0; i < 10000; ++i) {
                }
            }
            break;
        case PROGRESS:
            parent.put(0);
            while (!parent.ready()) {
                for (int i = 0; i < 1000; ++i) {
                    e.progress();
                }
            }
            break;
        case QUIT:
            parent.put(num_am);
            return 0;
        }
    }
}

} // namespace

class test_service : public ::testing::Test {
protected:
    void SetUp() override
    {
        m_entity.reset(new entity());
    }

    void TearDown() override
    {
        m_peer.reset();
        m_entity.reset();
    }

    void start()
    {
        m_peer.reset(new peer("target"));
        m_ep   = m_entity->connect(m_peer->get_bytes());
        m_rkey = m_entity->unpack(m_peer->get_bytes());
        m_base = m_peer->get<uint64_t>();
    }

    /* Connects to an interface whose progress is not enabled */
    void start_passive(entity &target, const buffer &memory)
    {
        uct_iface_progress_disable(target.iface(),
                                   UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
        m_ep   = m_entity->connect(target.address());
        m_rkey = m_entity->unpack(memory.packed_key());
        m_base = memory.address();
    }

    void tell(command c)
    {
        m_peer->put(c);
        if (c != QUIT) {
            m_peer->get<int>();
        }
    }

    void put(uint64_t value, size_t offset = 0)
    {
        ASSERT_EQ(UCS_OK, m_entity->retry([&]() {
            return uct_ep_put_short(m_ep, &value, sizeof(value),
                                    m_base + offset, m_rkey);
        }));
    }

    void put_and_flush(int count)
    {
        for (int i = 0; i < count; ++i) {
            put(i);
            m_entity->flush(m_ep);
        }
    }

    uint64_t get(size_t offset = 0)
    {
        uint64_t value = 0;
        completion comp;
        /* The NIC reads, and might pass a put that the target's software
         * executes */
        EXPECT_EQ(UCS_OK, uct_ep_fence(m_ep, 0));
        EXPECT_EQ(UCS_INPROGRESS, m_entity->retry([&]() {
            return uct_ep_get_bcopy(m_ep, unpack, &value, sizeof(value),
                                    m_base + offset, m_rkey, &comp);
        }));
        m_entity->wait([&]() { return comp.done; });
        EXPECT_EQ(UCS_OK, comp.status);
        return value;
    }

    void quit(long num_am = 0)
    {
        tell(QUIT);
        EXPECT_EQ(num_am, m_peer->get<long>());
        EXPECT_EQ(0, m_peer->join());
    }

    std::unique_ptr<entity> m_entity;
    std::unique_ptr<peer>   m_peer;
    uct_ep_h                m_ep;
    uct_rkey_t              m_rkey;
    uint64_t                m_base;
};

/* UCP enables an interface's progress only when it has receives or an endpoint.
 * A worker that is only a target must serve nevertheless. */
TEST_F(test_service, target_progress_not_enabled)
{
    entity target;
    buffer memory(target.md(), target_size);
    unsigned served = 0;

    start_passive(target, memory);
    for (uint64_t i = 1; served < 100; ++i) {
        ASSERT_LT(i, 20000u) << "only the thread executes";
        completion comp;
        put(i);
        ucs_status_t status = uct_ep_flush(m_ep, 0, &comp);
        m_entity->wait([&]() {
            served += target.progress();
            if (status == UCS_ERR_NO_RESOURCE) {
                status = uct_ep_flush(m_ep, 0, &comp);
            }
            return (status == UCS_OK) || comp.done;
        });
        EXPECT_EQ(i, *memory.ptr<uint64_t>());
    }
    m_entity->disconnect(m_ep);
}

/* UCP 1.13 asserts it of an interface that it has just opened */
TEST_F(test_service, progress_that_is_not_enabled_counts_nothing)
{
    entity target;
    buffer memory(target.md(), target_size);
    unsigned count = 0;

    start_passive(target, memory);
    for (uint64_t i = 1; i < 2000; ++i) {
        put(i);
        m_entity->wait([&]() {
            count += uct_iface_progress(target.iface());
            return *memory.ptr<volatile uint64_t>() == i;
        });
    }
    EXPECT_EQ(0u, count);
    m_entity->disconnect(m_ep);
}

TEST_F(test_service, active_messages_are_stuck)
{
    char payload[100] = {};
    int refused       = 0;
    long sent         = 0;

    start();
    tell(PROGRESS);
    put(1);
    EXPECT_EQ(1u, get());
    tell(COMPUTE);
    /* Until no message is accepted: the target makes no progress */
    while (refused < 10000) {
        ucs_status_t status = uct_ep_am_short(m_ep, 1, 0, payload,
                                              sizeof(payload));
        if (status == UCS_OK) {
            refused = 0;
            ++sent;
        } else {
            ASSERT_EQ(UCS_ERR_NO_RESOURCE, status);
            ++refused;
            m_entity->progress();
        }
    }
    EXPECT_GT(sent, 10);
    for (uint64_t i = 0; i < 100; ++i) {
        put(i, 8);
        EXPECT_EQ(i, get(8));
    }
    /* None is lost, either */
    tell(PROGRESS);
    m_entity->flush(m_ep);
    quit(sent);
}

TEST_F(test_service, idle_thread_uses_no_cpu)
{
    start();
    tell(PROGRESS);
    put_and_flush(100);
    tell(COMPUTE);
    put_and_flush(10);

    /* Only an event can make it use the CPU, and a request is one */
    await([&]() { return thread_sleeps(m_peer->pid(), "nprdma-service"); });
    put_and_flush(1);
    quit();
}
