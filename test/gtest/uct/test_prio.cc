/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "internals.h"
#include "test_op.h"

#include <cstring>

/*
 * Small operations beside large ones of the same endpoint. Large ones are held
 * where they are: a gate keeps the target from populating their pages, or the
 * initiator makes no progress. Whatever they have then, they keep. Counters
 * show what was posted; no test depends on time.
 */
class test_prio : public test_op {
protected:
    static constexpr size_t huge  = 4 << 20;     /* 64 slices */
    static constexpr size_t size  = huge + 65536;
    static constexpr size_t other = huge + 8192; /* Outside of large ones */

    void SetUp() override
    {
        test_op::SetUp();
        make(size);
        ASSERT_EQ(UCS_OK, uct_iface_set_am_handler(m_b->iface(), 1, on_am, this,
                                                   0));
    }

    void TearDown() override
    {
        /* After a failure the service is still held */
        go_on();
        test_op::TearDown();
    }

    test_prio()
    {
        m_config["ORDER"]      = "ucp"; /* Else much waits for large puts */
        m_config["TX_QUOTA"]   = "inf"; /* Large ones have all they may have */
        m_config["MAX_PINNED"] = "32m"; /* All slices and slots exist */
    }

    static ucs_status_t
    on_am(void *arg, void *data, size_t length, unsigned flags)
    {
        (void)data, (void)length, (void)flags;
        ++static_cast<test_prio*>(arg)->m_num_ams;
        return UCS_OK;
    }

    ucs_status_t start_large(op_t op, completion *comp, uct_ep_h ep = nullptr)
    {
        uct_iov_t iov = {m_local->ptr(), huge, m_local->memh(), 0, 1};

        return start_zcopy(op == PUT_ZCOPY, (ep == nullptr) ? m_ab : ep, iov,
                           m_remote->address(), m_rkey, comp);
    }

    ucs_status_t start_small(op_t op, size_t offset, completion *comp)
    {
        uct_iov_t iov[] = {{m_local->ptr(offset), 64, m_local->memh(), 0, 1},
                           {m_local->ptr(offset), 0, m_local->memh(), 0, 1}};

        if (op == GET_BCOPY) {
            return uct_ep_get_bcopy(m_ab, unpack_to, m_local->ptr(offset), 64,
                                    m_remote->address(offset), m_rkey, comp);
        }
        return uct_ep_get_zcopy(m_ab, iov, (op == GET_ZCOPY) ? 2 : 1,
                                m_remote->address(offset), m_rkey, comp);
    }

    /* The target's service stands still at the first page that it populates */
    void stop_at_large(op_t op, completion *large)
    {
        m_remote->evict(0, huge);
        page_table_gate_arm(m_remote->table(), GATE_MAP, m_remote->ptr());
        ASSERT_EQ(UCS_INPROGRESS, start_large(op, large));
        m_a->wait_alone([&]() { /* The gate holds what executes */
            return page_table_gate_wait(m_remote->table(), GATE_MAP, 1) == 0;
        });
    }

    /* Until nothing more is posted */
    void progress_all()
    {
        for (uint64_t posted = 0; posted != counter("svc_requests");) {
            posted = counter("svc_requests");
            m_a->progress_often();
        }
    }

    void finish(std::initializer_list<completion*> comps)
    {
        go_on();
        for (completion *comp : comps) {
            m_a->wait([&]() { return comp->done; });
            EXPECT_EQ(UCS_OK, comp->status);
        }
        m_a->flush(m_ab);
    }

    unsigned m_num_ams = 0;
};

/* The pools are small, so large ones have all slices that they may have */
class test_prio_few : public test_prio {
protected:
    test_prio_few() { m_config["MAX_PINNED"] = "4m"; }
};

/* All slices that large operations may have wait for the target. A small
 * get needs the NIC only, and is complete. */
TEST_F(test_prio_few, gets_pass_slices)
{
    for (op_t large : {PUT_ZCOPY, GET_ZCOPY}) {
        completion first, second;

        ASSERT_NO_FATAL_FAILURE(stop_at_large(large, &first));
        ASSERT_EQ(UCS_INPROGRESS, start_large(large, &second));
        progress_all();
        for (op_t op : {GET_BCOPY, GET_COPIED, GET_ZCOPY}) {
            completion small;

            m_remote->fill(m_seed++);
            ASSERT_EQ(UCS_INPROGRESS, start_small(op, other, &small));
            for (int i = 0; (i < 1000) && !small.done; ++i) {
                m_a->progress();
            }
            ASSERT_TRUE(small.done) << "get " << op;
            EXPECT_EQ(0, memcmp(m_local->ptr(other), m_remote->ptr(other),
                                64));
        }
        EXPECT_FALSE(first.done);
        EXPECT_FALSE(second.done);
        finish({&first, &second});
    }
}

/* Slices are on the queue pair of requests */
class test_prio_shared : public test_prio {
protected:
    test_prio_shared() { m_config["BULK_QP"] = "no"; }
};

/* Large operations have all work requests of their send queue that they may
 * have, because the initiator makes no progress. */
TEST_F(test_prio_shared, requests_pass_slices)
{
    for (op_t op : {PUT_ZCOPY, GET_ZCOPY}) {
        std::vector<completion> large(8);
        completion fetched, got;
        uint64_t old = 0;
        unsigned ams = m_num_ams;

        m_remote->fill(m_seed++);
        uint64_t word = *remote_word(other + 8);
        for (auto &comp : large) {
            ASSERT_EQ(UCS_INPROGRESS, start_large(op, &comp));
        }
        EXPECT_EQ(UCS_OK, put_word(other, 77));
        EXPECT_EQ(UCS_OK, uct_ep_atomic64_post(m_ab, UCT_ATOMIC_OP_ADD, 1,
                                               m_remote->address(other + 8),
                                               m_rkey));
        EXPECT_EQ(UCS_INPROGRESS,
                  uct_ep_atomic64_fetch(m_ab, UCT_ATOMIC_OP_ADD, 1, &old,
                                        m_remote->address(other + 8),
                                        m_rkey, &fetched));
        EXPECT_EQ(UCS_INPROGRESS, start_small(GET_BCOPY, other + 64, &got));
        EXPECT_EQ(UCS_OK, uct_ep_am_short(m_ab, 1, 0, nullptr, 0));

        /* The target has got all of them */
        m_b->wait_alone([&]() {
            return (*remote_word(other) == 77) &&
                   (*remote_word(other + 8) == word + 2) &&
                   (m_num_ams == ams + 1);
        });
        for (auto &comp : large) {
            EXPECT_FALSE(comp.done);
        }
        finish({&large[0], &large[1], &large[7], &fetched, &got});
        EXPECT_EQ(word + 1, old);
    }
}

/* Large operations have all operations that they may have. Also held ones need
 * an operation: active messages would have to wait behind one that is refused,
 * in the queue of pending requests. */
TEST_F(test_prio, operations_are_left)
{
    std::vector<completion> large(200);
    completion got;
    unsigned count = 0;

    while (start_large(PUT_ZCOPY, &large.at(count)) == UCS_INPROGRESS) {
        ++count;
    }
    EXPECT_LT(50u, count);
    EXPECT_EQ(UCS_INPROGRESS, start_small(GET_BCOPY, other, &got));
    for (uint64_t i = 0; i < 8; ++i) {
        ASSERT_EQ(UCS_OK, put_word(8 * i, i)); /* Held by the large ones */
    }
    EXPECT_EQ(UCS_OK, uct_ep_am_short(m_ab, 1, 0, nullptr, 0));
    EXPECT_EQ(8u, counter("held_overlaps") - (count - 1));
    EXPECT_EQ(0u, counter("no_resource") - 1); /* The last large one */
    m_a->wait([&]() { return got.done && (m_num_ams == 1); });
    m_a->flush(m_ab);
    for (uint64_t i = 0; i < 8; ++i) {
        EXPECT_EQ(i, *remote_word(8 * i));
    }
}

/* Small operations of several endpoints have all slices but one, because the
 * initiator makes no progress. The last one is left to large operations. */
TEST_F(test_prio, slice_is_kept)
{
    std::vector<completion> small(128);
    uct_iov_t iov[] = {{m_local->ptr(other), 64, m_local->memh(), 0, 1},
                       {m_local->ptr(other), 0, m_local->memh(), 0, 1}};
    std::vector<uct_ep_h> eps(8);
    size_t count = 0;
    completion large;

    for (auto &ep : eps) {
        ep = m_a->connect(m_b->address());
        m_a->wire_up(ep, m_local->ptr(), m_remote->address(other), m_rkey);
    }

    uint64_t begin = counter("nic_slices");
    for (auto ep : eps) {
        uint64_t slices;
        do { /* The last one of each has no slice, and waits */
            slices = counter("nic_slices");
            ASSERT_EQ(UCS_INPROGRESS,
                      uct_ep_get_zcopy(ep, iov, 2, m_remote->address(other),
                                       m_rkey, &small.at(count++)));
        } while (counter("nic_slices") > slices);
    }
    EXPECT_EQ(63u, counter("nic_slices") - begin);
    begin = counter("nic_slices");
    ASSERT_EQ(UCS_INPROGRESS, start_large(GET_ZCOPY, &large));
    EXPECT_EQ(begin + 1, counter("nic_slices"));
    finish({&large});
    for (size_t i = 0; i < count; ++i) {
        m_a->wait([&]() { return small[i].done; });
    }
}

/* A small get that finds its page absent is assisted before large operations
 * that software copies. */
class test_prio_copy : public test_prio {
protected:
    void SetUp() override
    {
        test_op::SetUp();
        m_local.reset(new paged_buffer(*m_a, size));
        m_remote.reset(new paged_buffer(*m_b, size));
        m_local->fill(m_seed++);
        m_remote->fill(m_seed++);
        m_rkey = m_a->unpack(m_remote->packed_key());
        run(PUT_ZCOPY, 0, 0, size); /* Connects */
        m_b->finish_prefetch();
        ASSERT_EQ(UCS_OK, uct_iface_set_am_handler(m_b->iface(), 1, on_am, this,
                                                   0));
    }

    test_prio_copy()
    {
        m_config["MAX_TRIES"] = "1"; /* Then it is copied */
    }

    void TearDown() override
    {
        go_on();
        m_stop_buffer.reset();
        m_stopper.reset();
        test_prio::TearDown();
    }

    /* No page is there, and another initiator has stopped the service */
    void stop_by_another()
    {
        config_t config = m_config; /* All of the process have one budget */
        config.erase("MAX_TRIES");
        m_stopper.reset(new entity(config));
        m_stop_buffer.reset(new paged_buffer(*m_stopper, 65536));
        uct_ep_h ep    = m_stopper->connect(m_b->address());
        uct_rkey_t key = m_stopper->unpack(m_remote->packed_key());
        uct_iov_t iov  = {m_stop_buffer->ptr(), 20000, m_stop_buffer->memh(), 0,
                          1};

        m_a->add_progress(m_stopper.get());
        m_remote->evict(0, size);
        page_table_gate_arm(m_remote->table(), GATE_MAP, m_remote->ptr(huge));
        ASSERT_EQ(UCS_INPROGRESS, m_stopper->retry([&]() {
            return uct_ep_put_zcopy(ep, &iov, 1, m_remote->address(huge), key,
                                    &m_stopped);
        }));
        m_stopper->wait_alone([&]() {
            return page_table_gate_wait(m_remote->table(), GATE_MAP, 1) == 0;
        });
    }

    std::unique_ptr<entity>       m_stopper;
    std::unique_ptr<paged_buffer> m_stop_buffer;
    completion                    m_stopped;
};

TEST_F(test_prio_copy, assist_passes_copies)
{
    completion large, got;

    ASSERT_NO_FATAL_FAILURE(stop_by_another());
    uint64_t requests = counter("svc_requests");
    ASSERT_EQ(UCS_INPROGRESS, start_large(PUT_ZCOPY, &large));
    progress_all();
    EXPECT_LT(0u, counter("assist_store"));
    EXPECT_LT(requests, counter("svc_requests"));
    requests = counter("svc_requests");
    ASSERT_EQ(UCS_INPROGRESS, start_small(GET_BCOPY, size - 4096, &got));
    progress_all();
    EXPECT_EQ(1u, counter("assist_small"));
    EXPECT_EQ(requests + 1, counter("svc_requests"));

    go_on();
    m_a->wait([&]() { return got.done; });
    EXPECT_FALSE(large.done);
    m_a->wait([&]() { return large.done && m_stopped.done; });
    EXPECT_EQ(UCS_OK, large.status);
    m_a->flush(m_ab);
    EXPECT_EQ(0, memcmp(m_local->ptr(), m_remote->ptr(), huge));
}

/* Replies to the requests of copies, by several endpoints, hold the slots for
 * data that large operations may have */
TEST_F(test_prio_copy, slots_are_left)
{
    std::vector<completion> large(6);
    size_t place  = size - 4096;
    uct_iov_t iov = {m_local->ptr(place), 4000, m_local->memh(), 0, 1};
    std::vector<uct_ep_h> eps;
    completion put;

    for (size_t i = 0; i <= large.size(); ++i) {
        completion get;

        eps.push_back(m_a->connect(m_b->address()));
        m_a->wire_up(eps[i], m_local->ptr(), m_remote->address(other), m_rkey);
        /* Also the connection of large operations */
        ASSERT_EQ(UCS_INPROGRESS, start_large(GET_ZCOPY, &get, eps[i]));
        m_a->wait([&]() { return get.done; });
    }
    ASSERT_NO_FATAL_FAILURE(stop_by_another());
    for (size_t i = 0; i < large.size(); ++i) {
        ASSERT_EQ(UCS_INPROGRESS, start_large(GET_ZCOPY, &large[i], eps[i]));
    }
    progress_all();
    EXPECT_LT(0u, counter("assist_fetch"));
    ASSERT_EQ(UCS_INPROGRESS,
              uct_ep_put_zcopy(eps.back(), &iov, 1, m_remote->address(place),
                               m_rkey, &put));

    go_on();
    for (completion &comp : large) {
        m_a->wait([&]() { return comp.done; });
        EXPECT_EQ(UCS_OK, comp.status);
    }
    m_a->wait([&]() { return put.done && m_stopped.done; });
    EXPECT_EQ(0, memcmp(m_local->ptr(place), m_remote->ptr(place), 4000));
    EXPECT_EQ(0, memcmp(m_local->ptr(), m_remote->ptr(), huge));
}

/* The schedule of large operations, without the limits of resources */
class test_prio_sched : public test_prio {
protected:
    static constexpr size_t slice = 256 << 10;

    test_prio_sched()
    {
        m_config["SLICE"]       = "256k";
        m_config["BUSY_SLICE"]  = "64k";
        m_config["TX_QUOTA"]    = "0";
        m_config["TIMEOUT"]     = "20ms"; /* Of an endpoint to a dead peer */
        m_config["RETRY_COUNT"] = "3";
    }

    /* Runs a large operation. Returns the number of its slices. */
    uint64_t run_large(op_t op, const std::function<void()> &between)
    {
        uint64_t slices = counter("nic_slices");
        completion comp;

        EXPECT_EQ(UCS_INPROGRESS, start_large(op, &comp));
        m_a->wait([&]() {
            between();
            return comp.done;
        });
        EXPECT_EQ(UCS_OK, comp.status);
        return counter("nic_slices") - slices;
    }
};

/* So are those beside small requests of a peer that are served. The service's
 * own thread executes them, so each call of progress sees another one. */
TEST_F(test_prio_sched, slices_are_short_while_peers_are_served)
{
    buffer memory(m_a->md(), 4096);
    uct_rkey_t rkey = m_b->unpack(memory.packed_key());
    uint64_t alone  = huge / slice;
    uint64_t served = 0;

    m_b->wire_up(m_ba, &served, memory.address(), rkey);
    EXPECT_EQ(alone, run_large(GET_ZCOPY, []() {}));
    EXPECT_LT(2 * alone, run_large(GET_ZCOPY, [&]() {
        ++served;
        EXPECT_EQ(UCS_OK, uct_ep_put_short(m_ba, &served, sizeof(served),
                                           memory.address(), rkey));
        m_b->wait_alone([&]() {
            return *memory.ptr<volatile uint64_t>() == served;
        });
    }));
    m_b->flush(m_ba);
}

/* Each call of progress with slices in flight may take long, so each one polls
 * the service. Others do so at intervals, if they have work of their own. */
TEST_F(test_prio_sched, service_is_polled_beside_slices)
{
    buffer memory(m_a->md(), 4096);
    uct_rkey_t rkey = m_b->unpack(memory.packed_key());
    uint64_t value  = 0;

    hook_start(m_a->md(), m_a->iface()); /* Before its service's thread */
    m_b->wire_up(m_ba, &value, memory.address(), rkey);
    for (op_t op : {PUT_ZCOPY, GET_ZCOPY}) {
        unsigned calls = 0;
        completion comp;

        ASSERT_EQ(UCS_INPROGRESS, start_large(op, &comp));
        await([&]() {
            unsigned polls  = hook_service_polls();
            bool has_slices = iface_has_slices(m_a->iface());

            m_a->progress();
            calls += has_slices;
            /* The last completion of the call ends the last slice */
            if (has_slices && iface_has_slices(m_a->iface())) {
                EXPECT_LT(polls, hook_service_polls());
            }
            return comp.done;
        });
        EXPECT_LT(4u, calls);
    }
}

/* Small operations that are posted again within their completions, as many as
 * there is room for, so that a large one finds nothing free when it is its
 * turn */
class test_prio_flood : public test_prio,
                        public ::testing::WithParamInterface<named_config> {
protected:
    struct small_op : uct_completion_t {
        test_prio_flood *test;
        bool            is_open;
        uint64_t        result;
    };

    test_prio_flood()
    {
        m_config["TX_QUOTA"] = "0";
        set(GetParam().second);
    }

    void SetUp() override
    {
        test_prio::SetUp();
        m_eps = {m_ab};
        while (GetParam().second.count("MAX_PINNED") && (m_eps.size() < 8)) {
            m_eps.push_back(m_a->connect(m_b->address()));
            m_a->wire_up(m_eps.back(), m_local->ptr(), m_remote->address(other),
                         m_rkey);
        }
    }

    void TearDown() override
    {
        m_goes_on = false;
        test_prio::TearDown();
    }

    static void on_small(uct_completion_t *comp)
    {
        small_op *op = static_cast<small_op*>(comp);

        op->is_open = false;
        ++op->test->m_num_small;
        op->test->refill();
    }

    ucs_status_t post(small_op &op)
    {
        op.count  = 1;
        op.status = UCS_OK;
        op.func   = on_small;
        uct_ep_h ep = m_eps[(m_turn / 2) % m_eps.size()];
        if (++m_turn % 2) {
            return uct_ep_get_bcopy(ep, unpack_to, &op.result, 8,
                                    m_remote->address(other), m_rkey, &op);
        }
        return uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_ADD, 1, &op.result,
                                     m_remote->address(other + 64), m_rkey,
                                     &op);
    }

    void refill()
    {
        unsigned refused = 0;

        for (auto &op : m_small) {
            while (m_goes_on && !op.is_open &&
                   (refused < 2 * m_eps.size())) {
                op.test    = this;
                op.is_open = post(op) == UCS_INPROGRESS;
                refused    = op.is_open ? 0 : refused + 1;
            }
        }
    }

    std::vector<uct_ep_h> m_eps;
    std::vector<small_op> m_small = std::vector<small_op>(256);
    bool                  m_goes_on   = true;
    unsigned              m_turn      = 0;
    uint64_t              m_num_small = 0;
};

/* They do not keep a large operation out for ever */
TEST_P(test_prio_flood, large_goes_on)
{
    for (op_t large : {PUT_ZCOPY, GET_ZCOPY}) {
        completion comp;
        unsigned calls = 0; /* That find something: other threads may be late */

        m_goes_on   = true;
        m_num_small = 0;
        ASSERT_EQ(UCS_INPROGRESS, start_large(large, &comp));
        refill();
        while (!comp.done && (calls < 20000)) {
            unsigned count = m_a->progress();

            count += m_b->progress();
            calls += count > 0;
        }
        EXPECT_TRUE(comp.done);
        EXPECT_LT(calls / 2, m_num_small); /* They went on all the time */
        m_goes_on = false;
        m_a->wait([&]() { return comp.done; });
        m_a->flush(m_ab);
    }
}

static const named_config flood_settings[] = {
    {"default", {}},
    {"queue_of_8", {{"SVC_QUEUE_LEN", "8"}}},
    {"few_slices", {{"MAX_PINNED", "768k"}}},
    {"shared", {{"BULK_QP", "no"}}}
};

INSTANTIATE_TEST_SUITE_P(all, test_prio_flood,
                         ::testing::ValuesIn(flood_settings), config_name);
