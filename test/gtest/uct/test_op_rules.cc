/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <cstring>

/* Guarantees across operations, some of which are repeated */
class test_op_rules : public test_op {
protected:
    static constexpr size_t size = 1 << 18;
    static constexpr size_t flag = size - 64;
    static constexpr size_t word = 8192;

    test_op_rules()
    {
        m_config["ORDER"] = "ucp"; /* Else a flag waits without a fence, too */
    }

    /* From now on the first tries of a transfer miss a page */
    void miss(op_t op, size_t remote, unsigned times, uint32_t restore = 1)
    {
        for (unsigned i = 0; i < times; ++i) {
            m_remote->fault(remote, view(op, false), 1, 0, restore);
        }
    }

    bool arrived(size_t length)
    {
        return memcmp(m_local->ptr(), m_remote->ptr(), length) == 0;
    }
};

/* A completion whose callback compares the data at once */
struct looking_completion : uct_completion_t {
    looking_completion(const char *a, const char *b, size_t length) :
        a(a), b(b), length(length)
    {
        func = [](uct_completion_t *self) {
            auto *comp = static_cast<looking_completion*>(self);
            comp->good = memcmp(comp->a, comp->b, comp->length) == 0;
            comp->done = true;
        };
        count  = 1;
        status = UCS_OK;
    }

    const char *a, *b;
    size_t     length;
    bool       done = false, good = false;
};

TEST_F(test_op_rules, completion_means_verified)
{
    make(size);
    for (op_t op : {GET_ZCOPY, PUT_ZCOPY}) {
        for (size_t length : {size_t(9000), size_t(200000)}) {
            for (unsigned times : {1, 2, 5}) {
                page_table_fault_clear(m_remote->table());
                source(op).fill(m_seed++);
                miss(op, 4096, times);
                looking_completion comp(m_local->ptr(), m_remote->ptr(),
                                        length);
                start(op, 0, 0, length,
                      reinterpret_cast<completion*>(&comp));
                m_a->wait([&]() { return comp.done; });
                EXPECT_TRUE(comp.good) << "op " << op << " length " << length;
                EXPECT_EQ(UCS_OK, comp.status);
            }
        }
    }
}

TEST_F(test_op_rules, flush_means_verified)
{
    make(size);
    for (unsigned times : {1, 2, 5}) {
        for (bool of_iface : {false, true}) {
            page_table_fault_clear(m_remote->table());
            m_local->fill(m_seed++);
            miss(PUT_ZCOPY, 4096, times, times % 2);
            miss(PUT_ZCOPY, 135168, times, 0);
            completion comp;
            start(PUT_ZCOPY, 0, 0, 200000, &comp);
            if (of_iface) {
                ucs_status_t status;
                m_a->wait([&]() {
                    status = uct_iface_flush(m_a->iface(), 0, nullptr);
                    return status == UCS_OK;
                });
            } else {
                m_a->flush(m_ab);
            }
            EXPECT_TRUE(arrived(200000));
            EXPECT_TRUE(comp.done);
        }
    }
}

/* A flag behind a fence is never visible before the data */
TEST_F(test_op_rules, fence_holds_what_follows)
{
    make(size);
    for (uint64_t i = 1; i <= 30; ++i) {
        page_table_fault_clear(m_remote->table());
        m_local->fill(m_seed++);
        /* The page is back at once, or only with the target's help */
        miss(PUT_ZCOPY, 69632, i % 6, i % 2);
        *remote_word(flag) = 0;
        completion comp;
        start(PUT_ZCOPY, 0, 0, 100000, &comp);
        ASSERT_EQ(UCS_OK, uct_ep_fence(m_ab, 0));
        bool posted = false;
        m_a->wait([&]() {
            if (!posted && (put_word(flag, i) == UCS_OK)) {
                posted = true;
            }
            /* Progress of the target comes first, so that it stores the flag as
             * early as possible */
            m_b->progress();
            if (*remote_word(flag) == i) {
                EXPECT_TRUE(arrived(100000)) << i;
                return true;
            }
            return false;
        });
        m_a->flush(m_ab);
    }
}

/* A small put is executed once, by whatever UCT function and whatever happens
 * to its page. The target resets the flag and must not see it again. */
TEST_F(test_op_rules, small_put_is_done_once)
{
    make(size);
    for (uint64_t i = 1; i <= 60; ++i) {
        unsigned seen = 0;
        size_t length = 8 << (i % 10);
        completion comp;
        bool by_zcopy = (i % 3) == 0;

        page_table_fault_clear(m_remote->table());
        run(PUT_ZCOPY, 0, flag - 100000, 100000 + 64); /* Page present */
        memset(m_local->ptr(), 0, length);
        memcpy(m_local->ptr(), &i, sizeof(i));
        *remote_word(flag & ~(page_size - 1)) = 0;
        m_remote->fault(flag, PAGE_W, 1, page_size, 1);
        m_remote->fault(flag, PAGE_W, 1, page_size, 1);
        uct_iov_t iov = {m_local->ptr(), length, m_local->memh(), 0, 1};
        ucs_status_t status = m_a->retry([&]() {
            return by_zcopy ?
                   uct_ep_put_zcopy(m_ab, &iov, 1,
                                    m_remote->address(flag & ~4095ul), m_rkey,
                                    &comp) :
                   put_word(flag & ~4095ul, i);
        });
        ASSERT_FALSE(UCS_STATUS_IS_ERR(status)) << ucs_status_string(status);
        auto *word   = remote_word(flag & ~4095ul);
        bool flushed = false;
        m_a->wait([&]() {
            if (*word != 0) {
                EXPECT_EQ(i, *word);
                *word = 0;
                ++seen;
            }
            flushed = uct_ep_flush(m_ab, 0, nullptr) == UCS_OK;
            return flushed && (seen > 0);
        });
        if (*word != 0) {
            ++seen;
        }
        EXPECT_EQ(1u, seen) << "put " << i;
    }
}

/* An operation of zero length reads no states and checks nothing */
TEST_F(test_op_rules, zero_length)
{
    make(size);
    uint64_t slices = counter("nic_slices"), reads = counter("state_reads");

    m_remote->evict(0, size);
    uct_iov_t iov = {m_local->ptr(), 0, m_local->memh(), 0, 1};
    EXPECT_EQ(UCS_OK, uct_ep_get_zcopy(m_ab, &iov, 1, m_remote->address(),
                                       m_rkey, nullptr));
    EXPECT_EQ(UCS_OK, uct_ep_put_zcopy(m_ab, &iov, 1, m_remote->address(),
                                       m_rkey, nullptr));
    EXPECT_EQ(slices, counter("nic_slices"));
    EXPECT_EQ(reads, counter("state_reads"));
}
