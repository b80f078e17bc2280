/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <cstring>
#include <random>

/*
 * Random small and large operations of several endpoints. Pages vanish,
 * endpoints are canceled and destroyed with what they have begun, and
 * completions post operations and destroy endpoints. Whatever happens, each
 * operation ends once, and nothing that it held is lost: in the end, large and
 * small operations still go on.
 */
class test_prio_random : public test_op,
                         public ::testing::WithParamInterface<named_config> {
protected:
    static constexpr size_t half     = 1 << 20; /* Source of gets; then puts */
    static constexpr size_t longest  = 300000;
    static constexpr size_t max_open = 40;
    static constexpr size_t num_eps  = 4;

    enum kind_t { PUT, GET, GET_SMALL, PUT_SMALL, ADD };

    struct operation : uct_completion_t {
        test_prio_random *test;
        kind_t           kind;
        size_t           ep, offset, length;
        char             *buffer;
        bool             is_open = false;
        uint64_t         old;
    };

    void SetUp() override
    {
        test_op::SetUp();
        m_random.seed(m_random_seed = std::random_device()());
        m_local.reset(new paged_buffer(*m_a, max_open * longest));
        m_remote.reset(new paged_buffer(*m_b, 2 * half + page_size));
        m_rkey = m_a->unpack(m_remote->packed_key());
        for (size_t i = 0; i < half; ++i) {
            *m_remote->ptr(i) = pattern(i);
        }
        memset(m_remote->ptr(half), 0, half + page_size);
        m_eps.assign(num_eps, nullptr);
        m_ops.resize(max_open);
        for (size_t i = 0; i < max_open; ++i) {
            m_ops[i].test   = this;
            m_ops[i].buffer = m_local->ptr(i * longest);
            m_ops[i].func   = on_done;
        }
    }

    void TearDown() override
    {
        m_goes_on = false;
        for (size_t i = 0; i < m_eps.size(); ++i) {
            destroy(i);
        }
        test_op::TearDown();
    }

    test_prio_random()
    {
        m_config["ORDER"] = "ucp";
        set(GetParam().second);
    }

    static char pattern(size_t offset)
    {
        return (char)(offset * 2654435761u >> 13);
    }

    size_t random(size_t count) { return m_random() % count; }

    static void on_done(uct_completion_t *comp)
    {
        operation *op          = static_cast<operation*>(comp);
        test_prio_random *test = op->test;

        EXPECT_TRUE(op->is_open); /* Once */
        op->is_open = false;
        ++test->m_num_done;
        test->check(*op);
        if (test->m_goes_on && !test->random(8)) {
            test->start_one();
        }
        if (test->m_goes_on && !test->random(400)) {
            test->destroy(test->random(num_eps));
        }
    }

    void check(const operation &op)
    {
        if (op.status == UCS_ERR_CANCELED) {
            EXPECT_TRUE(m_is_ending[op.ep]);
            ++m_num_canceled;
            return;
        }
        EXPECT_EQ(UCS_OK, op.status) << ucs_status_string(op.status);
        if ((op.kind == GET) || (op.kind == GET_SMALL)) {
            for (size_t i = 0; i < op.length; ++i) {
                if (op.buffer[i] != pattern(op.offset + i)) {
                    ADD_FAILURE() << "byte " << i << " of " << op.length
                                  << " from " << op.offset;
                    return;
                }
            }
        }
    }

    ucs_status_t post(operation &op)
    {
        uct_iov_t iov    = {op.buffer, op.length, nullptr, 0, 1};
        uct_ep_h ep      = m_eps[op.ep];
        uint64_t address = m_remote->address(op.offset);

        switch (op.kind) {
        case PUT:
        case PUT_SMALL:
            return uct_ep_put_zcopy(ep, &iov, 1, address, m_rkey, &op);
        case GET:
            return uct_ep_get_zcopy(ep, &iov, 1, address, m_rkey, &op);
        case GET_SMALL:
            return uct_ep_get_bcopy(ep, unpack_to, op.buffer, op.length,
                                    address, m_rkey, &op);
        default:
            return uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_ADD, 1, &op.old,
                                         m_remote->address(2 * half), m_rkey,
                                         &op);
        }
    }

    void choose(operation &op)
    {
        static const kind_t kinds[] = {PUT, PUT, PUT, GET, GET, GET, GET_SMALL,
                                       GET_SMALL, PUT_SMALL, ADD};
        bool is_small;

        op.kind   = kinds[random(10)];
        is_small  = (op.kind == GET_SMALL) || (op.kind == PUT_SMALL);
        op.length = is_small ? 1 + random(m_a->attr().cap.get.max_bcopy) :
                               8193 + random(longest - 8193);
        op.offset = random(half - op.length);
        if ((op.kind == PUT) || (op.kind == PUT_SMALL)) {
            for (size_t i = 0; i < op.length; ++i) {
                op.buffer[i] = pattern(op.offset + i);
            }
            op.offset += half;
        }
        op.ep     = random(num_eps);
        op.count  = 1;
        op.status = UCS_OK;
    }

    void start_one()
    {
        for (auto &op : m_ops) {
            if (!op.is_open) {
                choose(op);
                if (m_eps[op.ep] != nullptr) {
                    op.is_open = true;
                    op.is_open = post(op) == UCS_INPROGRESS;
                    m_num_started += op.is_open;
                }
                return;
            }
        }
    }

    void destroy(size_t i)
    {
        uct_ep_h ep = m_eps[i];

        if (ep == nullptr) {
            return;
        }
        m_eps[i]       = nullptr;
        m_is_ending[i] = true;
        m_a->disconnect(ep);
        for (auto &op : m_ops) {
            EXPECT_FALSE(op.is_open && (op.ep == i) && (m_eps[i] == nullptr));
        }
    }

    void cancel(size_t i)
    {
        if (m_eps[i] != nullptr) {
            m_is_ending[i] = true;
            uct_ep_flush(m_eps[i], UCT_FLUSH_FLAG_CANCEL, nullptr);
        }
    }

    void one()
    {
        size_t i = random(num_eps);

        if (m_eps[i] == nullptr) {
            m_is_ending[i] = false;
            m_eps[i]       = m_a->connect(m_b->address());
        }
        start_one();
        if (!random(3)) {
            uct_ep_am_short(m_eps[i], 1, 0, nullptr, 0);
        }
        if (!random(4) && (GetParam().second.count("MONITOR") == 0)) {
            m_remote->evict(random(2 * half), 1, 1 + random(3));
        }
        if (!random(300)) {
            cancel(random(num_eps));
        }
        if (!random(200)) {
            destroy(random(num_eps));
        }
        for (size_t count = random(4); count > 0; --count) {
            random(3) ? m_a->progress() : m_b->progress();
        }
    }

    /* On a new endpoint; the others are gone */
    void expect_works()
    {
        completion large;
        uct_iov_t iov = {m_local->ptr(), half, nullptr, 0, 1};

        m_goes_on = false;
        for (size_t i = 0; i < num_eps; ++i) {
            destroy(i);
        }
        for (auto &op : m_ops) {
            EXPECT_FALSE(op.is_open);
        }
        m_a->progress_often(100);
        uct_ep_h ep = m_a->connect(m_b->address());
        for (size_t i = 0; i < half; ++i) {
            *m_local->ptr(i) = (char)(i % 251);
        }
        ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
            return uct_ep_put_zcopy(ep, &iov, 1, m_remote->address(half),
                                    m_rkey, &large);
        }));
        m_a->wait([&]() { return large.done; });
        EXPECT_EQ(UCS_OK, large.status);
        EXPECT_EQ(0, memcmp(m_local->ptr(), m_remote->ptr(half), half));
        m_a->flush(ep);
    }

    std::mt19937_64             m_random;
    unsigned                    m_random_seed = 0;
    std::vector<uct_ep_h>       m_eps;
    std::vector<operation>      m_ops;
    bool                        m_is_ending[num_eps] = {};
    bool                        m_goes_on   = true;
    unsigned                    m_num_started = 0, m_num_done = 0;
    unsigned                    m_num_canceled = 0;
};

TEST_P(test_prio_random, nothing_is_lost)
{
    const unsigned count = is_tsan ? 200 : 1500;

    printf("seed %u\n", m_random_seed); /* In case the test does not end */
    fflush(stdout);
    SCOPED_TRACE(testing::Message() << "seed " << m_random_seed);
    for (int i = 0; (i < 100000) && !HasFailure() &&
                    ((m_num_done < count) || (m_num_canceled == 0)); ++i) {
        one();
    }
    expect_works();
    EXPECT_EQ(m_num_started, m_num_done);
    EXPECT_LE(count, m_num_done);
    EXPECT_LT(0u, m_num_canceled);
}

static const named_config settings[] = {
    {"default", {}},
    {"least_quota", {{"TX_QUOTA", "1"}, {"BUSY_SLICE", "4k"}}},
    {"no_classes", {{"PRIO_MAX", "0"}}},
    {"all_small", {{"PRIO_MAX", "1m"}}},
    {"short_queue", {{"SVC_QUEUE_LEN", "2"}}},
    {"little_quota", {{"TX_QUOTA", "100000"}}},
    {"one_try", {{"MAX_TRIES", "1"}}},
    {"copy", {{"MONITOR", "copy"}}},
    {"many_slices", {{"MAX_PINNED", "32m"}}},
    {"shared", {{"BULK_QP", "no"}}},
    /* The smallest of everything */
    {"few", {{"MAX_PINNED", "800k"}, {"TX_QUEUE_LEN", "2"},
             {"SVC_QUEUE_LEN", "2"}, {"TX_CQ_LEN", "16"}, {"SVC_SLOTS", "1"},
             {"TX_MAX_BUFS", "1"}, {"RX_MAX_BUFS", "2"}, {"RX_MAX_BATCH", "1"},
             {"MAX_INLINE", "64"}}},
    {"short_slots", {{"MAX_PINNED", "64k"}}}
};

INSTANTIATE_TEST_SUITE_P(all, test_prio_random, ::testing::ValuesIn(settings),
                         config_name);
