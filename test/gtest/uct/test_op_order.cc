/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op_order.h"

extern "C" {
#include "uct/ib/nprdma/rma/nprdma_order.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"
}

void test_op_order::renew(op_t op, unsigned times, uint32_t restore)
{
    page_table_fault_clear(m_remote->table());
    m_local->fill(m_seed++);
    m_remote->fill(m_seed++);
    for (unsigned i = 0; i < times; ++i) {
        m_remote->fault(word, view(op, false), 1, 0, restore);
    }
}

void test_op_order::serve()
{
    idle([&]() { m_b->progress(); });
}

void test_op_order::reconnect()
{
    m_a->disconnect(m_ab);
    m_ab = m_a->connect(m_b->address());
    page_table_fault_clear(m_remote->table());
    run(PUT_ZCOPY, 0, 0, size);
}

/* ---- overlap ---- */

/* The later operation is accepted at once, and held. The result is that of one
 * after the other. */
TEST_F(test_op_order, overlapping_operations_wait)
{
    static const struct {
        op_t   first, later;
        size_t from, bytes; /* Of the later one */
    } cases[] = {{PUT_ZCOPY, PUT_ZCOPY, 0, length},
                 {PUT_ZCOPY, PUT_ZCOPY, word + 3000, length},
                 {PUT_ZCOPY, PUT_ZCOPY, word, 8}, /* A request */
                 {PUT_ZCOPY, GET_BCOPY, word, 4000},
                 {PUT_ZCOPY, GET_COPIED, word, 4000},
                 {PUT_ZCOPY, GET_ZCOPY, word, length - word},
                 {GET_ZCOPY, PUT_ZCOPY, 0, length},
                 {GET_ZCOPY, PUT_ZCOPY, word, 8}};
    uint64_t held = 0;

    for (auto &it : cases) {
        for (unsigned times = 1; times <= 5; ++times) {
            completion first, later;

            renew(it.first, times);
            std::string local(m_local->ptr(), size);
            std::string remote(m_remote->ptr(), size);
            auto apply = [&](op_t op, size_t at, size_t from, size_t bytes) {
                if (op == PUT_ZCOPY) {
                    remote.replace(from, bytes, local, at, bytes);
                } else {
                    local.replace(at, bytes, remote, from, bytes);
                }
            };

            start(it.first, 0, 0, length, &first);
            apply(it.first, 0, 0, length);
            ASSERT_FALSE(first.done);
            start(it.later, second, it.from, it.bytes, &later);
            apply(it.later, second, it.from, it.bytes);
            EXPECT_EQ(++held, counter("held_overlaps"));
            serve();
            m_a->wait([&]() { return first.done && later.done; });
            m_a->flush(m_ab);
            EXPECT_EQ(0, memcmp(local.data(), m_local->ptr(), size));
            EXPECT_EQ(0, memcmp(remote.data(), m_remote->ptr(), size));
        }
    }
}

/* ---- the NIC and the target's software ---- */

TEST_F(test_op_order, get_waits_for_request)
{
    for (uint64_t i = 1; i <= 60; ++i) {
        op_t op = (i % 2) ? GET_ZCOPY : GET_BCOPY;
        completion got;
        uint64_t value;

        renew(op, 0);
        *remote_word(word) = 0;
        ASSERT_EQ(UCS_OK, m_a->retry([&]() {
            return (i % 3) ? put_word(word, i) : add_word(word, i);
        }));
        start(op, 0, word, (i % 2) ? 20000 : 4000, &got);
        m_a->wait([&]() { return got.done; });
        memcpy(&value, m_local->ptr(), sizeof(value));
        EXPECT_EQ(i, value);
    }
    EXPECT_GT(counter("held_requests"), 0u);
}

/* The target's service is slower than the initiator */
class test_op_order_many : public test_op_order {
protected:
    test_op_order_many()
    {
        m_config["SVC_SLOTS"]     = "256";
        m_config["SVC_QUEUE_LEN"] = "256";
    }
};

/* More requests than the order remembers. None is executed while they are
 * posted, because the service's thread has to wake up first. */
TEST_F(test_op_order_many, get_waits_for_many_requests)
{
    for (uint64_t i = 1; i <= 60; ++i) {
        uint64_t value;
        completion got;

        renew(GET_BCOPY, 0);
        ASSERT_EQ(UCS_OK, m_a->retry([&]() { return put_word(word, i); }));
        for (size_t k = 0; k < 100; ++k) {
            /* The get's address lies between theirs, so that it has to be
             * compared with them */
            while (put_word((k % 2) ? other : 0, i) == UCS_ERR_NO_RESOURCE) {
                m_a->progress();
            }
        }
        start(GET_BCOPY, 0, word, 8, &got);
        m_a->wait([&]() { return got.done; });
        memcpy(&value, m_local->ptr(), sizeof(value));
        EXPECT_EQ(i, value);
        m_a->flush(m_ab);
    }
    EXPECT_GT(counter("held_requests"), 0u);
}

/* ---- atomics ---- */

/* An atomic may release a lock. Earlier puts, to whatever address, are visible
 * when it is. */
TEST_F(test_op_order, atomic_waits_for_puts)
{
    for (uint64_t i = 1; i <= 60; ++i) {
        uint64_t result;
        completion put, fetched;

        start_missing(PUT_ZCOPY, &put, 1 + (i % 5));
        *remote_word(other) = 0;
        if (i % 2) {
            ASSERT_EQ(UCS_OK, add_word(other, i));
        } else {
            ASSERT_EQ(UCS_INPROGRESS, fetch_add(other, i, &result, &fetched));
        }
        serve();
        m_a->wait([&]() {
            m_b->progress();
            if (*remote_word(other) == 0) {
                return false;
            }
            EXPECT_TRUE(arrived(0, 0, length)) << i;
            return true;
        });
        m_a->flush(m_ab);
        EXPECT_EQ(i, *remote_word(other));
    }
}

/* The next owner of the lock writes: an earlier get must not return its data */
TEST_F(test_op_order, atomic_waits_for_gets)
{
    for (uint64_t i = 1; i <= 60; ++i) {
        completion got;

        renew(GET_ZCOPY, 1 + (i % 5));
        *remote_word(other) = 0;
        std::string before(m_remote->ptr(), length);
        start(GET_ZCOPY, 0, 0, length, &got);
        ASSERT_EQ(UCS_OK, add_word(other, i));
        serve();
        m_a->wait([&]() {
            m_b->progress();
            return *remote_word(other) == i;
        });
        memset(m_remote->ptr(), 0xdb, length);
        m_a->flush(m_ab);
        EXPECT_EQ(0, memcmp(before.data(), m_local->ptr(), length)) << i;
    }
}

class test_op_order_relaxed : public test_op_order {
protected:
    test_op_order_relaxed() { m_config["ORDER"] = "ucp"; }
};

TEST_F(test_op_order_relaxed, atomic_waits_for_overlapping_put)
{
    for (uint64_t i = 1; i <= 30; ++i) {
        completion op;
        uint64_t before;

        start_missing((i % 2) ? PUT_ZCOPY : GET_ZCOPY, &op, 1 + (i % 5));
        memcpy(&before, ((i % 2) ? m_local : m_remote)->ptr(word),
               sizeof(before));
        ASSERT_EQ(UCS_OK, add_word(word, i));
        serve();
        m_a->flush(m_ab);
        EXPECT_EQ(before + i, *remote_word(word));
        if ((i % 2) == 0) {
            EXPECT_EQ(0, memcmp(&before, m_local->ptr(word), sizeof(before)));
        }
    }
    EXPECT_EQ(30u, counter("held_atomics"));
}

/* ---- operations that pass ---- */

TEST_F(test_op_order, disjoint_operations_pass)
{
    completion put, large;
    uint64_t requests;

    start_missing(PUT_ZCOPY, &put);
    requests = counter("svc_requests");
    *remote_word(other) = 0;
    ASSERT_EQ(UCS_OK, put_word(word, 1));  /* Held */
    ASSERT_EQ(UCS_OK, put_word(other, 2)); /* Passes both operations */
    EXPECT_EQ(requests + 1, counter("svc_requests"));
    m_b->wait_alone([&]() { return *remote_word(other) == 2; });
    uint64_t slices = counter("nic_slices");
    start(PUT_ZCOPY, second, second, 20000, &large);
    EXPECT_EQ(slices + 1, counter("nic_slices"));
    EXPECT_FALSE(put.done);
    EXPECT_EQ(1u, counter("held_overlaps"));
    m_a->flush(m_ab);
    EXPECT_EQ(1u, *remote_word(word));
}

/* A range at the end of the address space does not wrap */
TEST(test_op_order_area, ends_of_the_address_space)
{
    uct_nprdma_area_t none, first = uct_nprdma_area(0, 1);
    uct_nprdma_area_t end  = uct_nprdma_area(UINT64_MAX, 1);
    uct_nprdma_area_t more = uct_nprdma_area(UINT64_MAX - 3, 100);

    uct_nprdma_area_clear(&none);
    EXPECT_EQ(UINT64_MAX, end.last);
    EXPECT_EQ(UINT64_MAX, more.last);
    EXPECT_TRUE(uct_nprdma_area_overlaps(&end, &more));
    EXPECT_FALSE(uct_nprdma_area_overlaps(&first, &more));
    EXPECT_FALSE(uct_nprdma_area_overlaps(&none, &first));
    EXPECT_FALSE(uct_nprdma_area_overlaps(&none, &end));
}

/* ---- chains ---- */

/* Each operation waits for the one before it, of whatever kind */
TEST_F(test_op_order, chains_keep_program_order)
{
    static const int count = 12;

    for (int turn = 0; turn < 20; ++turn) {
        completion put, large;
        completion comps[count];
        uint64_t old[count], value;

        start_missing(PUT_ZCOPY, &put, 1 + (turn % 5));
        ASSERT_EQ(UCS_OK, put_word(word, 1000));
        for (int i = 0; i < count; ++i) {
            ASSERT_EQ(UCS_INPROGRESS, fetch_add(word, 1, &old[i], &comps[i]));
        }
        completion got;
        start(GET_COPIED, second, word, 8, &got);
        ASSERT_EQ(UCS_OK, put_word(word, 7));
        start(PUT_ZCOPY, second + 16384, 0, 9000, &large);
        ASSERT_EQ(UCS_OK, add_word(word, 3));
        serve();
        m_a->flush(m_ab);
        for (int i = 0; i < count; ++i) {
            EXPECT_TRUE(comps[i].done);
            EXPECT_EQ(1000u + i, old[i]);
        }
        memcpy(&value, m_local->ptr(second), sizeof(value));
        EXPECT_EQ(1000u + count, value);
        memcpy(&value, m_local->ptr(second + 16384 + word), sizeof(value));
        EXPECT_EQ(value + 3, *remote_word(word));
        EXPECT_TRUE(arrived(second + 16384, 0, word));
    }
}

/* Requests that are held while the target's software is busy */
class test_op_order_busy : public test_op_order {
protected:
    static const size_t slow = 147456; /* A page that no other operation uses */

    void SetUp() override
    {
        test_op_order::SetUp();
        m_busy = m_a->connect(m_b->address());
        /* An exported buffer keeps its pages: nothing is populated here while
         * the target's service is held, which is in the same process */
        m_local->packed_key();
        m_a->finish_prefetch();
    }

    void hold()
    {
        m_populated.reset(new completion);
        stop_service(m_busy, slow, m_populated.get());
    }

    void finish()
    {
        m_a->flush(m_ab);
        m_a->wait([&]() { return m_populated->done; });
    }

    /* Starts a put, and a request that has to wait for it and has no completion
     * that would ask the target for a reply.
     *
     * Returns the value that the request's word is going to have. */
    uint64_t start_held(completion *put, uint64_t i)
    {
        uint64_t sent;

        *remote_word(word) = 0;
        start(PUT_ZCOPY, 0, 0, length, put);
        memcpy(&sent, m_local->ptr(word), sizeof(sent));
        EXPECT_EQ(UCS_OK, (i % 2) ? put_word(word, i) : add_word(word, i));
        return (i % 2) ? i : sent + i;
    }

    /* Whether it has happened after a while in which the initiator runs */
    bool happens_early(const std::function<bool()> &has_happened)
    {
        bool result = false;

        idle([&]() {
            m_a->progress();
            result = result || has_happened();
        });
        return result;
    }

    uct_ep_h                    m_busy;
    std::unique_ptr<completion> m_populated;
};

/* A request that is held when a fence begins is executed before the NIC does
 * anything that follows the fence */
TEST_F(test_op_order_busy, fence_waits_until_held_requests_are_executed)
{
    for (uint64_t i = 1; i <= 6; ++i) {
        completion put, got;

        renew(PUT_ZCOPY, 0);
        hold();
        uint64_t value = start_held(&put, i);
        ASSERT_EQ(UCS_OK, uct_ep_fence(m_ab, 0));
        m_a->wait([&]() { return put.done; });

        uct_iov_t iov       = {m_local->ptr(second), 8, m_local->memh(), 0, 1};
        ucs_status_t status = UCS_ERR_NO_RESOURCE;
        auto try_get        = [&]() {
            if (status == UCS_ERR_NO_RESOURCE) {
                status = uct_ep_get_zcopy(m_ab, &iov, 1,
                                          m_remote->address(other), m_rkey,
                                          &got);
            }
            return got.done;
        };
        EXPECT_FALSE(happens_early(try_get));
        go_on();
        m_a->wait(try_get);
        EXPECT_EQ(value, *remote_word(word));
        finish();
    }
    EXPECT_EQ(6u, counter("held_overlaps") + counter("held_atomics"));
}

/* A flush that begins while a request is held ends when that is executed */
TEST_F(test_op_order_busy, flush_waits_until_held_requests_are_executed)
{
    for (uint64_t i = 1; i <= 6; ++i) {
        completion put, flushed;

        renew(PUT_ZCOPY, 0);
        hold();
        uint64_t value = start_held(&put, i);
        ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
            return uct_ep_flush(m_ab, 0, &flushed);
        }));
        m_a->wait([&]() { return put.done; });
        EXPECT_FALSE(happens_early([&]() { return flushed.done; }));
        go_on();
        m_a->wait([&]() { return flushed.done; });
        EXPECT_EQ(value, *remote_word(word));
        finish();
    }
    EXPECT_EQ(6u, counter("held_overlaps") + counter("held_atomics"));
}

/* Held puts have all slots for data that an endpoint may have. Nevertheless
 * there is one for the reply to a get that they wait for. */
TEST_F(test_op_order, puts_leave_slots)
{
    static const size_t get_length = 8000; /* Its reply needs a slot for data */

    for (int turn = 0; turn < 3; ++turn) {
        uct_nprdma_rkey_t no_view = *(uct_nprdma_rkey_t*)m_rkey;
        std::string result(get_length, 0);
        completion put, get;
        uint64_t taken = 0;

        reconnect();
        start_missing(PUT_ZCOPY, &put, 2);
        std::string sent(m_local->ptr(word), get_length);
        no_view.r_rkey = 0; /* The target's software executes the get */
        ASSERT_EQ(UCS_INPROGRESS,
                  uct_ep_get_bcopy(m_ab, unpack_to, &result[0], get_length,
                                   m_remote->address(word),
                                   (uct_rkey_t)&no_view, &get));
        while (put_word(word, taken + 1) == UCS_OK) {
            ASSERT_LT(++taken, 1000u);
        }
        EXPECT_GT(taken, 3u);
        m_a->flush(m_ab);
        EXPECT_TRUE(get.done);
        EXPECT_EQ(sent, result);
        EXPECT_EQ(taken, *remote_word(word));
    }
}
