/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_TEST_OP_ORDER_H_
#define NPRDMA_TEST_TEST_OP_ORDER_H_

#include "test_op.h"

#include <atomic>
#include <cstring>
#include <string>

/*
 * Operations behind others of the same endpoint, some of which are repeated.
 * The tests call progress of the initiator and the target by hand, and so
 * decide whether the target's software or the repetition comes first.
 */
class test_op_order : public test_op {
protected:
    static constexpr size_t size   = 1 << 18;
    static constexpr size_t length = 100000; /* Of the repeated one */
    static constexpr size_t word   = 8192;   /* In it, on the absent page */
    static constexpr size_t other  = size - 4096; /* Outside of it */

    /* Buffer at the initiator for a second operation */
    static constexpr size_t second = 131072;

    void SetUp() override
    {
        test_op::SetUp();
        make(size);
    }

    test_op_order()
    {
        m_config["TX_QUOTA"] = "inf"; /* Only the order holds operations */
        m_config["ORDER"]    = "atomic"; /* test_message_order has the rest */
    }

    /* Fills all memory with new data. The first tries of the next operation
     * miss a page. */
    void renew(op_t op, unsigned times = 1, uint32_t restore = 1);

    /* Starts a large operation on [0, length) that has to be repeated */
    void start_missing(op_t op, completion *comp, unsigned times = 1)
    {
        renew(op, times);
        start(op, 0, 0, length, comp);
        ASSERT_FALSE(comp->done);
    }

    ucs_status_t add_word(size_t offset, uint64_t value)
    {
        return uct_ep_atomic64_post(m_ab, UCT_ATOMIC_OP_ADD, value,
                                    m_remote->address(offset), m_rkey);
    }

    ucs_status_t fetch_add(size_t offset, uint64_t value, uint64_t *result,
                           completion *comp)
    {
        return uct_ep_atomic64_fetch(m_ab, UCT_ATOMIC_OP_ADD, value, result,
                                     m_remote->address(offset), m_rkey, comp);
    }

    /* The target executes its requests while the initiator makes no progress */
    void serve();

    /* A new endpoint has all slots that it may have: sends of earlier puts that
     * have no completion of their own keep theirs */
    void reconnect();

    bool arrived(size_t from, size_t to, size_t bytes)
    {
        return memcmp(m_local->ptr(from), m_remote->ptr(to), bytes) == 0;
    }
};

#endif
