/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <algorithm>
#include <cstring>
#include <thread>

/*
 * The memory of a target is removed or replaced, and the system call is held
 * when the pages are taken from the NIC. For the memory of the initiator itself
 * see test_taken; test_op_oracle moves pages at random moments.
 */
class test_op_events : public test_op {
protected:
    static constexpr size_t area = 128 << 10;
    static constexpr size_t at   = 32 << 10; /* Offset of what is removed */
    static constexpr size_t gone = 64 << 10;
    static constexpr int point   = GATE_INVALIDATE_QUIESCED;

    test_op_events() { m_config = {{"REGION_SIZE", "2m"}, {"SLICE", "64k"}}; }

    ucs_status_t operate(bool is_put, size_t offset, size_t length)
    {
        return is_put ? m_a->put(m_ab, m_local->ptr(offset), length,
                                 m_remote->address(offset), m_rkey) :
                        m_a->get(m_ab, m_local->ptr(offset), length,
                                 m_remote->address(offset), m_rkey);
    }

    void remove(bool is_replaced)
    {
        if (is_replaced) {
            EXPECT_EQ(m_remote->ptr(at),
                      mmap(m_remote->ptr(at), gone, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
        } else {
            EXPECT_EQ(0, madvise(m_remote->ptr(at), gone, MADV_DONTNEED));
        }
    }

    /* While a call is in progress, the pages that it takes are not populated
     * again */
    void watch_removal(bool is_replaced)
    {
        std::thread thread([&]() { remove(is_replaced); });

        ASSERT_EQ(0, page_table_gate_wait(m_remote->table(), point, 60000));
        m_is_called = true;
        for (double end = now() + 0.1; now() < end;) {
            for (size_t i = 0; i < gone; i += page_size) {
                ASSERT_FALSE(m_remote->has(at + i, 1, PAGE_R));
            }
        }
        page_table_gate_release(m_remote->table(), point);
        thread.join();
    }

    /* Every byte is one of these */
    static void expect_bytes(const char *ptr, size_t length,
                             const std::vector<char> &allowed)
    {
        EXPECT_TRUE(std::all_of(ptr, ptr + length, [&](char byte) {
            return std::count(allowed.begin(), allowed.end(), byte) > 0;
        }));
    }

    std::atomic<bool> m_is_called{false};
};

TEST_F(test_op_events, populate_is_refused_during_a_call)
{
    struct removal {
        bool   is_replaced, is_put;
        size_t length;
    };

    for (const removal &it :
         {removal{false, false, gone}, removal{false, false, 8000},
          removal{false, true, gone}, removal{true, false, gone}}) {
        SCOPED_TRACE(testing::Message() << "replaced " << it.is_replaced
                                        << " put " << it.is_put << " length "
                                        << it.length);
        m_local.reset(new paged_buffer(*m_a, area));
        m_remote.reset(new paged_buffer(*m_b, area));
        m_rkey = m_a->unpack(m_remote->packed_key());
        memset(m_local->ptr(), 1, area);
        /* Populates the pages, and fills the state cache */
        ASSERT_EQ(UCS_OK, operate(true, 0, area));
        ASSERT_EQ(UCS_OK, operate(false, 0, area));
        memset(m_local->ptr(at), 2, gone);
        m_b->finish_prefetch();

        m_is_called = false;
        page_table_gate_arm(m_remote->table(), point, m_remote->ptr(at));
        std::thread thread([&]() { watch_removal(it.is_replaced); });
        await([&]() { return m_is_called.load(); });
        EXPECT_EQ(UCS_OK, operate(it.is_put, at, it.length));
        thread.join();
        /* Software may have stored the data just before the call discarded it,
         * or have fetched what was there before */
        expect_bytes(m_remote->ptr(at), gone, {0, 2});
        if (!it.is_put) {
            expect_bytes(m_local->ptr(at), it.length, {0, 1});
        }

        memset(m_remote->ptr(at), 3, gone);
        EXPECT_EQ(UCS_OK, operate(false, at, gone));
        expect_bytes(m_local->ptr(at), gone, {3});
        /* The NIC accessed no page that its table did not permit */
        EXPECT_EQ(0u, m_remote->stats().efault);
    }
}
