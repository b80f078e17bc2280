/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "internals.h"
#include "test_op.h"

/*
 * Operations that end with an error return their resources: operations, slices,
 * waits for replies and slots. The pools are much smaller than the number of
 * failures here, so a leak makes the last operations wait for ever.
 */
class test_op_ends : public test_op {
protected:
    static constexpr size_t size   = 1 << 18;
    static constexpr size_t length = 100000; /* Two slices */
    static constexpr int    many   = 300;

    void SetUp() override
    {
        test_op::SetUp();
        make(size);
    }

    ucs_status_t post(op_t op, char *local, uint64_t address, uct_rkey_t rkey,
                      completion *comp)
    {
        uct_iov_t iov = {local, length, nullptr, 0, 1};

        return m_a->retry([&]() {
            return start_zcopy(op == PUT_ZCOPY, m_ab, iov, address, rkey, comp);
        });
    }

    void expect_fails(char *local, uint64_t address, uct_rkey_t rkey,
                      ucs_status_t expected)
    {
        for (int i = 0; i < many; ++i) {
            for (op_t op : {GET_ZCOPY, PUT_ZCOPY}) {
                completion comp;
                ASSERT_EQ(UCS_INPROGRESS,
                          post(op, local, address, rkey, &comp));
                m_a->wait([&]() { return comp.done; });
                ASSERT_EQ(expected, comp.status);
            }
        }
    }

    /* Several operations of each kind at once still work */
    void expect_works()
    {
        static const int count = 20;

        for (op_t op : {GET_BCOPY, GET_COPIED, GET_ZCOPY, PUT_ZCOPY}) {
            for (bool is_absent : {false, true}) {
                size_t part = ((op == GET_BCOPY) || (op == GET_COPIED)) ? 8000 :
                                                                          9000;
                std::vector<completion> comps(count);
                fill(op, 0, size);
                if (is_absent) {
                    m_remote->evict(0, size);
                }
                for (int i = 0; i < count; ++i) {
                    start(op, i * part, i * part, part, &comps[i]);
                    if (op == GET_BCOPY) {
                        m_a->wait([&]() { return comps[i].done; });
                    }
                }
                for (auto &comp : comps) {
                    m_a->wait([&]() { return comp.done; });
                    EXPECT_EQ(UCS_OK, comp.status);
                }
                expect_data(op, 0, 0, count * part);
            }
        }
    }
};

TEST_F(test_op_ends, invalidated_target_is_refused)
{
    far_memory memory(size);
    uct_mem_h memh;

    ASSERT_EQ(UCS_OK, uct_md_mem_reg(m_b->md(), memory.ptr(), size,
                                     UCT_MD_MEM_ACCESS_ALL, &memh));
    std::vector<char> key(m_b->md_attr().rkey_packed_size);
    ASSERT_EQ(UCS_OK, uct_md_mkey_pack(m_b->md(), memh, key.data()));
    invalidate(m_b->md(), memh);
    expect_fails(m_local->ptr(), (uint64_t)memory.ptr(), m_a->unpack(key),
                 UCS_ERR_REJECTED);
    expect_works();
}

/* After many failures this endpoint gets no place in the completion queue to
 * tell its end by */
TEST_F(test_op_ends, full_completion_queue)
{
    completion comp;

    ASSERT_EQ(UCS_OK, m_a->retry([this]() {
        return uct_ep_am_short(m_ab, 1, 0, nullptr, 0);
    }));
    ASSERT_EQ(UCS_INPROGRESS, post(PUT_ZCOPY, m_local->ptr(),
                                   m_remote->address(), m_rkey, &comp));
    int hidden = cq_hide_all(m_a->iface());
    uct_ep_flush(m_ab, UCT_FLUSH_FLAG_CANCEL, nullptr);
    EXPECT_FALSE(cq_is_overrun(m_a->iface()));
    cq_show(m_a->iface(), hidden);
    m_a->wait([&]() { return comp.done; });
    m_a->disconnect(m_ab);
    m_a->wait([this]() { return iface_is_settled(m_a->iface()); });
    m_ab = m_a->connect(m_b->address());
    expect_works();
}

/* While replies are outstanding, at different moments */
TEST_F(test_op_ends, canceled_operations_complete)
{
    int num_waiting = 0;

    for (int i = 0; (i < many) || (num_waiting < many); ++i) {
        uint64_t populates = counter("assist_populate");
        std::vector<completion> comps(4);

        m_remote->evict(0, size);
        for (auto &comp : comps) {
            post(((i % 2) == 0) ? GET_ZCOPY : PUT_ZCOPY, m_local->ptr(),
                 m_remote->address(), m_rkey, &comp);
        }
        for (int j = 0; j < i % 20; ++j) {
            m_a->progress();
        }
        /* Mostly until a request is outstanding whose reply has not arrived */
        for (int j = 0; (j < 1000) && ((i % 4) != 0) &&
                        (counter("assist_populate") == populates); ++j) {
            m_b->progress();
            m_a->progress();
        }
        num_waiting += counter("assist_populate") > populates;
        if ((i % 3) != 0) {
            uct_ep_flush(m_ab, UCT_FLUSH_FLAG_CANCEL, nullptr);
        }
        if ((i % 3) == 1) {
            for (auto &comp : comps) {
                m_a->wait([&]() { return comp.done; });
            }
        }
        m_a->disconnect(m_ab);
        for (auto &comp : comps) {
            EXPECT_TRUE(comp.done);
        }
        m_ab = m_a->connect(m_b->address());
        ASSERT_LT(i, 20 * many);
    }
    expect_works();
}
