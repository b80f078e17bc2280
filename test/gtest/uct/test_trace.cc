/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <algorithm>
#include <cstring>

/* Where tracing is compiled in, every kind of line appears; elsewhere none
 * does */
class test_trace : public test_op {
protected:
    static constexpr size_t size = 64 * page_size;

    void SetUp() override
    {
        m_trace.reset(new complaints(UCS_LOG_LEVEL_TRACE_POLL));
        test_op::SetUp();
    }

    void TearDown() override
    {
        test_op::TearDown();
        m_trace.reset();
    }

    static bool is_compiled_in()
    {
#ifdef NPRDMA_TEST_TRACE
        return true;
#else
        return false;
#endif
    }

    static void am_tracer(void *, uct_am_trace_type_t, uint8_t id, const void *,
                          size_t length, char *buffer, size_t max)
    {
        snprintf(buffer, max, "tracer %u/%zu", id, length);
    }

    static size_t pack_am(void *dest, void *)
    {
        memset(dest, 3, 100);
        return 100;
    }

    void active_messages()
    {
        uct_iov_t iov = {m_local->ptr(), 200, m_local->memh(), 0, 1};
        auto handler  = [](void *, void *, size_t, unsigned) {
            return UCS_OK;
        };

        uct_iface_set_am_handler(m_b->iface(), 5, handler, nullptr, 0);
        uct_iface_set_am_tracer(m_a->iface(), am_tracer, nullptr);
        uct_iface_set_am_tracer(m_b->iface(), am_tracer, nullptr);
        EXPECT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_am_short(m_ab, 5, 1, "12345678", 8);
        }));
        EXPECT_EQ(UCS_OK, m_a->retry([&]() {
            ssize_t length = uct_ep_am_bcopy(m_ab, 5, pack_am, nullptr, 0);
            return (length < 0) ? (ucs_status_t)length : UCS_OK;
        }));
        EXPECT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_am_zcopy(m_ab, 5, nullptr, 0, &iov, 1, 0, nullptr);
        }));
        m_a->flush(m_ab);
    }

    void put_short()
    {
        EXPECT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_put_short(m_ab, m_local->ptr(), 8,
                                    m_remote->address(), m_rkey);
        }));
    }

    void atomic()
    {
        completion comp;
        uint64_t old;

        EXPECT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
            return uct_ep_atomic64_fetch(m_ab, UCT_ATOMIC_OP_ADD, 1, &old,
                                         m_remote->address(), m_rkey, &comp);
        }));
        m_a->wait([&]() { return comp.done; });
    }

    /* The later operation overlaps the earlier one */
    void overlap()
    {
        completion put, get;

        start(PUT_ZCOPY, 0, 0, size / 2, &put);
        start(GET_ZCOPY, size / 2, 0, size / 2, &get);
        m_a->wait([&]() { return put.done && get.done; });
    }

    void operate()
    {
        make(size);
        active_messages();
        put_short();
        atomic();
        run(GET_BCOPY, 0, 0, 100);
        m_remote->evict(0, size);
        run(GET_ZCOPY, 0, 0, size);
        m_remote->evict(0, page_size);
        run(GET_BCOPY, 0, 0, 100);
        overlap();
        m_a->flush(m_ab);
        m_a->disconnect(m_ab);
        m_ab = nullptr;
        /* The service's own thread may get the last message */
        await([&]() {
            m_a->progress();
            m_b->progress();
            return !is_compiled_in() || data("svc FIN");
        });
    }

    /* Whether a line of this level has the text in it */
    bool has(ucs_log_level_t level, const std::string &text) const
    {
        auto lines = m_trace->all();

        return std::any_of(lines.begin(), lines.end(), [&](const auto &line) {
            return (line.level == level) &&
                   (line.text.find(text) != std::string::npos);
        });
    }

    bool data(const std::string &text) const
    {
        return has(UCS_LOG_LEVEL_TRACE_DATA, text);
    }

    std::unique_ptr<complaints> m_trace;
};

TEST_F(test_trace, every_kind_of_line)
{
    operate();
    if (!is_compiled_in()) {
        for (const auto &line : m_trace->all()) {
            EXPECT_GE(UCS_LOG_LEVEL_DEBUG, line.level) << line.text;
        }
        GTEST_SKIP() << "tracing is compiled out (--enable-debug "
                        "compiles it in)";
    }

    for (const char *text : {
             "cm REQ(0x1)", "cm REP(0x2)", "cm RTU(0x3)", "dev version",
             "iface version", "packed key version", "TX: AM_SHORT am_id 5 len "
             "16 tracer 5/16", "TX: AM_BCOPY am_id 5 len 100 tracer 5/100",
             "TX: AM_ZCOPY am_id 5 len 200 tracer 5/200",
             "RX: AM am_id 5 len 200 tracer 5/200", "TX: am FIN", "RX: am FIN",
             "TX: svc STORE(0x51)", "RX: svc STORE(0x51)",
             "TX: svc FETCH(0x52)", "TX: svc ATOMIC(0x53)",
             "RX: svc ATOMIC(0x53)", "TX: svc FIN(0x55)",
             "TX: svc REPLY(0x56)", "RX: svc REPLY(0x56)",
             "TX: svc POPULATE(0x57)", "RX: svc POPULATE(0x57)",
             "TX: populated length", "RX: populated length", "post opcode"}) {
        EXPECT_TRUE(data(text)) << text;
    }
    for (const char *text : {
             "start: get of 262144 bytes", "start: put of", "held by op",
             "released", "start: try 1", "redo: try 2", "suspect: the states",
             "suspect: its data", "assist: populate", "assist: fetch",
             "verified at try 1", "verified at try 2", "verified in one READ",
             "complete: Success", "request sn 1 complete"}) {
        EXPECT_TRUE(has(UCS_LOG_LEVEL_TRACE_REQ, text)) << text;
    }
    for (const char *text : {
             "uct_nprdma_mem_reg(", "uct_nprdma_mkey_pack(",
             "uct_nprdma_ep_flush(", "uct_nprdma_ep_destroy(",
             "uct_nprdma_md_open(", "uct_nprdma_ep_t_init("}) {
        EXPECT_TRUE(has(UCS_LOG_LEVEL_TRACE_FUNC, text)) << text;
    }
}
