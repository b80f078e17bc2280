/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <cstring>
#include <list>

/*
 * Small gets. Normally such a get is one READ whose data is scanned. The tests
 * cover this and the repair of gets that met an absent page.
 */

/* One of several outstanding gets, with its own place in memory */
struct small_get : uct_completion_t {
    small_get(size_t remote, size_t length) :
        remote(remote), length(length), data(length)
    {
        func = [](uct_completion_t *self) {
            auto *get = static_cast<small_get*>(self);
            ++get->num_calls;
            get->on_done();
        };
        count  = 1;
        status = UCS_OK;
    }

    size_t                remote, length;
    std::vector<char>     data;
    unsigned              num_calls = 0;
    std::function<void()> on_done   = []() {};
};

class test_op_small : public test_op {
protected:
    static void unpack(void *arg, const void *data, size_t length)
    {
        auto *get = static_cast<small_get*>(arg);

        ASSERT_EQ(get->length, length);
        memcpy(get->data.data(), data, length);
    }

    ucs_status_t post(small_get &get)
    {
        return uct_ep_get_bcopy(m_ab, unpack, &get, get.length,
                                m_remote->address(get.remote), m_rkey, &get);
    }

    /* Posts as many gets as the interface accepts, cycling through the lengths.
     * All of them stay outstanding, because nothing calls progress. */
    std::list<small_get> post_all(const std::vector<size_t> &lengths)
    {
        std::list<small_get> gets;
        size_t at = 0;

        fill(GET_BCOPY, 0, m_remote->length());
        for (size_t i = 0;; ++i) {
            size_t length = lengths[i % lengths.size()];
            gets.emplace_back(at, length);
            ucs_status_t status = post(gets.back());
            if (status != UCS_INPROGRESS) {
                EXPECT_EQ(UCS_ERR_NO_RESOURCE, status);
                gets.pop_back();
                return gets;
            }
            at += (length + 63) & ~size_t(63);
        }
    }

    /* All pages are there */
    void bring_back()
    {
        for (int i = 0; i < 10; ++i) {
            if (m_remote->has(0, size, PAGE_R)) {
                return;
            }
            run(GET_ZCOPY, 0, 0, size);
        }
        FAIL() << "pages are not populated";
    }

    bool all_done(const std::list<small_get> &gets)
    {
        for (auto &get : gets) {
            if (get.num_calls == 0) {
                return false;
            }
        }
        return true;
    }

    void expect_good_or_canceled(const std::list<small_get> &gets)
    {
        for (auto &get : gets) {
            EXPECT_EQ(1u, get.num_calls);
            if (get.status != UCS_ERR_CANCELED) {
                EXPECT_EQ(UCS_OK, get.status) << ucs_status_string(get.status);
                EXPECT_EQ(0, memcmp(get.data.data(), m_remote->ptr(get.remote),
                                    get.length))
                        << get.length << " bytes at " << get.remote;
            }
        }
    }

    void expect_good(const std::list<small_get> &gets)
    {
        for (auto &get : gets) {
            EXPECT_EQ(UCS_OK, get.status) << ucs_status_string(get.status);
        }
        expect_good_or_canceled(gets);
    }

    /* Repeats a test that replaces the endpoint. Each new endpoint works, and
     * nothing is leaked that gets need. */
    void repeat_destroy(const std::function<void(int)> &body)
    {
        make(size);
        const size_t as_many = try_many();

        for (int i = 0; i < 40; ++i) {
            body(i);
            run(GET_BCOPY, 0, 0, 8);
        }
        EXPECT_EQ(as_many, try_many());
    }

    /* The number of gets that can be outstanding while nothing is leaked. The
     * first round allocates the slots. */
    size_t try_many()
    {
        size_t count = 0;

        for (int i = 0; i < 2; ++i) {
            auto posted = post_all({8});
            m_a->wait([&]() { return all_done(posted); });
            expect_good(posted);
            count = posted.size();
        }
        return count;
    }

    static constexpr size_t size = 1 << 20;
    const std::vector<size_t> lengths = {8, 64, 1, 4096, 200, 63};
};

TEST_F(test_op_small, each_is_one_slice_and_one_hit)
{
    make(size);
    for (size_t length : {1, 7, 8, 63, 64, 65, 4095, 4096, 8192}) {
        for (op_t op : {GET_BCOPY, GET_COPIED}) {
            for (size_t remote : {4096, 4096 + 64, 4096 + 5}) {
                uint64_t gets = counter("nic_get"), hits = counter("nic_hits");
                uint64_t slices = counter("nic_slices");
                run(op, 77, remote, length);
                EXPECT_EQ(gets + 1, counter("nic_get"));
                EXPECT_EQ(slices + 1, counter("nic_slices"));
                EXPECT_EQ(hits + 1, counter("nic_hits"));
            }
        }
    }
}

/* At whatever byte the absent part begins, and also where the page is back
 * before its states could be read */
TEST_F(test_op_small, no_absent_line_is_accepted)
{
    make(1 << 16);
    for (size_t length : {1, 5, 8, 15, 64, 65, 72, 127, 129, 500, 4096}) {
        for (size_t remote : {8192, 8192 + 8, 8192 + 56, 8192 + 60}) {
            for (size_t tear = 0; tear < length; tear += 64) {
                page_table_fault_clear(m_remote->table());
                m_a->wait([&]() {
                    return m_remote->has(8192, 8192, PAGE_R);
                });
                uint64_t small = counter("assist_small");
                int index      = m_remote->fault(8192, PAGE_R, 1, tear, 1,
                                                 true);
                run(GET_BCOPY, 77, remote, length);
                EXPECT_EQ(1, page_table_fault_hits(m_remote->table(), index));
                /* An unaligned head is an access of its own, which consumes the
                 * fault */
                size_t head = -remote % 64;
                if ((head == 0) || (tear < head)) {
                    EXPECT_EQ(small + 1, counter("assist_small"))
                            << length << " bytes at " << remote << " from "
                            << tear;
                }
            }
        }
    }
}

TEST_F(test_op_small, data_like_the_signature)
{
    make(1 << 16);
    uint64_t signature = page_table_signature(m_remote->table());
    uint64_t suspects  = 0;

    for (size_t i = 0; i + 8 <= m_remote->length(); i += 8) {
        memcpy(m_remote->ptr(i), &signature, 8);
    }
    for (op_t op : {GET_BCOPY, GET_COPIED}) {
        for (size_t length : {1, 3, 8, 20, 64, 100, 4096}) {
            for (size_t remote : {4096, 4096 + 16, 4096 + 61}) {
                completion comp;
                memset(m_local->ptr(), 0, m_local->length());
                start(op, 0, remote, length, &comp);
                m_a->wait([&]() { return comp.done; });
                EXPECT_EQ(UCS_OK, comp.status);
                expect_data(op, 0, remote, length);
                EXPECT_EQ(++suspects, counter("false_suspects"));
            }
        }
    }
}

/* Destroying an endpoint completes all of its gets, and leaks nothing that the
 * next endpoint needs */
TEST_F(test_op_small, destroy_in_flight)
{
    repeat_destroy([&](int i) {
        if (i % 2) {
            m_remote->evict(0, 16 * page_size);
        }
        auto posted = post_all(lengths);
        ASSERT_GT(posted.size(), 8u);
        if (i % 4 > 1) {
            m_a->progress(); /* Some are complete, some are being fetched */
        }
        m_a->disconnect(m_ab);
        expect_good_or_canceled(posted);
        m_ab = m_a->connect(m_b->address());
    });
}

/* A get that the NIC has not begun returns no data */
TEST_F(test_op_small, destroy_while_connecting)
{
    repeat_destroy([&](int) {
        uct_ep_h connected = m_ab;
        m_ab               = m_a->connect(m_b->address());
        auto posted        = post_all(lengths);
        ASSERT_GE(posted.size(), 4u); /* As many as the backlog has */
        m_a->disconnect(m_ab);
        for (auto &get : posted) {
            EXPECT_EQ(1u, get.num_calls);
            EXPECT_EQ(UCS_ERR_CANCELED, get.status);
        }
        m_ab = connected;
    });
}

/* A callback destroys the endpoint while other gets on it are outstanding */
TEST_F(test_op_small, destroy_in_callback)
{
    repeat_destroy([&](int i) {
        if (i % 2) {
            m_remote->evict(0, 4 * page_size);
        }
        auto posted = post_all(lengths);
        auto nth    = posted.begin();
        std::advance(nth, i % posted.size());
        nth->on_done = [&]() { m_a->disconnect(m_ab); };
        m_a->wait([&]() { return all_done(posted); });
        expect_good_or_canceled(posted);
        EXPECT_EQ(UCS_OK, nth->status);
        m_ab = m_a->connect(m_b->address());
    });
}

/* The callback of a get starts another get; each has its own data */
TEST_F(test_op_small, post_in_callback)
{
    make(size);
    fill(GET_BCOPY, 0, size);
    std::list<small_get> gets;
    std::function<void()> next = [&]() {
        if (gets.size() < 300) {
            gets.emplace_back(gets.size() * 704, (gets.size() * 37) % 700 + 1);
            gets.back().on_done = next;
            EXPECT_EQ(UCS_INPROGRESS, post(gets.back()));
        }
    };
    for (size_t page = 0; page < size; page += 7 * page_size) {
        m_remote->evict(page, 1);
    }
    next();
    m_a->wait([&]() { return (gets.size() == 300) && all_done(gets); });
    expect_good(gets);
}

/* Where little may be pinned there are few slices. Gets of one READ have their
 * own. */
class test_op_small_few : public test_op_small {
protected:
    config_t config() override
    {
        auto config          = test_op::config();
        config["MAX_PINNED"] = "4m";
        return config;
    }
};

TEST_F(test_op_small_few, reads_need_no_slice)
{
    make(size);
    bring_back();

    uint64_t slices = counter("nic_slices");
    for (size_t page = 0; page < size / page_size; ++page) {
        m_remote->evict(page * page_size, 1);
    }
    auto posted = post_all({64});
    ASSERT_LE(12u, posted.size());
    /* No call of progress: they are all in the NIC */
    EXPECT_EQ(posted.size(), counter("nic_slices") - slices);

    /* All of them meet an absent page */
    uint64_t small = counter("assist_small");
    m_a->wait([&]() { return all_done(posted); });
    expect_good(posted);
    EXPECT_LT(small, counter("assist_small"));
}

/* A get into a slot that is cut into slices */
class test_op_small_cut : public test_op_small {
protected:
    config_t config() override
    {
        auto config     = test_op::config();
        config["SLICE"] = "4k";
        return config;
    }
};

/* Both slices ask the target for their part at the same time. Neither may use
 * the slot for the reply. */
TEST_F(test_op_small_cut, slices_share_a_slot)
{
    make(size);
    for (op_t op : {GET_BCOPY, GET_COPIED}) {
        uint64_t small = counter("assist_small");

        m_remote->evict(0, 8192);
        run(op, 0, 0, 8192);
        EXPECT_EQ(small + 2, counter("assist_small"));
    }
}

/* A configuration with slices, verified by states */
class test_op_small_slices : public test_op_small {
protected:
    config_t config() override
    {
        auto config        = test_op::config();
        config["SLICE"]    = "4k";
        config["SCAN_MAX"] = "64";
        return config;
    }
};

TEST_F(test_op_small_slices, limits_are_respected)
{
    make(1 << 16);
    for (op_t op : {GET_BCOPY, GET_COPIED}) {
        for (size_t length : {64, 65, 4096, 4097, 8192}) {
            uint64_t slices = counter("nic_slices");
            uint64_t reads  = counter("state_reads");
            run(op, 0, 4096, length);
            EXPECT_EQ(slices + (length + 4095) / 4096, counter("nic_slices"))
                    << length;
            EXPECT_EQ(length > 64, counter("state_reads") > reads) << length;
        }
    }
}
