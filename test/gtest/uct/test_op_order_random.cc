/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op_order.h"

#include <algorithm>
#include <deque>
#include <random>

/*
 * Random operations of one endpoint on a few pages, many of which overlap,
 * while pages vanish. Operations wait, are repeated, or are executed by
 * software. The result must be that of one operation after the other.
 */
class test_op_order_random
    : public test_op_order,
      public ::testing::WithParamInterface<named_config> {
protected:
    static constexpr size_t area       = 200000;
    static constexpr size_t place_size = 150000;
    static constexpr size_t max_open   = 24;

    struct operation {
        completion  comp;
        size_t      place;     /* In the buffer at the initiator */
        std::string expected;  /* Expected data of a get */
        uint64_t    old = 0, expected_old = 0;
        char        *buffer = nullptr;
        bool        is_fetch = false;
    };

    void SetUp() override
    {
        uct_pair_test::SetUp();
        m_random.seed(m_random_seed = std::random_device()());
        m_local.reset(new paged_buffer(*m_a, max_open * place_size));
        m_remote.reset(new paged_buffer(*m_b, area));
        m_rkey  = m_a->unpack(m_remote->packed_key());
        m_local->fill(m_seed++);
        m_remote->fill(m_seed++);
        if (GetParam().second.count("MONITOR") == 0) {
            run(PUT_ZCOPY, 0, 0, area); /* Now the pages have states */
            run(GET_ZCOPY, 0, 0, area);
        }
        m_model.assign(m_remote->ptr(), area);
        for (size_t i = 0; i < max_open; ++i) {
            m_places.push_back(i * place_size);
        }
    }

    test_op_order_random() { set(GetParam().second); }

    size_t random(size_t count) { return m_random() % count; }

    /* Mostly in one area, so that many overlap */
    size_t random_offset(size_t bytes)
    {
        size_t offset = random(4) ? random(20000) : random(area);
        return std::min(offset, area - bytes);
    }

    void lose_pages()
    {
        if (GetParam().second.count("MONITOR")) {
            return;
        }
        if (!random(2)) {
            if (!random(8)) {
                page_table_fault_clear(m_remote->table());
            }
            size_t page = random_offset(1) & ~(page_size - 1);
            if (random(3)) {
                m_remote->evict(page, 1, 1 + random(3));
            } else {
                page_fault_t fault = {m_remote->ptr(page),
                                      (uint32_t)(1 + random(2)), 1,
                                      (uint32_t)(64 * random(64)),
                                      (uint32_t)random(3), 0};
                /* The fault plan may be full */
                page_table_fault(m_remote->table(), &fault);
            }
        }
        if (!random(4)) {
            m_local->evict(random(area), 1, 1 + random(3));
        }
    }

    static size_t pack(void *dest, void *arg)
    {
        auto *source = static_cast<std::pair<char*, size_t>*>(arg);
        memcpy(dest, source->first, source->second);
        return source->second;
    }

    void put(operation &op)
    {
        size_t bytes = 1 + (random(2) ? random(200) : random(place_size));
        unsigned how = random(3);
        ssize_t status;

        bytes         = std::min(bytes,
                                 (how == 0) ? 150 :
                                 (how == 1) ? m_a->attr().cap.put.max_bcopy :
                                              place_size);
        size_t offset = random_offset(bytes);
        uct_iov_t iov = {op.buffer, bytes, m_local->memh(), 0, 1};
        auto source   = std::make_pair(op.buffer, bytes);
        for (size_t i = 0; i < bytes; i += 1 + i / 8) {
            op.buffer[i] = (char)m_random();
        }
        do {
            if (how == 0) {
                status = uct_ep_put_short(m_ab, op.buffer, bytes,
                                          m_remote->address(offset), m_rkey);
            } else if (how == 1) {
                status = uct_ep_put_bcopy(m_ab, pack, &source,
                                          m_remote->address(offset), m_rkey);
            } else {
                status = uct_ep_put_zcopy(m_ab, &iov, 1,
                                          m_remote->address(offset), m_rkey,
                                          &op.comp);
            }
        } while (again(status));
        op.comp.done = (how != 2);
        m_model.replace(offset, bytes, op.buffer, bytes);
    }

    void get(operation &op)
    {
        bool bcopy    = random(2);
        size_t bytes  = 1 + (random(2) ? random(200) : random(place_size));
        bytes         = std::min(bytes, bcopy ?
                                 m_a->attr().cap.get.max_bcopy : place_size);
        size_t offset = random_offset(bytes);
        uct_iov_t iov = {op.buffer, bytes, m_local->memh(), 0, 1};
        ucs_status_t status;

        op.expected = m_model.substr(offset, bytes);
        do {
            status = bcopy ?
                     uct_ep_get_bcopy(m_ab, unpack_to, op.buffer, bytes,
                                      m_remote->address(offset), m_rkey,
                                      &op.comp) :
                     uct_ep_get_zcopy(m_ab, &iov, 1, m_remote->address(offset),
                                      m_rkey, &op.comp);
        } while (again(status));
    }

    void atomic(operation &op)
    {
        size_t offset  = random_offset(8) & ~size_t(7);
        uint64_t value = m_random(), compare;
        unsigned how   = random(3);
        ucs_status_t status;

        memcpy(&op.expected_old, &m_model[offset], 8);
        compare = random(2) ? op.expected_old : value;
        do {
            status = (how == 0) ?
                     uct_ep_atomic64_post(m_ab, UCT_ATOMIC_OP_ADD, value,
                                          m_remote->address(offset), m_rkey) :
                     (how == 1) ?
                     uct_ep_atomic64_fetch(m_ab, UCT_ATOMIC_OP_ADD, value,
                                           &op.old, m_remote->address(offset),
                                           m_rkey, &op.comp) :
                     uct_ep_atomic_cswap64(m_ab, compare, value,
                                           m_remote->address(offset), m_rkey,
                                           &op.old, &op.comp);
        } while (again(status));
        op.comp.done = (how == 0);
        op.is_fetch  = (how != 0);
        value        = (how != 2) ? op.expected_old + value :
                       (op.expected_old == compare) ? value : op.expected_old;
        m_model.replace(offset, 8, (char*)&value, 8);
    }

    /* Removes all complete operations, and waits until at most this many are
     * left */
    void reap(size_t left)
    {
        m_a->wait([&]() {
            for (size_t i = 0; i < m_open.size();) {
                if (!m_open[i]->comp.done) {
                    ++i;
                    continue;
                }
                check(*m_open[i]);
                m_places.push_back(m_open[i]->place);
                m_open.erase(m_open.begin() + i);
            }
            return m_open.size() <= left;
        });
    }

    void one()
    {
        std::unique_ptr<operation> op(new operation);

        lose_pages();
        op->place  = m_places.front();
        op->buffer = m_local->ptr(op->place);
        m_places.pop_front();
        switch (random(5)) {
        case 0:
        case 1:
            put(*op);
            break;
        case 2:
        case 3:
            get(*op);
            break;
        default:
            atomic(*op);
        }
        m_open.push_back(std::move(op));
        for (size_t i = random(4) ? 0 : random(6); i > 0; --i) {
            random(2) ? m_a->progress() : m_b->progress();
        }
        reap(max_open - 1);
    }

    std::mt19937_64                        m_random;
    unsigned                               m_random_seed = 0;
    std::string                            m_model;

private:
    bool again(ssize_t status)
    {
        if (status == UCS_ERR_NO_RESOURCE) {
            m_a->progress();
            m_b->progress();
            return true;
        }
        EXPECT_FALSE(status < 0) << ucs_status_string((ucs_status_t)status);
        return false;
    }

    void check(const operation &op)
    {
        EXPECT_EQ(UCS_OK, op.comp.status);
        if (!op.expected.empty()) {
            EXPECT_EQ(0, memcmp(op.expected.data(), op.buffer,
                                op.expected.size()))
                    << "a get of " << op.expected.size();
        }
        if (op.is_fetch) {
            EXPECT_EQ(op.expected_old, op.old);
        }
    }

    std::deque<size_t>                     m_places;
    std::deque<std::unique_ptr<operation>> m_open;
};

TEST_P(test_op_order_random, equals_sequential_execution)
{
#ifdef NPRDMA_TEST_TSAN
    const int count = 300;
#else
    const int count = 2500;
#endif

    printf("seed %u\n", m_random_seed); /* In case the test does not end */
    fflush(stdout);
    SCOPED_TRACE(testing::Message() << "seed " << m_random_seed);
    for (int i = 0; (i < count) && !HasFailure(); ++i) {
        one();
        if (!random(40)) {
            ASSERT_EQ(UCS_OK, uct_ep_fence(m_ab, 0));
        }
        if (!random(60)) {
            m_a->flush(m_ab);
            ASSERT_EQ(0, memcmp(m_model.data(), m_remote->ptr(), area));
            reap(0);
        }
    }
    reap(0);
    m_a->flush(m_ab);
    EXPECT_EQ(0, memcmp(m_model.data(), m_remote->ptr(), area));
    EXPECT_GT(counter("held_overlaps"), count / 25u);
    EXPECT_GT(counter("held_atomics"), count / 25u);
    if (GetParam().second.count("MONITOR") == 0) {
        EXPECT_GT(counter("held_requests"), count / 250u);
        EXPECT_GT(counter("redone_slices") + counter("assist_store"),
                  count / 250u);
    }
}

static const named_config settings[] = {
    {"default", {{"ORDER", "rc"}}},
    {"ucp", {{"ORDER", "ucp"}}},
    {"atomic", {}},
    {"one_try", {{"MAX_TRIES", "1"}}},
    {"copy", {{"MONITOR", "copy"}}},
    {"short_slots", {{"MAX_PINNED", "64k"}}}
};

INSTANTIATE_TEST_SUITE_P(all, test_op_order_random,
                         ::testing::ValuesIn(settings), config_name);
