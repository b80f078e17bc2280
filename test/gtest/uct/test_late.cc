/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "internals.h"
#include "test_op.h"

#include <algorithm>
#include <cstring>

/*
 * Rule "failure of a peer": b's endpoint to a ends, and so does its
 * registration, while a's WRITE to it is on its way. A gate keeps the WRITE
 * back until b's program has its memory again. Nothing else revokes pages.
 */
class test_late : public test_op {
protected:
    static constexpr size_t size      = 256 << 10; /* 4 slices */
    static constexpr unsigned SVC     = 1;
    static constexpr char program_has = 0x77;

    void SetUp() override
    {
        test_op::SetUp();
        make(size + page_size);
    }

    void prepare() override
    {
        hook_start(m_a->md(), m_a->iface());
        hook_start(m_b->md(), m_b->iface());
    }

    test_late()
    {
        m_config["REVOKE"]      = "never";
        m_config["BULK_QP"]     = "no";
        m_config["TX_QUOTA"]    = "inf";
        m_config["TIMEOUT"]     = "20ms"; /* Of an endpoint to a closed peer */
        m_config["RETRY_COUNT"] = "3";
    }

    ucs_status_t put(uct_ep_h ep, uct_rkey_t rkey, completion *comp)
    {
        uct_iov_t iov = {m_local->ptr(), size, m_local->memh(), 0, 1};

        return uct_ep_put_zcopy(ep, &iov, 1, m_remote->address(), rkey, comp);
    }

    /* Returns when a's WRITEs are at the gate */
    void begin(completion *comp)
    {
        memset(m_local->ptr(), 0x11, size);
        hook_gate_close(m_ab, SVC, HOOK_WRITE);
        ASSERT_EQ(UCS_INPROGRESS, put(m_ab, m_rkey, comp));
        m_a->wait_alone([]() { return hook_numbers().held > 0; });
    }

    /* As UCP does it: the lanes are flushed and destroyed, and then buffers of
     * requests are deregistered */
    void end(bool is_canceled)
    {
        if (is_canceled) {
            completion comp;
            if (uct_ep_flush(m_ba, UCT_FLUSH_FLAG_CANCEL, &comp) ==
                UCS_INPROGRESS) {
                m_b->wait([&]() { return comp.done; });
            }
        } else {
            hook_refuse(m_b->md(), 0, 1);
            uct_ep_am_short(m_ba, 1, 0, nullptr, 0);
            m_b->wait([&]() { return !m_b->failed.empty(); });
        }
        m_b->disconnect(m_ba);
        m_remote->deregister();
    }

    void reuse() { memset(m_remote->ptr(), program_has, size); }

    bool is_unchanged()
    {
        const char *ptr = m_remote->ptr();
        return std::count(ptr, ptr + size, program_has) == (ptrdiff_t)size;
    }

    /* Lets the WRITEs go */
    void arrive(completion *comp)
    {
        hook_let_go();
        m_a->wait([&]() { return comp->done; });
        EXPECT_NE(UCS_OK, comp->status);
        EXPECT_TRUE(is_unchanged());
    }

    void expect_works(uct_rkey_t rkey)
    {
        uct_ep_h ep = m_a->connect(m_b->address());
        completion comp;

        memset(m_local->ptr(), 0x22, size);
        ASSERT_EQ(UCS_INPROGRESS, put(ep, rkey, &comp));
        m_a->wait([&]() { return comp.done; });
        EXPECT_EQ(UCS_OK, comp.status);
        EXPECT_EQ(0, memcmp(m_local->ptr(), m_remote->ptr(), size));
    }
};

class test_late_end : public test_late,
                      public ::testing::WithParamInterface<bool> {
};

INSTANTIATE_TEST_SUITE_P(all, test_late_end, ::testing::Bool(),
                         [](const auto &param) {
                             return param.param ? "canceled" : "failed";
                         });

/* For another peer: the late WRITE comes with a key of the earlier one */
TEST_P(test_late_end, registered_again)
{
    completion comp;

    begin(&comp);
    end(GetParam());
    buffer again(m_b->md(), size, m_remote->ptr(),
                 UCT_MD_MEM_ACCESS_REMOTE_PUT);
    uct_rkey_t rkey = m_a->unpack(again.packed_key());
    uint64_t copied = counter("assist_store");
    expect_works(rkey);
    /* In a region of its own: the NIC moves the data */
    EXPECT_EQ(copied, counter("assist_store"));
    reuse();
    arrive(&comp);
    expect_works(rkey);
}

/* The same pages are under another registration, whose key stays good. Its use
 * must not bring the pages back for the other key. */
TEST_P(test_late_end, covered_by_another)
{
    buffer other(m_b->md(), size, m_remote->ptr());
    uct_rkey_t rkey = m_a->unpack(other.packed_key());
    completion comp;

    expect_works(rkey);
    begin(&comp);
    end(GetParam());
    expect_works(rkey);
    reuse();
    arrive(&comp);
    expect_works(rkey);
}

/* A closed interface: UCP does not end the registrations of a worker's
 * requests. The service has no time to destroy its queue pairs. */
TEST_F(test_late, closed_interface)
{
    completion got, comp;
    char byte;
    uct_iov_t iov       = {&byte, 1, nullptr, 0, 1};
    page_table_t *table = m_remote->table();

    m_remote->evict(size, page_size);
    page_table_gate_arm(table, GATE_MAP, m_remote->ptr(size));
    ASSERT_EQ(UCS_INPROGRESS,
              uct_ep_get_zcopy(m_ab, &iov, 1, m_remote->address(size),
                               m_rkey, &got));
    m_a->wait_alone([&]() {
        return page_table_gate_wait(table, GATE_MAP, 0) == 0;
    });
    begin(&comp);
    m_b->disconnect(m_ba);
    m_b->close_iface();
    reuse();
    hook_let_go();
    m_a->wait_alone([&]() { return comp.done; });
    EXPECT_NE(UCS_OK, comp.status);
    EXPECT_TRUE(is_unchanged());
    page_table_gate_release(table, GATE_MAP);
    m_a->wait_alone([&]() { return got.done; });
    m_remote->deregister();
}
