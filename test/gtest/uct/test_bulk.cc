/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "internals.h"
#include "test_op.h"

#include "uct/ib/nprdma/wire/nprdma_wire.h"

#include <cstring>

#define SVC   UCT_NPRDMA_CONN_SVC
#define BULK  UCT_NPRDMA_CONN_BULK

/*
 * Slices of large operations have a queue pair of their own. A gate serves it
 * later than the other ones, and the target answers connection requests later.
 * No test depends on time, but for time limits of the transport.
 */
class test_bulk : public test_op {
protected:
    static constexpr size_t large = 256 << 10; /* 4 slices */
    static constexpr size_t size  = large + 65536;
    static constexpr size_t other = large + 8192; /* Outside of large ones */

    void SetUp() override
    {
        test_op::SetUp();
        make(size);
        connect_bulk(m_ab);
    }

    void prepare() override
    {
        hook_start(m_a->md(), m_a->iface());
        hook_start(m_b->md(), m_b->iface());
    }

    test_bulk()
    {
        m_config["ORDER"]       = "ucp"; /* Else much waits for large puts */
        m_config["TX_QUOTA"]    = "inf";
        m_config["TIMEOUT"]     = "20ms"; /* Of an endpoint to a dead peer */
        m_config["RETRY_COUNT"] = "3";
    }

    ucs_status_t start_large(op_t op, completion *comp, uct_ep_h ep,
                             uint64_t address, uct_rkey_t rkey)
    {
        uct_iov_t iov = {m_local->ptr(), large, m_local->memh(), 0, 1};

        return start_zcopy(op == PUT_ZCOPY, ep, iov, address, rkey, comp);
    }

    ucs_status_t start_large(op_t op, completion *comp, uct_ep_h ep = nullptr)
    {
        return start_large(op, comp, (ep == nullptr) ? m_ab : ep,
                           m_remote->address(), m_rkey);
    }

    ucs_status_t start_small(completion *comp, uct_ep_h ep = nullptr)
    {
        uct_iov_t iov = {m_local->ptr(other), 64, m_local->memh(), 0, 1};

        return uct_ep_get_zcopy((ep == nullptr) ? m_ab : ep, &iov, 1,
                                m_remote->address(other), m_rkey, comp);
    }

    /* A new endpoint without the connection for slices */
    uct_ep_h connect()
    {
        uct_ep_h ep = m_a->connect(m_b->address());

        m_a->wire_up(ep, m_local->ptr(other), m_remote->address(other), m_rkey);
        return ep;
    }

    /* The first slice starts the connection and does not wait for it */
    void connect_bulk(uct_ep_h ep)
    {
        run_large(PUT_ZCOPY, ep);
        m_a->wait([&]() { return conn_is_connected(ep, BULK); });
    }

    void reconnect()
    {
        m_ab = m_a->connect(m_b->address());
        connect_bulk(m_ab);
    }

    void run_large(op_t op, uct_ep_h ep)
    {
        completion comp;

        m_local->fill(m_seed++);
        ASSERT_EQ(UCS_INPROGRESS,
                  m_a->retry([&]() { return start_large(op, &comp, ep); }));
        m_a->wait([&]() { return comp.done; });
        EXPECT_EQ(UCS_OK, comp.status);
        expect_equal();
    }

    /* Large operations until an endpoint tries again. @return Slices. */
    uint64_t run_until_try(uct_ep_h ep)
    {
        uint64_t eps     = counter("bulk_eps") + counter("bulk_refused");
        uint64_t slices  = counter("nic_slices");

        for (int i = 0; (i < 1000) && (counter("bulk_eps") +
                                       counter("bulk_refused") == eps); ++i) {
            run_large((i % 2) ? GET_ZCOPY : PUT_ZCOPY, ep);
        }
        return counter("nic_slices") - slices;
    }

    void expect_equal()
    {
        EXPECT_EQ(0, memcmp(m_local->ptr(), m_remote->ptr(), large));
    }
};

/* Rule "remote WRITE": states are READ behind the WRITE on one queue pair. The
 * page goes between the post of the WRITE and its execution. States that were
 * read on another queue pair would be those from before. */
TEST_F(test_bulk, states_are_read_behind_data)
{
    for (size_t evicted : {size_t(0), page_size, 65536 - page_size}) {
        uint64_t suspects = counter("suspect_states");
        completion comp, flush;

        m_local->fill(m_seed++);
        hook_gate_close(m_ab, BULK, HOOK_WRITE);
        ASSERT_EQ(UCS_INPROGRESS, start_large(PUT_ZCOPY, &comp));
        ASSERT_EQ(UCS_INPROGRESS, uct_ep_flush(m_ab, 0, &flush));
        m_a->progress_often();
        EXPECT_LT(1u, hook_numbers().held);
        EXPECT_FALSE(comp.done);
        EXPECT_FALSE(flush.done);
        m_remote->evict(evicted, page_size);
        hook_let_go();
        m_a->wait([&]() { return comp.done && flush.done; });
        EXPECT_EQ(UCS_OK, comp.status);
        EXPECT_LT(suspects, counter("suspect_states"));
        expect_equal();
    }
}

/* Nothing waits for the connection. Large operations go on without it, on the
 * queue pair of requests. */
TEST_F(test_bulk, nothing_waits_for_it)
{
    for (op_t op : {PUT_ZCOPY, GET_ZCOPY}) {
        uct_ep_h ep       = connect();
        uint64_t connects = counter("bulk_eps");
        uint64_t slices   = counter("bulk_slices");
        completion first, got, fetched, flush;
        uint64_t value = 77, old;

        m_local->fill(m_seed++);
        async_hold(m_b->iface());
        ASSERT_EQ(UCS_INPROGRESS, start_large(op, &first, ep));
        EXPECT_EQ(UCS_INPROGRESS, start_small(&got, ep));
        EXPECT_EQ(UCS_OK, uct_ep_put_short(ep, &value, sizeof(value),
                                           m_remote->address(other), m_rkey));
        EXPECT_EQ(UCS_INPROGRESS,
                  uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_ADD, 1, &old,
                                        m_remote->address(other), m_rkey,
                                        &fetched));
        EXPECT_EQ(UCS_OK, uct_ep_am_short(ep, 1, 0, nullptr, 0));
        ASSERT_EQ(UCS_INPROGRESS, uct_ep_flush(ep, 0, &flush));
        m_a->wait_alone([&]() {
            return first.done && got.done && fetched.done && flush.done;
        });
        EXPECT_EQ(value, old);
        EXPECT_EQ(UCS_OK, first.status);
        EXPECT_EQ(UCS_OK, flush.status);
        expect_equal();
        EXPECT_TRUE(conn_is_connecting(ep, BULK));
        EXPECT_EQ(slices, counter("bulk_slices"));
        EXPECT_EQ(0u, hook_count(ep, BULK, HOOK_READ) +
                      hook_count(ep, BULK, HOOK_WRITE));
        async_release(m_b->iface());
        m_a->wait_alone([&]() {
            async_answer(m_b->iface());
            return conn_is_connected(ep, BULK);
        });
        EXPECT_EQ(connects + 1, counter("bulk_eps"));
        run_large(op, ep);
        EXPECT_LE(slices + large / 65536, counter("bulk_slices"));
        m_a->disconnect(ep);
    }
    EXPECT_EQ(0u, counter("bulk_refused"));
}

/* What was cut before the connection was there ends on the queue pair on which
 * it began, also if it is repeated: all READs and WRITEs of a slice are on
 * one. */
TEST_F(test_bulk, slices_end_where_they_began)
{
    uct_ep_h ep       = connect();
    uint64_t slices   = counter("bulk_slices");
    uint64_t suspects = counter("suspect_states");
    uint64_t begun    = counter("nic_slices");
    unsigned reads;
    completion comp;

    m_local->fill(m_seed++);
    async_hold(m_b->iface());
    hook_gate_close(ep, SVC, HOOK_WRITE);
    ASSERT_EQ(UCS_INPROGRESS, start_large(PUT_ZCOPY, &comp, ep));
    EXPECT_LT(1u, hook_numbers().held);
    begun = counter("nic_slices") - begun;
    reads = hook_count(ep, SVC, HOOK_READ);
    async_release(m_b->iface());
    m_a->wait_alone([&]() {
        async_answer(m_b->iface());
        return conn_is_connected(ep, BULK);
    });
    EXPECT_FALSE(comp.done);
    m_remote->evict(0, page_size);
    hook_let_go();
    m_a->wait([&]() { return comp.done; });
    EXPECT_EQ(UCS_OK, comp.status);
    expect_equal();
    EXPECT_LT(suspects, counter("suspect_states"));
    EXPECT_LT(reads, hook_count(ep, SVC, HOOK_READ));
    /* Those that were cut later are on the new one */
    EXPECT_EQ(slices + large / 65536 - begun, counter("bulk_slices"));
    EXPECT_EQ(large / 65536 - begun, hook_count(ep, BULK, HOOK_WRITE));
    m_a->disconnect(ep);
}

/* Cancel: no operation ends while the NIC has a work request of either queue
 * pair */
TEST_F(test_bulk, cancel_waits_for_both)
{
    for (auto kind : {BULK, SVC}) {
        completion put, got, flush;

        hook_gate_close(m_ab, kind, (kind == BULK) ? HOOK_WRITE :
                                                   HOOK_READ);
        ASSERT_EQ(UCS_INPROGRESS, start_large(PUT_ZCOPY, &put));
        ASSERT_EQ(UCS_INPROGRESS, start_small(&got));
        EXPECT_LT(0u, hook_numbers().held);
        ASSERT_EQ(UCS_INPROGRESS,
                  uct_ep_flush(m_ab, UCT_FLUSH_FLAG_CANCEL, &flush));
        m_a->progress_often();
        EXPECT_FALSE(put.done) << kind;
        EXPECT_FALSE(got.done) << kind;
        EXPECT_FALSE(flush.done) << kind;
        hook_let_go();
        m_a->wait([&]() { return put.done && got.done && flush.done; });
        EXPECT_EQ(UCS_ERR_CANCELED, put.status);
        EXPECT_EQ(UCS_ERR_CANCELED, got.status);
        m_a->disconnect(m_ab);
        reconnect();
        run(GET_ZCOPY, other, other, 64);
    }
}

/* Destroy: the queue pair is gone before the completion is called */
TEST_F(test_bulk, destroy_ends_queue_pair)
{
    struct : completion {
        int was_destroyed = 0;
    } put;

    put.func = [](uct_completion_t *self) {
        auto *comp          = static_cast<decltype(put)*>(self);
        comp->done          = true;
        comp->was_destroyed = hook_numbers().is_destroyed;
    };
    hook_gate_close(m_ab, BULK, HOOK_WRITE);
    ASSERT_EQ(UCS_INPROGRESS, start_large(PUT_ZCOPY, &put));
    EXPECT_LT(0u, hook_numbers().held);
    m_a->disconnect(m_ab);
    EXPECT_TRUE(put.done);
    EXPECT_TRUE(put.was_destroyed);
    m_ab = m_a->connect(m_b->address());
    run(PUT_ZCOPY, 0, 0, large);
}

/* The device refuses a work request of a slice: nothing is posted behind it,
 * and the endpoint fails */
TEST_F(test_bulk, refused_post_ends_endpoint)
{
    for (unsigned after : {0u, 1u, 2u}) {
        completion put, got;

        hook_refuse(m_a->md(), after, 1);
        ASSERT_EQ(UCS_INPROGRESS, start_large(PUT_ZCOPY, &put));
        EXPECT_EQ(1u, hook_numbers().refused);
        start_large(GET_ZCOPY, &got);
        EXPECT_FALSE(put.done);
        m_a->wait([&]() { return put.done && m_a->failed.count(m_ab); });
        EXPECT_EQ(UCS_ERR_CONNECTION_RESET, put.status);
        EXPECT_EQ(UCS_ERR_CONNECTION_RESET, m_a->failed[m_ab]);
        EXPECT_EQ(0u, hook_numbers().overtakers);
        m_a->disconnect(m_ab);
        m_a->failed.clear();
        reconnect();
    }
}

/* A peer that dies */
class test_bulk_death : public test_bulk {
protected:
    test_bulk_death()
    {
        m_config["CM_TIMEOUT"] = "600s"; /* Not what notices it */
    }

    void SetUp() override
    {
        test_bulk::SetUp();
        m_peer.reset(new peer("op_target"));
        m_ep      = m_a->connect(m_peer->get_bytes());
        m_key     = m_a->unpack(m_peer->get_bytes());
        m_address = m_peer->get<uint64_t>();
        m_a->wire_up(m_ep, m_local->ptr(), m_address, m_key);
    }

    ucs_status_t start(op_t op, completion *comp)
    {
        return start_large(op, comp, m_ep, m_address, m_key);
    }

    std::unique_ptr<peer> m_peer;
    uct_ep_h              m_ep;
    uct_rkey_t            m_key;
    uint64_t              m_address;
};

/* The other queue pair notices it. Slices of this one are still with the
 * NIC. */
TEST_F(test_bulk_death, is_noticed_by_another)
{
    uint64_t failed = counter("eps_failed");
    completion first, put;

    ASSERT_EQ(UCS_INPROGRESS, start(PUT_ZCOPY, &first));
    m_a->wait([&]() {
        return first.done && conn_is_connected(m_ep, BULK);
    });
    hook_gate_close(m_ep, BULK, HOOK_WRITE);
    ASSERT_EQ(UCS_INPROGRESS, start(PUT_ZCOPY, &put));
    m_peer->kill();
    ASSERT_EQ(UCS_OK, uct_ep_put_short(m_ep, "x", 1, m_address + large, m_key));
    m_a->wait([&]() { return counter("eps_failed") > failed; });
    m_a->progress_often();
    EXPECT_FALSE(put.done);
    EXPECT_EQ(0u, m_a->failed.count(m_ep));
    hook_let_go();
    m_a->wait([&]() { return put.done && m_a->failed.count(m_ep); });
    EXPECT_EQ(UCS_ERR_ENDPOINT_TIMEOUT, put.status);
    EXPECT_EQ(1u, m_a->num_errors);
}

/* The connection cannot be made: operations go on without it, nothing is lost,
 * and a later slice tries again */
class test_bulk_refused : public test_bulk {
protected:
    /* Large and small operations, a flush and an atomic behind it */
    void expect_all_work(uct_ep_h ep)
    {
        uint64_t old, value = m_seed++;
        completion got, fetched;

        for (op_t op : {PUT_ZCOPY, GET_ZCOPY}) {
            run_large(op, ep);
        }
        EXPECT_EQ(UCS_OK, uct_ep_put_short(ep, &value, sizeof(value),
                                           m_remote->address(other), m_rkey));
        EXPECT_EQ(UCS_INPROGRESS, start_small(&got, ep));
        EXPECT_EQ(UCS_INPROGRESS,
                  uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_ADD, 1, &old,
                                        m_remote->address(other), m_rkey,
                                        &fetched));
        m_a->wait([&]() { return got.done && fetched.done; });
        EXPECT_EQ(value, old);
        m_a->flush(ep);
        EXPECT_EQ(0u, m_a->failed.count(ep));
    }
};

/* The peer has no queue pair (REJ) */
TEST_F(test_bulk_refused, by_peer)
{
    uint64_t slices = counter("bulk_slices");
    uct_ep_h ep     = connect();
    complaints log;

    hook_refuse_qps(m_b->md());
    for (uint64_t refused = 1; refused <= 3; ++refused) {
        uint64_t tried = run_until_try(ep);

        m_a->wait([&]() { return counter("bulk_refused") == refused; });
        EXPECT_EQ(refused, counter("cm_rejected"));
        EXPECT_FALSE(conn_is_connecting(ep, BULK));
        /* Twice as many slices as before the last try */
        EXPECT_TRUE((refused == 1) || (tried >= 32u << refused)) << tried;
        expect_all_work(ep);
    }
    EXPECT_EQ(slices, counter("bulk_slices"));
    expect_line(log, "stay on the queue pair of requests");

    hook_refuse_qps(nullptr);
    run_until_try(ep);
    m_a->wait([&]() { return conn_is_connected(ep, BULK); });
    expect_all_work(ep);
    EXPECT_LT(slices, counter("bulk_slices"));
    m_a->disconnect(ep);
}
