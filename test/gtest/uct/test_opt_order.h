/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_TEST_OPT_ORDER_H_
#define NPRDMA_TEST_TEST_OPT_ORDER_H_

#include "test_opt.h"

#include <atomic>
#include <cstring>
#include <string>

/*
 * Operations behind others of the same endpoint, some of which are done again.
 * The initiator and the target are progressed by hand, so a test decides
 * whether the target's software or the next try comes first.
 */
class test_opt_order : public test_opt {
protected:
    static constexpr size_t size   = 1 << 18;
    static constexpr size_t length = 100000; /* Of what is done again */
    static constexpr size_t word   = 8192;   /* In it, on the page it misses */
    static constexpr size_t other  = size - 4096; /* Not in it */

    /* Buffer at the initiator for a second operation */
    static constexpr size_t second = 131072;

    void SetUp() override
    {
        test_opt::SetUp();
        make(size);
    }

    std::atomic<uint64_t> *remote_word(size_t offset)
    {
        return (std::atomic<uint64_t>*)m_remote->ptr(offset);
    }

    /* New data everywhere; the first tries of what follows miss a page */
    void renew(op_t op, unsigned times = 1, uint32_t restore = 1);

    /* A large operation that has to be done again, in [0, length) */
    void start_missing(op_t op, completion *comp, unsigned times = 1)
    {
        renew(op, times);
        start(op, 0, 0, length, comp);
        ASSERT_FALSE(comp->done);
    }

    ucs_status_t put_word(size_t offset, uint64_t value)
    {
        return uct_ep_put_short(m_ab, &value, sizeof(value),
                                m_remote->address(offset), m_rkey);
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

    /* The target does what it has got, while the initiator stands still */
    void serve();

    bool arrived(size_t from, size_t to, size_t bytes)
    {
        return memcmp(m_local->ptr(from), m_remote->ptr(to), bytes) == 0;
    }
};

#endif
