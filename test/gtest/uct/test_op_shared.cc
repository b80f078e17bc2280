/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

extern "C" {
#include "uct/ib/nprdma/wire/nprdma_key.h"
}

#include <cstring>
#include <string>

/* Resources that all endpoints of an interface share. When an endpoint ends,
 * the next one gets them. */
class test_op_shared : public test_op {
protected:
    static constexpr size_t size  = 1 << 18;
    static constexpr size_t slow  = 1 << 17; /* Offset of an absent page */

    void SetUp() override
    {
        test_op::SetUp();
        make(size);
    }

    test_op_shared()
    {
        m_config["TX_MODERATION"] = "1"; /* Each request has a completion */
    }

    ucs_status_t put_word(uct_ep_h ep)
    {
        uint64_t value = 1;

        return uct_ep_put_short(ep, &value, sizeof(value), m_remote->address(),
                                m_rkey);
    }
};

/* A reply arrives before its endpoint is destroyed, and is not polled. The
 * device places its data when it is polled, in the slot of the endpoint, which
 * another operation may have by then. */
TEST_F(test_op_shared, late_reply_changes_no_other_operation)
{
    static const size_t bytes = 2000; /* Of the reply to the get */
    static const size_t at    = 4096;

    for (int turn = 0; turn < 5; ++turn) {
        uct_nprdma_rkey_t no_view = *(uct_nprdma_rkey_t*)m_rkey;
        uct_ep_h ep                 = m_a->connect(m_b->address());
        uint64_t served             = m_b->counter("served_fetches");
        completion slow_put, got, put;
        std::string result(bytes, 0), sent(bytes, 'a' + turn);

        m_remote->fill(m_seed++);
        ASSERT_EQ(UCS_OK, m_a->retry([&]() { return put_word(ep); }));
        m_a->flush(ep);
        stop_service(m_ab, slow, &slow_put);
        /* What the request itself held of the completion queue comes back */
        m_a->progress_often(100);
        no_view.r_rkey = 0; /* The target's software executes the get */
        ASSERT_EQ(UCS_INPROGRESS,
                  uct_ep_get_bcopy(ep, unpack_to, &result[0], bytes,
                                   m_remote->address(at), (uct_rkey_t)&no_view,
                                   &got));
        m_a->progress_often(300); /* The request is sent */

        /* The reply is in the completion queue. Nothing polls it. */
        go_on();
        await([&]() { return m_b->counter("served_fetches") > served; });
        idle([&]() { m_b->progress(); }); /* The service's thread replies */
        ASSERT_FALSE(got.done);
        m_a->disconnect(ep);
        EXPECT_EQ(UCS_ERR_CANCELED, got.status);

        /* A put that is held keeps its data in the slot */
        uct_iov_t iov = {m_local->ptr(), 20000, m_local->memh(), 0, 1};
        ASSERT_EQ(UCS_INPROGRESS,
                  uct_ep_put_zcopy(m_ab, &iov, 1, m_remote->address(at), m_rkey,
                                   &put));
        ASSERT_EQ((ssize_t)bytes,
                  uct_ep_put_bcopy(
                          m_ab,
                          [](void *dest, void *arg) -> size_t {
                              memcpy(dest, arg, bytes);
                              return bytes;
                          },
                          &sent[0], m_remote->address(at), m_rkey));
        m_a->flush(m_ab);
        EXPECT_EQ(0, memcmp(sent.data(), m_remote->ptr(at), bytes)) << turn;
        EXPECT_TRUE(put.done && slow_put.done);
    }
}
